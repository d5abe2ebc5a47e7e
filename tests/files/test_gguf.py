"""GGUF files: what the gguf library writes is read, what cannot be right is refused."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.blocks import FORMATS
from refimpl.contract import CheckpointError
from refimpl.files.gguf import read_gguf
from tests.files.gguf_bytes import ARRAY, STRING, entry, gguf_bytes, library_file, pair, some_blocks, text

NUMBERS = {
    "uint8": 255, "int8": -128, "uint16": 65535, "int16": -32768, "uint32": 2**32 - 1, "int32": -(2**31),
    "uint64": 2**64 - 1, "int64": -(2**63), "float32": 0.5, "float64": 0.1, "bool": True, "string": "\u6771 x",
}  # fmt: skip
F32, FLOATS = 0, np.arange(8, dtype=np.float32)


def read(tmp_path, data: bytes):
    (tmp_path / "x.gguf").write_bytes(data)
    return read_gguf(tmp_path / "x.gguf")


def refusal(tmp_path, data: bytes) -> str:
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_metadata_of_every_type():
    arrays = {"strings": ["a", "", "\u6771"], "integers": [1, 2, 3], "floats": [0.5, 1.5], "flags": [True, False]}
    written = {key: (key, value) for key, value in NUMBERS.items()} | {k: ("array", v) for k, v in arrays.items()}
    metadata, tensors = read_gguf(library_file(written, {}, {}))
    assert metadata == NUMBERS | arrays | {"general.architecture": "llama"}
    assert tensors == {}


def test_tensors_of_every_type():
    plain = {
        np.dtype(kind).name: np.arange(24).astype(kind).reshape(2, 3, 4)
        for kind in (np.float32, np.float16, np.float64, np.int8, np.int16, np.int32, np.int64)
    }
    blocks = {form: (form, some_blocks(form, 3, 2)) for form in FORMATS}
    _, tensors = read_gguf(library_file({}, plain, blocks))
    assert tensors.keys() == plain.keys() | blocks.keys()
    for name, array in plain.items():
        assert (tensors[name].format, tensors[name].shape) == (name, array.shape)
        np.testing.assert_array_equal(tensors[name].data, array)
    for form, (_, data) in blocks.items():
        assert (tensors[form].format, tensors[form].shape) == (form, (3, 2 * FORMATS[form].elements))
        np.testing.assert_array_equal(tensors[form].data, data)
        assert not tensors[form].data.flags.owndata


@pytest.mark.parametrize("form", FORMATS)
def test_matrices_of_experts_are_parts_of_the_file(form):
    data = some_blocks(form, 12, 2).reshape(4, 3, -1)
    data.flat[:: FORMATS[form].bytes] = 1  # of mxfp4: a scale that is a number
    stacked = read_gguf(library_file({}, {}, {form: (form, data)}))[1][form]
    assert stacked.shape == (4, 3, 2 * FORMATS[form].elements)
    for e in range(4):
        part = stacked.part(e)
        assert (part.format, part.shape) == (form, stacked.shape[1:]) and np.shares_memory(part.data, stacked.data)
        np.testing.assert_array_equal(part.data, data[e])
        np.testing.assert_array_equal(part.read(), stacked.read()[e])


def test_bfloat16(tmp_path):
    data = gguf_bytes([], [entry("w", (2, 1), 30, 0)], bytes([0x80, 0x3F, 0x00, 0xC0]))
    tensor = read(tmp_path, data)[1]["w"]
    assert (tensor.format, tensor.shape) == ("bfloat16", (1, 2))
    np.testing.assert_array_equal(tensor.read(), np.float32([[1, -2]]))


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [1, 8, 32, 4096])
def test_versions_and_alignments(tmp_path, version, alignment):
    pairs = [pair("general.alignment", 4, struct.pack("<I", alignment))]
    entries = [entry("a", (8,), F32, 0), entry("b", (4, 2), F32, max(32, alignment))]
    values = FLOATS.tobytes() + bytes(max(32, alignment) - 32) + FLOATS.tobytes()
    _, tensors = read(tmp_path, gguf_bytes(pairs, entries, values, version=version, alignment=alignment))
    np.testing.assert_array_equal(tensors["a"].data, FLOATS)
    np.testing.assert_array_equal(tensors["b"].data, FLOATS.reshape(2, 4))


WHOLE = gguf_bytes([pair("k", STRING, text("v"))], [entry("w", (8,), F32, 0)], FLOATS.tobytes())


def test_every_truncation_is_refused(tmp_path):
    assert read(tmp_path, WHOLE)[1]["w"].shape == (8,)
    for length in range(len(WHOLE)):
        assert refusal(tmp_path, WHOLE[:length])


def with_entries(*entries: bytes, pairs: tuple[bytes, ...] = (), data: bytes = FLOATS.tobytes() * 8, **lies) -> bytes:
    return gguf_bytes(list(pairs), list(entries), data, **lies)


LIES = {
    "magic": (gguf_bytes([], [], magic=b"GGML"), "not a GGUF file"),
    "empty": (b"", "not a GGUF file"),
    "version 1": (gguf_bytes([], [], version=1), "version 1"),
    "version 4": (gguf_bytes([], [], version=4), "version 4"),
    "big-endian": (gguf_bytes([], [], version=3 << 24), "big-endian"),
    "many pairs": (gguf_bytes([], [], keys=2**64 - 1), "truncated"),
    "many tensors": (gguf_bytes([], [], tensors=2**64 - 1), "truncated"),
    "long key": (gguf_bytes([struct.pack("<Q", 2**63) + b"k"], []), "truncated"),
    "long string": (gguf_bytes([pair("k", STRING, struct.pack("<Q", 2**62))], []), "truncated"),
    "long array": (gguf_bytes([pair("k", ARRAY, struct.pack("<IQ", 4, 2**62))], []), "array of"),
    "longer array": (gguf_bytes([pair("k", ARRAY, struct.pack("<IQ", 4, 2**20))], []), "truncated"),
    "long strings": (gguf_bytes([pair("k", ARRAY, struct.pack("<IQ", STRING, 2**20))], []), "truncated"),
    "nested array": (gguf_bytes([pair("k", ARRAY, struct.pack("<IQ", ARRAY, 1))], []), "do not nest"),
    "unknown kind": (gguf_bytes([pair("k", 13, b"\0" * 64)], []), "no metadata type 13"),
    "not UTF-8": (gguf_bytes([struct.pack("<Q", 1) + b"\xff" + b"\0" * 64], []), "UTF-8"),
    "key twice": (gguf_bytes([pair("k", 0, b"\1"), pair("k", 0, b"\1")], []), "twice"),
    "name twice": (with_entries(entry("w", (8,), F32, 0), entry("w", (8,), F32, 32)), "twice"),
    "many axes": (with_entries(entry("w", (1,) * 5, F32, 0)), "5 axes"),
    "more axes": (with_entries(text("w") + struct.pack("<I", 2**32 - 1) + b"\0" * 64), "axes"),
    "unread type": (with_entries(entry("w", (256,), 20, 0)), "tensor 'w' has type iq4_nl"),
    "unknown type": (with_entries(entry("w", (256,), 99, 0)), "tensor 'w' has type number 99"),
    "broken row": (with_entries(entry("w", (33, 2), 8, 0)), "multiple of 32"),
    "broken k row": (with_entries(entry("w", (128, 2), 12, 0)), "multiple of 256"),
    "no row": (with_entries(entry("w", (), 8, 0)), "multiple of 32"),
    "huge axes": (with_entries(entry("w", (2**62, 2**62), F32, 0)), "bytes"),
    "wrapping axes": (with_entries(entry("w", (2**32, 2**32), F32, 0)), "bytes"),
    "huge and empty": (with_entries(entry("w", (0, 2**63), F32, 0)), "shape"),
    "past the end": (with_entries(entry("w", (8,), F32, 2**40)), "got offset"),
    "over the end": (with_entries(entry("w", (128,), F32, 0)), "got offset"),
    "misaligned": (with_entries(entry("w", (2,), F32, 8)), "multiple of 32"),
    "overlap": (with_entries(entry("a", (16,), F32, 0), entry("b", (8,), F32, 32)), "got offset"),
    "part of a model": (gguf_bytes([pair("split.count", 2, struct.pack("<H", 3))], []), "one of 3 parts"),
    "alignment 0": (with_entries(pairs=(pair("general.alignment", 4, struct.pack("<I", 0)),)), "power of two"),
    "alignment 24": (with_entries(pairs=(pair("general.alignment", 4, struct.pack("<I", 24)),)), "power of two"),
    "alignment text": (with_entries(pairs=(pair("general.alignment", STRING, text("32")),)), "power of two"),
}


@pytest.mark.parametrize("name", LIES)
def test_lies_are_refused(tmp_path, name):
    data, words = LIES[name]
    assert words in refusal(tmp_path, data)


def test_a_tensor_we_cannot_read_is_named_only_where_it_is(tmp_path):
    readable = [entry("w", (8,), F32, 0)]
    assert read(tmp_path, with_entries(*readable))[1].keys() == {"w"}
    assert "'odd' has type iq2_xs" in refusal(tmp_path, with_entries(*readable, entry("odd", (256,), 17, 32)))


@given(st.lists(st.text(st.characters(codec="utf-8")), max_size=20))
def test_arrays_of_strings(strings):
    body = struct.pack("<IQ", STRING, len(strings)) + b"".join(map(text, strings))
    path = library_file({}, {}, {})
    path.write_bytes(gguf_bytes([pair("k", ARRAY, body)], []))
    assert read_gguf(path)[0] == {"k": strings}
