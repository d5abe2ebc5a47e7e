"""Checkpoint folders: what the safetensors library writes is read, what cannot be right is refused."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from safetensors.numpy import save_file

from refimpl.contract import CheckpointError
from refimpl.files.checkpoint import read_config, read_folder, read_json, read_safetensors

DTYPES = [
    np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.int32, np.int16, np.int8,
    np.uint64, np.uint32, np.uint16, np.uint8, np.bool_,
]  # fmt: skip
W = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float16)}
CONFIG = {"model_type": "llama", "eos_token_id": 2}


def folder_of(tmp_path: Path, config: dict | None = CONFIG, **shards: dict) -> Path:
    """Write a folder: a config, and a file for each keyword (``single`` is the file of an unsharded checkpoint)."""
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    for name, tensors in shards.items():
        save_file(tensors, tmp_path / ("model.safetensors" if name == "single" else f"{name}.safetensors"))
    return tmp_path


def index(folder: Path, weight_map: object) -> Path:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def refusal(read, *arguments) -> str:
    """Return the one line of the refusal."""
    with pytest.raises(CheckpointError) as caught:
        read(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@given(data=st.data())
def test_the_library_s_files_are_read(dtype, data, tmp_path_factory):
    shapes = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    shaped = data.draw(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), shapes, max_size=4))
    shaped.pop("__metadata__", None)
    counts = {name: np.arange(np.prod(shape, dtype=int)) % 2 for name, shape in shaped.items()}
    tensors = {name: count.astype(dtype).reshape(shaped[name]) for name, count in counts.items()}
    path = tmp_path_factory.mktemp("library") / "model.safetensors"
    save_file(tensors, path, metadata={"format": "np"})
    read = read_safetensors(path)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (read[name].format, read[name].shape) == (np.dtype(dtype).name, tensor.shape)
        np.testing.assert_array_equal(read[name].data, tensor)


def test_tensors_are_views_of_the_file(tmp_path):
    tensor = read_folder(folder_of(tmp_path, single=W))[1]["a"]
    assert not tensor.data.flags.owndata and not tensor.data.flags.writeable


def test_floats_of_eight_bits(tmp_path):
    listed = {"a": ("F8_E4M3", [0, 2]), "b": ("F8_E5M2", [2, 3])}
    entries = {n: {"dtype": d, "shape": [r[1] - r[0]], "data_offsets": r} for n, (d, r) in listed.items()}
    header = json.dumps(entries).encode()
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes([0x38, 0xC0, 0x3C]))
    read = read_safetensors(tmp_path / "x.safetensors")
    np.testing.assert_array_equal(read["a"].read(), np.float32([1, -2]))
    np.testing.assert_array_equal(read["b"].read(), np.float32([1]))


def test_single_and_sharded_folders_agree(tmp_path):
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir()
    _, one = read_folder(folder_of(tmp_path / "one", single=W))
    two = folder_of(tmp_path / "two", first={"a": W["a"]}, second={"b": W["b"]})
    _, sharded = read_folder(index(two, {"a": "first.safetensors", "b": "second.safetensors"}))
    assert one.keys() == sharded.keys()
    for name in one:
        np.testing.assert_array_equal(one[name].data, sharded[name].data)


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ({"a": "first.safetensors", "b": "third.safetensors"}, "third.safetensors"),
        ({"a": "first.safetensors", "b": "first.safetensors"}, "tensor 'b'"),
        ({"a": "second.safetensors", "b": "first.safetensors"}, "disagree"),
        ({"a": "first.safetensors"} | {"c": "second.safetensors"}, "disagree"),
        ({"a": "../first.safetensors"}, "beside the index"),
        ({"a": "/first.safetensors"}, "beside the index"),
        ({"a": "..\\first.safetensors"}, "beside the index"),
        ({"a": ".."}, "beside the index"),
        ({"a": ""}, "beside the index"),
        ({"a": 7}, "weight_map"),
        ({}, "weight_map"),
        ([], "weight_map"),
        (None, "weight_map"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_index_that_lies(tmp_path, weight_map, words):
    (tmp_path / "inner").mkdir()
    folder_of(tmp_path, first={"a": W["a"]})
    folder = folder_of(tmp_path / "inner", first={"a": W["a"]}, second={"b": W["b"]})
    assert words in refusal(read_folder, index(folder, weight_map))


def test_folders_that_are_none(tmp_path):
    assert "is not a folder" in refusal(read_folder, tmp_path / "nowhere")
    assert "has no config.json" in refusal(read_folder, tmp_path)
    assert "has no weights" in refusal(read_folder, folder_of(tmp_path))
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert "pytorch_model.bin is a pickle" in refusal(read_folder, tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", "nothing", '{"a": 1', "[" * 100_000, "\ufeff{}", '"x"'])
def test_configs_that_are_none(tmp_path, text):
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    assert "config.json" in refusal(read_config, tmp_path)


def test_bytes_that_are_not_utf8(tmp_path):
    (tmp_path / "config.json").write_bytes(b'{"a": "\xff"}')
    assert "is not JSON" in refusal(read_json, tmp_path / "config.json")


@pytest.mark.parametrize(
    ("config", "generation", "ids"),
    [
        ({}, None, []), ({"eos_token_id": 2}, None, [2]), ({"eos_token_id": [2, 3]}, None, [2, 3]),
        ({"eos_token_id": 2}, {}, [2]), ({"eos_token_id": 2}, {"eos_token_id": None}, [2]),
        ({"eos_token_id": 2}, {"eos_token_id": [7, 8]}, [7, 8]), ({}, {"eos_token_id": 9}, [9]),
    ],
)  # fmt: skip
def test_ends_of_a_generation(tmp_path, config, generation, ids):
    folder = folder_of(tmp_path, config)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    assert read_config(folder).get("eos_token_id", []) == ids


@pytest.mark.parametrize("eos", ["2", 2.0, -1, [[2]], {"id": 2}, True])
def test_ends_that_are_no_ids(tmp_path, eos):
    assert "eos_token_id" in refusal(read_config, folder_of(tmp_path, {"eos_token_id": eos}))


def test_files_that_cannot_be_read(tmp_path):
    assert "cannot be read" in refusal(read_safetensors, tmp_path / "nowhere.safetensors")
    assert "cannot be read" in refusal(read_safetensors, tmp_path)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4096\n")
    assert "Git LFS pointer" in refusal(read_safetensors, tmp_path / "model.safetensors")
