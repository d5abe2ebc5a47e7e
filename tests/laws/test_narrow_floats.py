"""Numbers of few bits: every code against ml_dtypes, scales against plain loops, MXFP4 and NVFP4 against gguf."""

import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.contract import ContractError
from refimpl.llm.fp4 import dequantize_mxfp4, dequantize_nvfp4, quantize_mxfp4, quantize_nvfp4
from refimpl.llm.narrow_floats import NUMBERS, decode, dequantize_linear, encode, quantize_absmax, quantize_linear
from tests.laws.strategies import DTYPES, normal, seeds

FLOATS = {"e4m3": 256, "e5m2": 256, "e2m1": 16}
formats = st.sampled_from(sorted(NUMBERS))
floats = st.sampled_from(sorted(FLOATS))
blocks = st.sampled_from([None, (1, 8), (2, 4), (16, 16), (3, 1)])


@pytest.mark.parametrize("format", FLOATS)
def test_every_code_is_its_number_and_comes_back(format):
    codes = np.arange(FLOATS[format], dtype=np.uint8)
    numbers = decode(codes, format)
    sign, size = codes >> (3 if format == "e2m1" else 7), codes & (7 if format == "e2m1" else 127)
    mantissa = {"e4m3": 3, "e5m2": 2, "e2m1": 1}[format]
    bias = {"e4m3": 7, "e5m2": 15, "e2m1": 1}[format]
    exponent = np.maximum(size >> mantissa, 1).astype(int) - bias
    wanted = (((size & 2**mantissa - 1) / 2**mantissa + (size >> mantissa > 0)) * 2.0**exponent) * (1.0 - 2 * sign)
    there = np.abs(wanted) <= NUMBERS[format][1]
    assert np.array_equal(numbers[there], wanted[there]) and not np.isfinite(numbers[~there]).any()
    assert np.array_equal(encode(numbers[there], format), codes[there])


@given(seeds, floats)
def test_encode_takes_the_nearest_and_of_two_the_even_code(seed, format):
    table = decode(np.arange(FLOATS[format], dtype=np.uint8), format)
    finite = np.sort(table[np.abs(table) <= NUMBERS[format][1]])
    middle = (finite[1:] + finite[:-1]) / 2
    x = np.concatenate([np.random.default_rng(seed).uniform(finite[0], finite[-1], 32), middle]).astype(np.float32)
    codes = encode(x, format)
    off = np.abs(decode(codes, format).astype(np.float64) - x)
    assert np.array_equal(off, np.abs(finite.astype(np.float64) - x[:, None]).min(-1))
    assert (codes[32:] % 2 == 0).all()


