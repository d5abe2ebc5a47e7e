"""Checkpoint folders: config.json and safetensors files, mapped into memory and never copied.

A safetensors file is  u64 n | n bytes of JSON | data.  The JSON names every tensor with its dtype, its shape and its
range of the data; the ranges tile the data exactly. Whatever a file claims is checked against its size first, so that
a lie costs an error and no memory.
"""

import json
import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from refimpl.contract import Array, CheckpointError, UInt8, host
from refimpl.files.scales import join_scales
from refimpl.models.tensor import Tensor

__all__ = ["map_file", "read_json", "read_safetensors", "read_config", "read_folder"]

_DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn), "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"), "U32": np.dtype("<u4"), "U16": np.dtype("<u2"), "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}

_MAX_HEADER = 100_000_000  # as the safetensors library has it
_MAX_AXES = 32


@host
def map_file(path: Path) -> UInt8[Array, " bytes"]:
    """Map a file into memory, read-only; an empty file is an empty array.

    Errors: CheckpointError when the path is no readable file or holds a Git LFS pointer.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"{path} cannot be read: {reason}") from error
    if data[:24] == b"version https://git-lfs.":
        raise CheckpointError(f"{path} is a Git LFS pointer, not the file itself: run `git lfs pull` there")
    return np.frombuffer(data, np.uint8)


@host
def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Errors: CheckpointError when it cannot be read or holds anything else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dictionary and refuse a name that comes twice: json would silently keep the last."""
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name comes twice")
    return table


def _read_header(path: Path, data: UInt8[Array, " bytes"]) -> tuple[dict[str, Any], int]:
    """Read the header of a safetensors file; also return where the data begins."""
    length = int.from_bytes(data[:8].tobytes(), "little")
    if len(data) < 8 or length > min(len(data) - 8, _MAX_HEADER):
        raise CheckpointError(f"{path} is not a safetensors file: a header of {length} bytes in {len(data)}")
    text = data[8 : 8 + length].tobytes()
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} has a damaged header: {error}") from error
    if not text.startswith(b"{"):
        raise CheckpointError(f"{path} has a damaged header: it must be a JSON object")
    header.pop("__metadata__", None)
    return header, 8 + length


def _is_sizes(value: Any, count: int | None = None) -> bool:
    """Whether a value is a list of integers >= 0 (bool is no integer here), ``count`` of them when given."""
    return (
        isinstance(value, list)
        and all(type(entry) is int and 0 <= entry < 2**63 for entry in value)
        and (len(value) <= _MAX_AXES if count is None else len(value) == count)
    )


def _check_entry(path: Path, name: str, entry: Any, size: int) -> None:
    """Refuse an entry of the header that does not describe a range of ``size`` bytes of data."""
    if not isinstance(entry, dict) or not _is_sizes(entry.get("shape")) or not _is_sizes(entry.get("data_offsets"), 2):
        raise CheckpointError(f"{path}: tensor {name!r} needs dtype, shape, two data_offsets, got {str(entry)[:200]}")
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise CheckpointError(f"{path}: tensor {name!r} has dtype {dtype!r}; readable are {', '.join(_DTYPES)}")
    shape, (begin, end) = entry["shape"], entry["data_offsets"]
    needed = math.prod(shape) * _DTYPES[dtype].itemsize
    if not begin <= end <= size or end - begin != needed or math.prod(filter(None, shape)) >= 2**60:
        raise CheckpointError(
            f"{path}: tensor {name!r} {dtype} {shape} needs {needed} bytes, got the range {begin}..{end} of {size}"
        )


@host
def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file: a tensor by name, each a view of the mapped file.

    Constraints: the header is a JSON object without repeated names, each range is as long as its dtype and shape say,
    and the ranges tile the data without hole, overlap or rest.
    Errors: CheckpointError, before any large allocation.
    Source: github.com/huggingface/safetensors, "Format".

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.safetensors"
    >>> header = b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'
    >>> _ = path.write_bytes(len(header).to_bytes(8, "little") + header + np.float32([1, 2]).tobytes())
    >>> read_safetensors(path)["a"].read()
    array([1., 2.], dtype=float32)
    """
    mapped = map_file(path)
    header, start = _read_header(path, mapped)
    data = mapped[start:]
    for name, entry in header.items():
        _check_entry(path, name, entry, len(data))
    reached = 0
    for begin, end in sorted(entry["data_offsets"] for entry in header.values()):
        if begin != reached:
            raise CheckpointError(f"{path}: the tensors must tile the data; one begins at {begin}, not at {reached}")
        reached = end
    if reached != len(data):
        raise CheckpointError(f"{path} holds {len(data)} bytes of data, its tensors {reached}")
    return {name: _tensor(data, entry) for name, entry in header.items()}


def _tensor(data: UInt8[Array, " bytes"], entry: Mapping[str, Any]) -> Tensor:
    dtype, shape, (begin, end) = _DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
    return Tensor(dtype.name, shape, data[begin:end].view(dtype).reshape(shape))


def _read_shards(folder: Path) -> dict[str, Tensor]:
    """Read the tensors that the index of a sharded checkpoint lists, each from the file it names."""
    index = folder / "model.safetensors.index.json"
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not files or not all(isinstance(file, str) for file in files.values()):
        raise CheckpointError(f"{index} must hold a weight_map from tensor names to file names")
    listed, tensors = dict[str, set[str]](), dict[str, Tensor]()
    for name, file in files.items():
        listed.setdefault(file, set()).add(name)
    for file in sorted(listed):
        if Path(file).name != file or "\\" in file or not file.endswith(".safetensors"):
            raise CheckpointError(f"{index} names {file!r}; a shard is a .safetensors file beside the index")
        shard = read_safetensors(folder / file)
        if shard.keys() != listed[file]:
            name = min(shard.keys() ^ listed[file])
            raise CheckpointError(f"{index} and {file} disagree: tensor {name!r} stands in only one of them")
        tensors |= shard
    return tensors


@host
def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json; ``eos_token_id`` becomes the list of ids that end a generation, generation_config.json first.

    Errors: CheckpointError when the folder has no config.json or an end token is no id.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder")
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} has no config.json: a model folder holds config.json and model.safetensors")
    config = read_json(folder / "config.json")
    eos = config.get("eos_token_id")
    if (folder / "generation_config.json").is_file():
        generation_eos = read_json(folder / "generation_config.json").get("eos_token_id")
        eos = eos if generation_eos is None else generation_eos
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not _is_sizes(ids, len(ids)):
        raise CheckpointError(f"{folder}: eos_token_id must be an id or a list of ids, got {eos!r}")
    return config if eos is None else config | {"eos_token_id": ids}


@host
def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a checkpoint folder: its config and its tensors, from one file or from the shards of an index.

    Float8 and MXFP4 tensors are joined with their scales.

    Errors: CheckpointError when config or weights are missing or damaged, a shard is missing or lies outside the
    folder, or the index and a shard disagree.
    """
    config = read_config(folder)
    if (folder / "model.safetensors").is_file():
        return config, join_scales(read_safetensors(folder / "model.safetensors"), config)
    if (folder / "model.safetensors.index.json").is_file():
        return config, join_scales(_read_shards(folder), config)
    pickled = sorted(path.name for path in folder.glob("*.bin"))
    hint = f" ({pickled[0]} is a pickle, which is never read)" if pickled else ""
    raise CheckpointError(f"{folder} has no weights: neither model.safetensors nor model.safetensors.index.json{hint}")
