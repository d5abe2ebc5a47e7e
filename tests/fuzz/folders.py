"""Good model folders of every family, and ways to damage them."""

import copy
import json
import math
import random
import re
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save

from refimpl.contract import CheckpointError
from refimpl.models.families import read_spec, read_weights
from refimpl.models.gguf_names import gguf_spec, gguf_weights
from refimpl.models.tensor import Tensor
from tests.models.gguf_files import ARCHITECTURES, metadata_of, tensors_of
from tests.models.tiny import MORE

FAMILIES = Path(__file__).parents[2] / "golden" / "families"
NAMES = (*sorted(path.parent.name for path in FAMILIES.glob("*/model.safetensors")), "llama4")
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 2**31 - 1, 2**31, 2**62, 2**64, 10**400, 0.5, -0.5, 1e-30, 1e30, 1e308,
    math.nan, math.inf, -math.inf, "", "x", "gelu", "silu", "relu", "full_attention", "yarn", "fp8", [], [1], [None],
    [[]], {}, {"type": "linear"}, {"rope_type": "yarn", "factor": 1e30}, [0, 2**31], "\ud800", "\0",
)  # fmt: skip
MODEL_TYPES = {name: json.loads((FAMILIES / name / "config.json").read_text())["model_type"] for name in NAMES[:-1]}
GGUF_NAMES = tuple(  # converters know no dense layers of Qwen3-MoE
    name for name, kind in MODEL_TYPES.items() if kind in ARCHITECTURES and not name.endswith("sparse_step")
)
KINDS = ("config", "config", "asked", "asked", "tensors", "header", "index", "scales", "text")


@cache
def good(name: str) -> tuple[dict, dict[str, np.ndarray]]:
    """Return config and tensors of a folder; where the family has none, what it asks for."""
    if name != "llama4":
        folder = FAMILIES / name
        return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    return MORE[name], asked(lambda held: read_weights(held, read_spec(MORE[name])), {})


@cache
def good_gguf(name: str) -> tuple[dict, dict[str, np.ndarray]]:
    """Return metadata and tensors of a folder as a GGUF file has them."""
    config = good(name)[0]
    return metadata_of(config), tensors_of(FAMILIES / name, config)


