"""Writers of blocks against the bytes of the gguf package, and the laws of every format."""

import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refimpl.blocks import FORMATS, LAYOUTS, pack_fields, read_codes, read_scales, unpack_fields, write_codes
from refimpl.contract import ContractError
from refimpl.llm.block_writers import quantize
from refimpl.llm.quantize import dequantize
from tests.laws.strategies import DTYPES, normal, seeds

NARROW = [name for name, form in FORMATS.items() if form.elements == 32]
SIGNED = ["q8_0", "q4_0", "q5_0", "q3_k", "q6_k", "mxfp4"]
STEPS = {  # of the larger end of a block, and how often that a step is: codes on both sides of 0, or on one
    "q8_0": 127, "q4_0": 8, "q4_1": 15, "q5_0": 16, "q5_1": 31, "q2_k": 3, "q3_k": 4, "q4_k": 15, "q5_k": 31,
    "q6_k": 32, "mxfp4": 4,
}  # fmt: skip
of_a_format = settings(max_examples=max(10, settings.default.max_examples // 8))
tails = st.sampled_from((1.0, 1e-3, 1e3))


def each_format(test):
    return pytest.mark.parametrize("name", FORMATS)(test)


def weights(seed: int, rows: int, blocks: int, name: str, dtype=np.float32) -> np.ndarray:
    return normal(seed, rows, blocks * FORMATS[name].elements, dtype=dtype)


@pytest.mark.parametrize("name", NARROW)
@of_a_format
@given(seed=seeds, rows=st.integers(1, 3), blocks=st.integers(1, 3), scale=tails)
def test_quantize_gives_the_bytes_of_gguf(name, seed, rows, blocks, scale):
    w = weights(seed, rows, blocks, name) * np.float32(scale)
    assert np.array_equal(quantize(w, name), gguf.quants.quantize(w, gguf.GGMLQuantizationType[name.upper()]))


@each_format
@of_a_format
@given(seed=seeds, blocks=st.integers(1, 2), scale=tails)
def test_quantize_is_off_by_less_than_a_step_of_the_largest(name, seed, blocks, scale):
    w = weights(seed, 1, blocks, name) * np.float32(scale)
    off = np.abs(dequantize(quantize(w, name), name) - w).reshape(blocks, -1).max(-1)
    ends = np.ptp(np.pad(w.reshape(blocks, -1), ((0, 0), (0, 1))), axis=-1) if name not in SIGNED else None
    reach = np.abs(w).reshape(blocks, -1).max(-1) if ends is None else ends
    assert (off <= (2.0 if name.endswith("_k") else 1.01) * reach / STEPS[name]).all()


@pytest.mark.parametrize("name", ["q8_0", "q4_1", "q5_1"])
@of_a_format
@given(seed=seeds, scale=tails)
def test_quantize_is_off_by_half_a_step_where_every_code_is_there(name, seed, scale):
    w = weights(seed, 2, 2, name) * np.float32(scale)
    blocks = quantize(w, name)
    d = read_scales(blocks.view(LAYOUTS[name]), name)[0].repeat(32, axis=-1).reshape(w.shape)
    assert (np.abs(dequantize(blocks, name) - w) <= (0.5 + STEPS[name] * 2.0**-10) * np.abs(d)).all()


@pytest.mark.parametrize("name", NARROW)
@of_a_format
@given(seed=seeds, exponent=st.integers(-6, 6))
def test_what_was_read_is_written_again_to_the_bit(name, seed, exponent):
    w = dequantize(quantize(weights(seed, 2, 1, name) * np.float32(2.0**exponent), name), name)
    assert np.array_equal(dequantize(quantize(w, name), name), w)


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q5_0"])
@of_a_format
@given(seed=seeds)
def test_weights_on_the_grid_stay(name, seed):
    most = {"q8_0": 127, "q4_0": 8, "q5_0": 16}[name]
    codes = np.random.default_rng(seed).integers(1 - most, most, (2, 32)).astype(np.float32)
    codes[:, 5] = -most
    assert np.array_equal(dequantize(quantize(codes * np.float32(0.25), name), name), codes * np.float32(0.25))


@each_format
@of_a_format
@given(seed=seeds, exponent=st.integers(-3, 6))
def test_quantize_moves_with_powers_of_two(name, seed, exponent):
    w = weights(seed, 1, 2, name)
    power = np.float32(2.0**exponent)
    assert np.array_equal(dequantize(quantize(w * power, name), name), dequantize(quantize(w, name), name) * power)


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q5_0", "q6_k", "mxfp4"])
@of_a_format
@given(seed=seeds)
def test_quantize_turns_with_the_sign(name, seed):
    w = weights(seed, 1, 2, name)
    assert np.array_equal(dequantize(quantize(-w, name), name), -dequantize(quantize(w, name), name))


@each_format
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_quantize_of_a_row_does_not_depend_on_the_others(name, dtype):
    w = weights(0, 3, 1, name, dtype)
    blocks = quantize(w, name)
    assert blocks.shape == (3, FORMATS[name].bytes) and blocks.dtype == np.uint8
    assert np.array_equal(blocks, np.concatenate([quantize(w[i : i + 1], name) for i in range(3)]))
    if dtype in (np.float16, ml_dtypes.bfloat16):
        assert np.array_equal(blocks, quantize(w.astype(np.float32), name))


@each_format
def test_quantize_keeps_zeros_and_loses_what_float16_cannot_scale(name):
    zeros = np.zeros((2, FORMATS[name].elements), np.float32)
    tiny = weights(0, 2, 1, name)
    for w in (zeros, -zeros, *(tiny * np.float32(size) for size in (1e-41, 1e-30, 1e-14) if name != "mxfp4")):
        assert not dequantize(quantize(w, name), name).any()
    mixed = weights(1, 1, 1, name)
    mixed[0, ::3] = 0
    assert not dequantize(quantize(mixed, name), name)[0, ::3].any() or name in ("q4_1", "q5_1", "q2_k", "q4_k", "q5_k")
    assert quantize(zeros[:0], name).shape == (0, FORMATS[name].bytes) and quantize(zeros[:, :0], name).shape == (2, 0)


@each_format
def test_quantize_holds_a_number_that_all_share_and_one_that_is_alone(name):
    w = np.full((1, FORMATS[name].elements), np.float32(0.3))
    off = 0.25 if name == "mxfp4" else 0.04  # of a number between two floats of four bits, or beyond the last
    np.testing.assert_allclose(dequantize(quantize(w, name), name), w, rtol=off)
    np.testing.assert_allclose(dequantize(quantize(-w, name), name), -w, rtol=off)
    alone = np.zeros_like(w)
    alone[0, 7] = 1000
    got = dequantize(quantize(alone, name), name)
    assert abs(got[0, 7] - 1000) <= (250 if name == "mxfp4" else 20) and not np.delete(got, 7).any()


@pytest.mark.parametrize("name", ["q3_k", "q6_k", "q2_k", "q4_k", "q5_k"])
@of_a_format
@given(seed=seeds)
def test_search_is_no_worse_than_the_ends(name, seed):
    """Over a block of many groups, searched scales err less than those that reach from end to end."""
    w = weights(seed, 1, 4, name)
    step = {"q3_k": 8, "q6_k": 64, "q2_k": 3, "q4_k": 15, "q5_k": 31}[name]
    groups = w.reshape(-1, 16 if name in ("q3_k", "q6_k", "q2_k") else 32)
    if name in SIGNED:
        d, m = 2 * np.abs(groups).max(-1, keepdims=True) / (step - 1), 0
    else:
        m = np.minimum(groups.min(-1, keepdims=True), 0)
        d = (groups.max(-1, keepdims=True) - m) / step
    plain = np.rint((groups - m) / d) * d + m
    off = dequantize(quantize(w, name), name) - w
    assert np.square(off).sum() < 1.1 * np.square(plain - groups).sum()


@given(seeds, st.sampled_from([(4, 1), (4, 8), (4, 16), (2, 32), (1, 1), (1, 32)]))
def test_fields_are_found_where_they_are_put(seed, form):
    bits, run = form
    packed = np.random.default_rng(seed).integers(0, 256, (2, 2 * run), np.uint8)
    assert np.array_equal(pack_fields(unpack_fields(packed, bits, run), bits, run), packed)


@each_format
@of_a_format
@given(seed=seeds)
def test_codes_are_read_as_they_were_written(name, seed):
    bytes_ = np.random.default_rng(seed).integers(0, 256, (2, FORMATS[name].bytes), np.uint8)
    block = bytes_.view(LAYOUTS[name])
    again = block.copy()
    for field in {"q", "low", "high"} & set(LAYOUTS[name].names or ()):
        again[field] = 0
    write_codes(again, name, read_codes(block, name))
    assert np.array_equal(read_codes(again, name), read_codes(block, name))
    assert again.tobytes() == block.tobytes() or name == "mxfp4"  # which has a second 0


@pytest.mark.parametrize(
    ("label", "call"),
    [
        ("C1", lambda: quantize(np.zeros((1, 32), np.float32), "q9_9")),
        ("C2", lambda: quantize(np.zeros((1, 33), np.float32), "q4_0")),
        ("C2", lambda: quantize(np.zeros((1, 32), np.float32), "q4_k")),
        *(("C3", lambda v=value, n=name: quantize(np.full((1, 256), v, np.float32), n)) for name in FORMATS
          for value in (np.nan, np.inf, -np.inf, 3e38) if (name, value) != ("mxfp4", 3e38)),
    ],
)  # fmt: skip
def test_quantize_refuses(label, call):
    with pytest.raises(ContractError, match=f"^{label}: "):
        call()
