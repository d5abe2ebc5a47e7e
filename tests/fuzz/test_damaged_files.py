"""Damaged files are read or refused with CheckpointError: quickly, and without a large allocation."""

import json
import struct
import tracemalloc
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from refimpl.blocks import FORMATS
from refimpl.contract import CheckpointError
from refimpl.files.charsmap import read_charsmap
from refimpl.files.checkpoint import read_folder, read_safetensors
from refimpl.files.gguf import read_gguf
from refimpl.files.sentencepiece_model import read_sentencepiece
from refimpl.files.tokenizer import Tokenizer, tokenizer_from_folder, tokenizer_from_gguf
from tests.files.gguf_bytes import library_file, some_blocks
from tests.tokenizer import pieces, trained
from tests.tokenizer.test_sentencepiece import trained as sentencepiece_trained
from tests.tokenizer.trained import gguf_metadata, write

FOLDER = Path(mkdtemp(prefix="damaged-"))
LARGE = 2**20
METADATA = [*map(gguf_metadata, ("gpt-2", "llama-bpe")), *map(pieces.metadata, ("llama", "t5", "bert"))]
TABLE = "tokenizer.ggml.precompiled_charsmap"
NUMBERS = st.sampled_from([0, 1, 2**31 - 1, 2**32 - 1, 2**62, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)


@cache
def sentencepiece_model() -> bytes:
    return sentencepiece_trained("T5")


@cache
def safetensors_file() -> bytes:
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b.c": np.ones((4,), np.float16), "d": np.ones(())}
    return save(tensors, metadata={"format": "np"})


@cache
def gguf_file() -> bytes:
    metadata = {"a.text": ("string", "value"), "a.list": ("array", ["x", "y", "zz"]), "a.count": ("uint32", 7)}
    tensors = {"plain": np.ones((2, 8), np.float32), "half": np.ones(4, np.float16)}
    blocks = {form: (form, some_blocks(form, 2, 1)) for form in FORMATS}
    return library_file(metadata, tensors, blocks).read_bytes()


@st.composite
def damaged(draw, whole: bytes) -> bytes:
    """Cut, lengthen, overwrite and shuffle a good file, most of the time near its head."""
    data = bytearray(whole)
    near = st.integers(0, min(len(data), 600) - 1) | st.integers(0, len(data) - 1)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(near)
        match draw(st.sampled_from(["byte", "number", "cut", "insert", "delete", "repeat"])):
            case "byte":
                data[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "number":
                data[at : at + 8] = struct.pack("<Q", draw(NUMBERS))
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(max_size=40))
            case "delete":
                del data[at : at + draw(st.integers(1, 40))]
            case "repeat":
                data[at:at] = data[at : at + draw(st.integers(1, 80))]
        if not data:
            break
        near = st.integers(0, len(data) - 1)
    return bytes(data)


def check_reading(read, path: Path, data: bytes) -> None:
    """Demand a CheckpointError or a result whose tensors lie in the file, and little memory either way."""
    path.write_bytes(data)
    tracemalloc.start()
    try:
        tensors = read(path)
    except CheckpointError as error:
        assert str(error)
    else:
        assert sum(tensor.data.nbytes for tensor in tensors.values()) <= len(data)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < LARGE


@settings(max_examples=200)
@given(data=damaged(safetensors_file()))
def test_safetensors(data):
    check_reading(read_safetensors, FOLDER / "model.safetensors", data)


@settings(max_examples=300)
@given(data=damaged(gguf_file()))
def test_gguf(data):
    check_reading(lambda path: read_gguf(path)[1], FOLDER / "model.gguf", data)


@given(data=st.binary(max_size=200))
@pytest.mark.parametrize("head", [b"", b"GGUF\3\0\0\0", b"\x40\0\0\0\0\0\0\0{"])
def test_noise(head, data):
    check_reading(read_safetensors, FOLDER / "noise.safetensors", head + data)
    check_reading(lambda path: read_gguf(path)[1], FOLDER / "noise.gguf", head + data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def changed(draw, tree):
    """Replace one node of a JSON tree, chosen on a walk from its root, or drop it."""
    if isinstance(tree, dict) and tree and draw(st.integers(0, 5)):
        key = draw(st.sampled_from(sorted(tree)))
        rest = {name: value for name, value in tree.items() if name != key}
        return rest if draw(st.integers(0, 5)) == 0 else rest | {key: draw(changed(tree[key]))}
    if isinstance(tree, list) and tree and draw(st.integers(0, 5)):
        at = draw(st.integers(0, len(tree) - 1))
        return [*tree[:at], draw(changed(tree[at])), *tree[at + 1 :]]
    return draw(JSON)


def described(kind: str) -> dict:
    return json.loads((pieces if kind in pieces.KINDS else trained).train(kind).to_str())


@settings(max_examples=300)
@given(tree=st.sampled_from(["llama-bpe", "qwen2", "staged", *pieces.KINDS]).map(described).flatmap(changed))
def test_tokenizer_json(tree):
    try:
        tokenizer = tokenizer_from_folder(write(tree))
    except CheckpointError as error:
        assert str(error)
    else:
        check_use(tokenizer)


def check_use(tokenizer: Tokenizer) -> None:
    """Demand ids and text, or a CheckpointError."""
    try:
        assert isinstance(tokenizer.decode(tokenizer.encode("some text, 12")), str)
    except CheckpointError as error:
        assert str(error)


@settings(max_examples=200)
@given(metadata=st.sampled_from(METADATA).flatmap(changed))
def test_tokenizer_metadata(metadata):
    try:
        tokenizer = tokenizer_from_gguf(metadata if isinstance(metadata, dict) else {})
    except CheckpointError as error:
        assert str(error)
    else:
        assert tokenizer is None or check_use(tokenizer) is None


@pytest.mark.parametrize("table", [b"", bytes(read_sentencepiece(sentencepiece_model())[TABLE][:4096])])
@settings(max_examples=100)
@given(data=st.data())
def test_tables_of_characters(table, data):
    damage = data.draw(damaged(table or bytes(64)))
    try:
        normalize = read_charsmap(damage)
    except CheckpointError as error:
        assert str(error)
    else:
        assert isinstance(normalize("some ﬁne\u0301 text\t\u2167"), str)


@settings(max_examples=200)
@given(data=damaged(sentencepiece_model()))
def test_sentencepiece_models(data):
    folder = FOLDER / "pieces"
    folder.mkdir(exist_ok=True)
    (folder / "spiece.model").write_bytes(data)
    try:
        tokenizer = tokenizer_from_folder(folder)
    except CheckpointError as error:
        assert str(error)
    else:
        check_use(tokenizer)


CONFIG = {"model_type": "llama", "eos_token_id": [2], "rope_scaling": None}
INDEX = {"weight_map": {"a": "x.safetensors"}}


@given(config=changed(CONFIG), index=changed(INDEX))
def test_folders(config, index):
    (FOLDER / "folder").mkdir(exist_ok=True)
    (FOLDER / "folder" / "config.json").write_text(json.dumps(config))
    (FOLDER / "folder" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError):
        read_folder(FOLDER / "folder")