def held(tensors: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {key: Tensor(x.dtype.name, x.shape, x) for key, x in tensors.items()}


def asked(read: Callable[[dict[str, Tensor]], object], tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors that a family asks for, as far as they are small: given ones, or new ones."""
    tensors = dict(tensors)
    for _ in range(1000):
        try:
            read(held(tensors))
            break
        except CheckpointError as error:
            missing = re.match(r"tensor (\S+?):? (?:is missing; )?expected (\[[\d, ]*\])", str(error))
            beyond = re.match(r"tensor (\S+) is not part", str(error))
            if not beyond and (not missing or math.prod(json.loads(missing[2])) > 10**5):
                break
            name = (beyond or missing)[1]
            tensors = {key: x for key, x in tensors.items() if not key.endswith(name)}
            tensors |= {} if beyond else {name: np.full(json.loads(missing[2]), 0.01, np.float32)}
    return tensors


def damaged_value(draw: random.Random, value: Any) -> Any:
    """Change a value a little, or make it odd."""
    if isinstance(value, dict) and value and draw.random() < 0.8:
        key = draw.choice(sorted(value))
        return value | {key: damaged_value(draw, value[key])}
    if isinstance(value, list) and value and draw.random() < 0.7:
        at = draw.randrange(len(value))
        return [*value[:at], damaged_value(draw, value[at]), *value[at + 1 :]]
    if isinstance(value, int | float) and draw.random() < 0.5:
        return draw.choice((value + 1, value - 1, -value, 2 * value, value / 2, float(value), str(value), [value]))
    return draw.choice(ODD)


def damaged_config(draw: random.Random, config: dict, names: list[str]) -> dict:
    """Change, drop, swap or add keys; at times, say that weights are quantised."""
    config = copy.deepcopy(config)
    for _ in range(draw.choice((1, 1, 2, 3))):
        key = draw.choice(sorted(config) or ["model_type"])
        match draw.choice(("change",) * 6 + ("drop", "swap", "add", "quantise")):
            case "change":
                config[key] = damaged_value(draw, config.get(key))
            case "drop":
                config.pop(key, None)
            case "swap":
                other = draw.choice(sorted(config) or ["model_type"])
                config[key], config[other] = config.get(other), config.get(key)
            case "add":
                config[draw.choice(names)] = draw.choice(ODD)
            case "quantise":
                method = {"quant_method": "fp8", "weight_block_size": [8, 8], "modules_to_not_convert": ["lm_head"]}
                config["quantization_config"] = damaged_value(draw, method)
    return config


def scaled(draw: random.Random, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Store some matrices as float8, or as MXFP4, with scales of which one may not fit."""
    out, wrong = dict(tensors), draw.random() < 0.6
    matrices = [name for name, x in tensors.items() if x.ndim > 1 and draw.random() < 0.4]
    for name in matrices:
        x, odd = tensors[name], wrong and draw.random() < 1.5 / len(matrices)
        if x.shape[-1] % 32 or draw.random() < 0.8:
            rows, columns = (-(-n // 8) for n in x.shape[-2:])
            shape = draw.choice(((*x.shape[:-2], rows, columns), (), (1,), (*x.shape[:-1], 1)))
            kind, ending = draw.choice((np.float32, np.float16)), draw.choice(("_scale_inv", "_scale"))
            if odd:
                shape = draw.choice((shape, (0,), (rows,), (columns, rows), (8, 1), x.shape, (1, 1, 1, 1)))
                kind = draw.choice((np.float32, ml_dtypes.float8_e8m0fnu, np.int32, np.uint8))
                ending = draw.choice((ending, "_scales", "_scale.x", ""))
            out[name] = x.astype(draw.choice((ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)))
            out[name + ending] = np.ones(shape, kind)
        else:
            del out[name]
            lead, width = x.shape[:-1], x.shape[-1] // 32 + (odd and draw.choice((-1, 0, 1)))
            size = draw.choice((16, 15, 0, 32)) if odd else 16
            out[f"{name}_blocks"] = np.zeros((*lead, width, size), np.uint8)
            out[f"{name}_scales"] = np.zeros(lead if odd and draw.random() < 0.5 else (*lead, width), np.uint8)
    return out


def damaged_tensors(draw: random.Random, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Drop, rename, reshape, turn or convert tensors."""
    out = dict(tensors)
    for _ in range(draw.randint(1, 3)):
        name = draw.choice(sorted(out))
        x = out[name]
        match draw.choice(("drop", "rename", "cut", "turn", "flat", "convert", "axes", "nothing", "odd numbers")):
            case "drop":
                del out[name]
            case "rename":
                out[draw.choice((name + "x", name[1:], name.replace("0", "1"), ""))] = out.pop(name)
            case "cut":
                out[name] = x[:-1]
            case "turn":
                out[name] = np.ascontiguousarray(x.T)
            case "flat":
                out[name] = x.reshape(-1)
            case "convert":
                out[name] = x.astype(draw.choice((np.int8, np.float64, np.float16, np.bool_, np.int64, np.uint8)))
            case "axes":
                out[name] = x[(None,) * draw.randint(1, 4)]
            case "nothing":
                out[name] = np.zeros((0, *x.shape[1:]), x.dtype)
            case "odd numbers":
                out[name] = np.full_like(x, draw.choice((math.nan, math.inf, 1e30)))
        if not out:
            break
    return out


def damaged_bytes(draw: random.Random, whole: bytes, near: int) -> bytes:
    """Cut, overwrite, insert and repeat, most of the time near the head."""
    data = bytearray(whole)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(min(near, len(data)) if draw.random() < 0.8 else len(data))
        match draw.choice(("byte", "digit", "number", "cut", "insert", "delete", "repeat")):
            case "byte":
                data[at] = draw.randrange(256)
            case "digit":
                digits = [i for i in range(8, min(near, len(data))) if chr(data[i]).isdigit()]
                if digits:
                    data[draw.choice(digits)] = draw.choice(b"0123456789")
            case "number":
                data[at : at + 8] = struct.pack("<Q", draw.choice((0, 1, 2**31, 2**62, 2**64 - 1, len(data))))
            case "cut":
                del data[max(at, 1) :]
            case "insert":
                data[at:at] = bytes(draw.randrange(256) for _ in range(draw.randrange(40)))
            case "delete":
                del data[at : at + draw.randint(1, 40)]
            case "repeat":
                data[at:at] = data[at : at + draw.randint(1, 80)]
        data = data or bytearray(b"\0")
    return bytes(data)


def write_damaged(folder: Path, name: str, seed: int) -> Path:
    """Write a damaged folder of a family."""
    draw = random.Random(f"{name} {seed}")
    config, tensors = good(name)
    kind = draw.choice(KINDS)
    known = sorted({key for other in NAMES for key in good(other)[0]})
    if kind == "config":
        config = damaged_config(draw, config, known)
    elif kind == "asked":
        config = damaged_config(draw, config, known)
        tensors = asked(lambda held: read_weights(held, read_spec(config)), tensors)
    elif kind == "tensors":
        tensors = damaged_tensors(draw, tensors)
    elif kind == "scales":
        tensors = scaled(draw, tensors)
        config = config | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [8, 8]}}
    data, text = save(tensors), json.dumps(config)
    if kind == "text":
        text = damaged_bytes(draw, text.encode("utf-8", "surrogatepass"), len(text)).decode("latin-1")
    if kind == "header":
        data = damaged_bytes(draw, data, 8 + int.from_bytes(data[:8], "little"))
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    if kind != "index":
        (folder / "model.safetensors").write_bytes(data)
        return folder
    parts = [dict(list(tensors.items())[i::2]) for i in range(2)]
    for i, part in enumerate(parts):
        (folder / f"part-{i}.safetensors").write_bytes(save(part))
    files = {key: f"part-{i}.safetensors" for i, part in enumerate(parts) for key in part}
    index = {"metadata": {"total_size": 1}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(damaged_value(draw, index)))
    return folder


def damaged_gguf(name: str, seed: int) -> tuple[dict, dict[str, np.ndarray]]:
    """Return metadata and tensors of a GGUF file whose makers erred."""
    draw = random.Random(f"gguf {name} {seed}")
    metadata, tensors = good_gguf(name)
    metadata = dict(metadata)
    for _ in range(draw.choice((1, 1, 2, 3))):
        key, other = draw.choice(sorted(metadata)), draw.choice(sorted(metadata))
        match draw.choice(("change", "change", "change", "drop", "swap", "add", "architecture")):
            case "change":
                metadata[key] = damaged_value(draw, metadata[key])
            case "drop":
                del metadata[key]
            case "swap":
                metadata[key], metadata[other] = metadata[other], metadata[key]
            case "add":
                place = draw.choice(GGUF_NAMES)
                arch, own = ARCHITECTURES[MODEL_TYPES[name]], ARCHITECTURES[MODEL_TYPES[place]]
                added = {key.replace(f"{own}.", f"{arch}."): value for key, value in good_gguf(place)[0].items()}
                key = draw.choice(sorted(added))
                metadata[key] = damaged_value(draw, added[key]) if draw.random() < 0.5 else added[key]
            case "architecture":
                metadata["general.architecture"] = draw.choice((*ARCHITECTURES.values(), "mamba", "", 7, None))
        if not metadata:
            break
    if draw.random() < 0.2:
        return metadata, damaged_tensors(draw, tensors)
    if draw.random() < 0.5:
        tensors = asked(lambda held: gguf_weights(metadata, held, gguf_spec(metadata, held)), tensors)
    return metadata, tensors