@given(seeds, formats, blocks)
def test_quantize_linear_by_scalars(seed, format, block):
    draws = np.random.default_rng(seed)
    x = (draws.standard_normal((5, 9)) * 20).astype(np.float32)
    rows, columns = block or (1, 1)
    scale = draws.uniform(0.25, 4, (-(-5 // rows), -(-9 // columns))).astype(np.float32)
    least, largest, held = NUMBERS[format]
    zero = None if format in FLOATS else draws.integers(max(least, -5), min(largest, 9) + 1, scale.shape).astype(held)
    q = quantize_linear(x, scale, zero, format=format, block=(rows, columns))
    y = dequantize_linear(q, scale, zero, format=format, block=(rows, columns))
    assert q.dtype == held and q.shape == x.shape and y.dtype == np.float32
    for i, j in np.ndindex(*x.shape):
        step = scale[i // rows, j // columns]
        ratio, offset = x[i, j] / step, 0 if zero is None else int(zero[i // rows, j // columns])
        if format in FLOATS:
            code = encode(ratio, format)
            number = decode(code, format) * step
        else:
            code = min(max(round(float(ratio)) + offset, least), largest)
            number = np.float32(code - offset) * step
        assert q[i, j] == code and y[i, j] == number


@given(seeds, formats)
def test_a_scale_along_no_axis_one_or_all_is_the_same_number(seed, format):
    x = (normal(seed, 3, 4) * 5).astype(np.float32)
    q = quantize_linear(x, np.float32(0.5), format=format)
    y = dequantize_linear(q, np.float32(0.5), format=format)
    for shape in ((), (1,), (4,), (3, 1), (3, 4)):
        scale = np.full(shape, np.float32(0.5))
        assert np.array_equal(quantize_linear(x, scale, format=format), q)
        assert np.array_equal(dequantize_linear(q, scale, format=format), y)


@given(seeds, formats)
def test_dequantize_linear_of_codes_comes_back(seed, format):
    least, largest, held = NUMBERS[format]
    ends = (0, 8) if format in FLOATS else (int(least), int(largest) + 1)
    q = np.random.default_rng(seed).integers(*ends, (3, 5)).astype(held)
    scale = np.float32([[0.25], [1], [8]])
    assert np.array_equal(quantize_linear(dequantize_linear(q, scale, format=format), scale, format=format), q)


@pytest.mark.parametrize("format", NUMBERS)
def test_quantize_linear_has_an_answer_for_every_number(format):
    x = np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38, 0, -0.0])
    q = quantize_linear(x, np.float32(1), format=format)
    y = dequantize_linear(q, np.float32(1), format=format)
    least, largest, _ = NUMBERS[format]
    assert np.isnan(y[0]) if format in ("e4m3", "e5m2") else y[0] == 0
    assert y[1:].tolist() == [largest, least, largest, least, 0, 0]
    assert not dequantize_linear(quantize_linear(x, np.float32(0), format=format), np.float32(1), format=format).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dequantize_linear_has_the_dtype_of_its_scales(dtype):
    q, scale = np.int8([[3, -5]]), np.array([[0.3]], dtype)
    got = dequantize_linear(q, scale)
    wide = np.float64 if dtype == np.float64 else np.float32
    assert got.dtype == dtype and np.array_equal(got, (q.astype(wide) * scale.astype(wide)).astype(dtype))
    narrow = normal(0, 2, 33, dtype=dtype)
    assert np.array_equal(quantize_absmax(narrow)[0], quantize_absmax(narrow.astype(wide))[0])


@given(seeds, formats, blocks)
def test_quantize_absmax_is_off_by_half_a_step(seed, format, block):
    x = normal(seed, 5, 19, dtype=np.float32)
    q, scale = quantize_absmax(x, format=format, block=block)
    rows, columns = block or (1, 19)
    assert scale.shape == (-(-5 // rows), -(-19 // columns))
    y = dequantize_linear(q, scale, format=format, block=(rows, columns))
    steps = scale[np.ix_(np.arange(5) // rows, np.arange(19) // columns)].astype(np.float64)
    if format in FLOATS:
        relative = 2.0 ** -({"e4m3": 4, "e5m2": 3, "e2m1": 2}[format])
        least = {"e4m3": 2.0**-10, "e5m2": 2.0**-17, "e2m1": 0.25}[format]
        assert (np.abs(y - x) <= (np.maximum(relative * np.abs(x), least * steps)) * (1 + 1e-5)).all()
    elif NUMBERS[format][0] < 0:
        assert (np.abs(y - x) <= (0.5 + 1e-5 * NUMBERS[format][1]) * steps).all()
    for i, j in np.ndindex(*scale.shape):
        part = x[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
        assert scale[i, j] == np.abs(part).max() / np.float32(NUMBERS[format][1])


@given(seeds, st.sampled_from(["int8", "e4m3", "e5m2", "e2m1"]), blocks, st.integers(-6, 6))
def test_quantize_absmax_turns_with_the_sign_and_moves_with_powers_of_two(seed, format, block, exponent):
    x, power = normal(seed, 4, 16, dtype=np.float32), np.float32(2.0**exponent)
    q, scale = quantize_absmax(x, format=format, block=block)
    other, other_scale = quantize_absmax(-x * power, format=format, block=block)
    one = np.float32(1)
    assert np.array_equal(other_scale, scale * power)
    assert np.array_equal(dequantize_linear(other, one, format=format), -dequantize_linear(q, one, format=format))


@given(seeds)
def test_quantize_absmax_of_a_row_does_not_depend_on_the_others(seed):
    x = normal(seed, 3, 40, dtype=np.float32)
    for row in range(3):
        alone, scale = quantize_absmax(x[row : row + 1])
        assert np.array_equal(alone, quantize_absmax(x)[0][row : row + 1])
        assert np.array_equal(scale, quantize_absmax(x)[1][row : row + 1])


@given(seeds)
def test_a_linear_map_of_int8_rows_is_near_the_linear_map(seed):
    """W8A8: the scales of a token and of an output come out of the sum of whole numbers."""
    x, w = normal(seed, 3, 64, dtype=np.float32), normal(seed + 1, 5, 64, dtype=np.float32)
    (q_x, scale_x), (q_w, scale_w) = quantize_absmax(x), quantize_absmax(w)
    got = (q_x.astype(np.int32) @ q_w.astype(np.int32).T) * scale_x * scale_w.T
    assert np.linalg.norm(got - x @ w.T) < 0.02 * np.linalg.norm(x @ w.T)


@given(seeds, st.integers(1, 3), st.integers(1, 3), st.sampled_from((1, 2, 4, 8, 16)))
def test_mxfp4_is_read_as_gguf_reads_it_and_as_it_was_written(seed, rows, count, run):
    draws = np.random.default_rng(seed)
    packed, scale = draws.integers(0, 256, (rows, 16 * count), np.uint8), draws.integers(2, 250, (rows, count))
    scale = scale.astype(np.uint8)
    together = np.concatenate([scale[..., None], packed.reshape(rows, count, 16)], axis=-1).reshape(rows, -1)
    wanted = gguf.quants.dequantize(together, gguf.GGMLQuantizationType.MXFP4)
    assert np.array_equal(dequantize_mxfp4(packed, scale, run=16), wanted)
    w = normal(seed, rows, 32 * count, dtype=np.float32)
    assert np.array_equal(dequantize_mxfp4(*quantize_mxfp4(w, run=run), run=run), dequantize_mxfp4(*quantize_mxfp4(w)))


@given(seeds, st.integers(1, 3), st.integers(1, 3))
def test_nvfp4_is_read_as_gguf_reads_it(seed, rows, count):
    draws = np.random.default_rng(seed)
    packed = draws.integers(0, 256, (rows, 32 * count), np.uint8)
    scale = draws.integers(0, 127, (rows, 4 * count)).astype(np.uint8)
    together = np.concatenate([scale.reshape(rows, count, 4), packed.reshape(rows, count, 32)], axis=-1)
    wanted = gguf.quants.dequantize(together.reshape(rows, -1), gguf.GGMLQuantizationType.NVFP4)
    assert np.array_equal(dequantize_nvfp4(packed, scale, np.float32(1), run=8), wanted)


@given(seeds, st.integers(-20, 20))
def test_mxfp4_written_is_what_gguf_writes_but_for_the_sign_of_0(seed, exponent):
    w = normal(seed, 2, 64, dtype=np.float32) * np.float32(2.0**exponent)
    blocks_ = gguf.quants.quantize(w, gguf.GGMLQuantizationType.MXFP4)
    wanted = gguf.quants.dequantize(blocks_, gguf.GGMLQuantizationType.MXFP4)
    assert np.array_equal(dequantize_mxfp4(*quantize_mxfp4(w)), wanted)


@given(seeds, st.integers(-8, 8), st.sampled_from(DTYPES))
def test_mxfp4_and_nvfp4_laws(seed, exponent, dtype):
    """Written again the same; by half a step; with the sign; with powers of two."""
    x, power = normal(seed, 3, 96, dtype=dtype), np.array(2.0**exponent, dtype)
    x[0, :32] = 0
    ways = {32: (quantize_mxfp4, dequantize_mxfp4), 16: (quantize_nvfp4, dequantize_nvfp4)}
    for size, (write, read) in ways.items():
        y, wide = read(*write(x)), x.astype(np.float64)
        groups, off = np.abs(wide).reshape(3, -1, size), np.abs(y - wide).reshape(3, -1, size)
        largest = groups.max(-1, keepdims=True)
        assert (off <= np.maximum(groups / 4, largest / 12) * 1.13).all() and not y[0, :32].any()
        assert np.array_equal(read(*write(-x)), -y)
        if size == 32:
            assert np.array_equal(read(*write(y)), y)
            assert np.array_equal(read(*write(x * power)), y * power.astype(y.dtype))
        assert y.dtype == (np.float64 if dtype == np.float64 and size == 16 else np.float32)


def test_mxfp4_takes_the_power_of_two_below_and_cuts_off_what_is_above_6():
    x = np.zeros((1, 32), np.float32)
    x[0, :6] = 7.9, 6.1, 5, 0.25, 0.75, -2.5
    packed, scale = quantize_mxfp4(x)
    assert scale.tolist() == [[127]]
    assert dequantize_mxfp4(packed, scale)[0, :6].tolist() == [6, 6, 4, 0, 1, -2]


def test_nvfp4_of_zeros_of_one_number_and_of_tiny_blocks():
    packed, scale, tensor = quantize_nvfp4(np.zeros((2, 32), np.float32))
    assert not packed.any() and not scale.any() and tensor == 0
    assert not dequantize_nvfp4(packed, scale, tensor).any()
    same = np.full((1, 16), np.float32(0.7))
    np.testing.assert_allclose(dequantize_nvfp4(*quantize_nvfp4(same)), same, rtol=1e-6)
    beside = np.concatenate([same * np.float32(1e6), same * np.float32(1e-6)], axis=1)
    assert not dequantize_nvfp4(*quantize_nvfp4(beside))[0, 16:].any(), "a scale underflows, and so do its numbers"
    nothing = np.zeros((0, 32), np.float32)
    assert dequantize_nvfp4(*quantize_nvfp4(nothing)).shape == (0, 32)
    assert dequantize_mxfp4(*quantize_mxfp4(nothing)).shape == (0, 32)


def test_e8m0_is_a_power_of_two():
    codes = np.arange(256, dtype=np.uint8)
    got = decode(codes, "e8m0")
    assert np.array_equal(got[:255], np.ldexp(np.float32(1), codes[:255].astype(int) - 127)) and np.isnan(got[255])


BYTES, ROW = np.zeros((1, 16), np.uint8), np.zeros((1, 32), np.float32)


@pytest.mark.parametrize(
    ("label", "call"),
    [
        ("C1", lambda: quantize_linear(ROW, np.float32(1), format="e3m4")),
        ("C2", lambda: quantize_linear(ROW, np.ones(3, np.float32))),
        ("C2", lambda: quantize_linear(ROW, np.ones((1, 5), np.float32), block=(8,))),
        ("C2", lambda: quantize_linear(ROW, np.ones((1, 1, 1), np.float32))),
        ("C2", lambda: quantize_linear(ROW, np.float32(1), block=(0,))),
        ("C3", lambda: quantize_linear(ROW, np.ones(1, np.float32), np.zeros((), np.int8))),
        ("C3", lambda: quantize_linear(ROW, np.float32(1), np.uint8(0), format="e4m3")),
        ("C1", lambda: dequantize_linear(BYTES, np.float32(1), format="e3m4")),
        ("C2", lambda: dequantize_linear(BYTES, np.ones((1, 5), np.float32), format="e4m3", block=(8,))),
        ("C3", lambda: dequantize_linear(BYTES, np.float32(1), np.uint8(0), format="e2m1")),
        ("C4", lambda: dequantize_linear(BYTES, np.float32(1))),
        ("C1", lambda: quantize_absmax(ROW, format="e3m4")),
        ("C2", lambda: quantize_absmax(ROW, block=(1, 0))),
        ("C3", lambda: quantize_absmax(ROW + np.float32(np.inf))),
        ("C3", lambda: quantize_absmax(ROW * np.float32(np.nan))),
        ("C1", lambda: quantize_mxfp4(ROW[:, :16])),
        ("C2", lambda: quantize_mxfp4(ROW, run=3)),
        ("C3", lambda: quantize_mxfp4(ROW + np.float32(np.nan))),
        ("C1", lambda: dequantize_mxfp4(BYTES, np.zeros((1, 2), np.uint8))),
        ("C2", lambda: dequantize_mxfp4(BYTES, np.zeros((1, 1), np.uint8), run=0)),
        ("C1", lambda: quantize_nvfp4(ROW[:, :15])),
        ("C2", lambda: quantize_nvfp4(ROW, run=16)),
        ("C3", lambda: quantize_nvfp4(ROW - np.float32(np.inf))),
        ("C1", lambda: dequantize_nvfp4(BYTES, np.zeros((1, 1), np.uint8), np.float32(1))),
        ("C2", lambda: dequantize_nvfp4(BYTES, np.zeros((1, 2), np.uint8), np.float32(1), run=5)),
    ],
)
def test_refused_by_label(label, call):
    with pytest.raises(ContractError, match=f"^{label}: "):
        call()


def test_formats_hold_what_ml_dtypes_says():
    kinds = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "e2m1": ml_dtypes.float4_e2m1fn}
    for format, (least, largest, held) in NUMBERS.items():
        if format in kinds:
            assert largest == -least == float(ml_dtypes.finfo(kinds[format]).max) and held == np.uint8
        else:
            info = ml_dtypes.iinfo(getattr(ml_dtypes, format, None) or np.dtype(format))
            assert (least, largest) == (int(info.min), int(info.max)) and np.issubdtype(held, np.integer)
