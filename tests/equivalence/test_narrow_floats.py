"""Kernels of numbers of few bits against the specification, bit by bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu import device
from gpu.llm import fp4, narrow_floats
from refimpl.contract import ContractError
from refimpl.llm.narrow_floats import NUMBERS
from tests.equivalence.strategies import dtypes, each_kernel, examples, numbers, reference, seeds, specials

formats = st.sampled_from(sorted(NUMBERS))
shapes = st.sampled_from([(1, 1), (3, 33), (5, 7), (1, 257), (17, 2), (0, 3), (3, 0)])
blocks = st.sampled_from([(), (1,), (8,), (2, 16), (1, 300)])
scales = st.sampled_from((1.0, 1e-3, 40.0, 1e-42))


def assert_same(got, wanted) -> None:
    """Demand the same bits; of a NaN, that it is one."""
    for one, other in zip(got, wanted, strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert one.dtype == other.dtype and one.shape == other.shape
        assert np.array_equal(one.astype(np.float64), other.astype(np.float64), equal_nan=True)


def drawn(seed: int, shape: tuple[int, ...], block: tuple[int, ...], format: str):
    """Return scales, one of them 0 at times, and zero points for integers."""
    draws, sizes = np.random.default_rng(seed), (1,) * (len(shape) - len(block)) + block
    counts = tuple(-(-length // size) if draws.random() < 0.7 else 1 for length, size in zip(shape, sizes, strict=True))
    scale = draws.uniform(0.1, 3, counts).astype(np.float32) * (draws.random(counts) < 0.9)
    least, largest, held = NUMBERS[format]
    zero = draws.integers(max(least, -9), min(largest, 9) + 1, counts).astype(held)
    return scale.astype(np.float32), None if format.startswith("e") or draws.random() < 0.3 else zero


@each_kernel("quantize_linear")
@examples
@given(seeds, shapes, blocks, formats, dtypes, scales, specials)
def test_quantize_linear(kernel, seed, shape, block, format, dtype, size, special):
    x = numbers(seed, *shape, dtype=dtype, special=special)
    with np.errstate(all="ignore"):
        x = x * np.asarray(size).astype(x.dtype)
    scale, zero = drawn(seed, shape, block, format)
    given_ = {"x": x, "scale": scale, "zero_point": zero, "format": format, "block": block}
    assert_same([kernel.call(**given_)], [reference("quantize_linear")(**given_)])


@each_kernel("dequantize_linear")
@examples
@given(seeds, shapes, blocks, formats, dtypes)
def test_dequantize_linear(kernel, seed, shape, block, format, dtype):
    scale, zero = drawn(seed, shape, block, format)
    _, _, held = NUMBERS[format]
    ends = (0, 16) if format == "e2m1" else (np.iinfo(held).min, np.iinfo(held).max + 1)
    q = np.random.default_rng(seed).integers(*ends, shape).astype(held)
    scale = scale.astype(numbers(0, 1, dtype=dtype).dtype)
    given_ = {"q": q, "scale": scale, "zero_point": zero, "format": format, "block": block}
    with np.errstate(all="ignore"):
        assert_same([kernel.call(**given_)], [reference("dequantize_linear")(**given_)])


@given(seeds, formats)
def test_quantize_linear_of_other_axes(seed, format):
    """No axis, one and four; a scale with fewer axes."""
    for shape, scale_shape, block in (((), (), ()), ((5,), (1,), ()), ((2, 3, 2, 5), (3, 1, 2), (4,))):
        x, scale = numbers(seed, *shape), np.abs(numbers(seed + 1, *scale_shape)) + np.float32(0.1)
        q = narrow_floats.quantize_linear(np.asarray(x), scale, format=format, block=block)
        assert_same([q], [reference("quantize_linear")(np.asarray(x), scale, format=format, block=block)])
        y = narrow_floats.dequantize_linear(q, scale, format=format, block=block)
        assert_same([y], [reference("dequantize_linear")(q, scale, format=format, block=block)])


@each_kernel("quantize_absmax")
@examples
@given(seeds, shapes, st.sampled_from([None, (1, 8), (1, 128), (2, 16), (16, 16)]), formats, dtypes, scales)
def test_quantize_absmax(kernel, seed, shape, block, format, dtype, size):
    x = numbers(seed, *shape, dtype=dtype)
    x = x * np.asarray(size).astype(x.dtype)
    x[1:2] = 0
    assert_same(kernel.call(x, format=format, block=block), reference("quantize_absmax")(x, format=format, block=block))


@each_kernel("quantize_mxfp4", "quantize_nvfp4")
@examples
@given(seeds, st.sampled_from((0, 1, 2, 3, 9)), st.sampled_from((0, 1, 2, 3)), dtypes, scales, st.booleans())
def test_quantize_mxfp4_and_quantize_nvfp4(kernel, seed, rows, count, dtype, size, apart):
    x = numbers(seed, rows, 32 * count, dtype=dtype)
    x = x * np.asarray(size).astype(x.dtype)
    x[:1, :16], x[1:2] = np.round(x[:1, :16] * 4) / 4, 0
    run = (16 if kernel.op == "quantize_mxfp4" else 8) if apart else 1
    assert_same(kernel.call(x, run=run), reference(kernel.op)(x, run=run))


@each_kernel("dequantize_mxfp4", "dequantize_nvfp4")
@examples
@given(seeds, st.sampled_from((0, 1, 2, 3, 9)), st.sampled_from((0, 1, 2, 3)), dtypes, st.booleans())
def test_dequantize_mxfp4_and_dequantize_nvfp4(kernel, seed, rows, count, dtype, apart):
    draws, size = np.random.default_rng(seed), 32 if kernel.op == "dequantize_mxfp4" else 16
    packed = draws.integers(0, 256, (rows, 16 * count), np.uint8)
    scale = draws.integers(0, 256, (rows, 32 * count // size), np.uint8)
    tensor = [] if size == 32 else [np.asarray(0.37).astype(numbers(0, 1, dtype=dtype).dtype)]
    run = size // 2 if apart else 1
    with np.errstate(all="ignore"):
        wanted = reference(kernel.op)(packed, scale, *tensor, run=run)
    assert_same([kernel.call(packed, scale, *tensor, run=run)], [wanted])


BYTES, ROW = np.zeros((1, 16), np.uint8), np.zeros((1, 32), np.float32)


@pytest.mark.parametrize(
    ("label", "call"),
    [
        ("C1", lambda: narrow_floats.quantize_linear(ROW, np.float32(1), format="e3m4")),
        ("C2", lambda: narrow_floats.quantize_linear(ROW, np.ones(3, np.float32))),
        ("C2", lambda: narrow_floats.quantize_linear(ROW, np.ones((1, 1, 1), np.float32))),
        ("C2", lambda: narrow_floats.quantize_linear(ROW, np.float32(1), block=(0,))),
        ("C3", lambda: narrow_floats.quantize_linear(ROW, np.float32(1), np.uint8(0), format="e4m3")),
        ("C1", lambda: narrow_floats.dequantize_linear(BYTES, np.float32(1), format="e3m4")),
        ("C2", lambda: narrow_floats.dequantize_linear(BYTES, np.ones((1, 5), np.float32), format="e4m3")),
        ("C3", lambda: narrow_floats.dequantize_linear(BYTES, np.float32(1), np.uint8(0), format="e2m1")),
        ("C4", lambda: narrow_floats.dequantize_linear(BYTES, np.float32(1))),
        ("C1", lambda: narrow_floats.quantize_absmax(ROW, format="e3m4")),
        ("C2", lambda: narrow_floats.quantize_absmax(ROW[0])),
        ("C3", lambda: narrow_floats.quantize_absmax(ROW + np.float32(np.inf))),
        ("C3", lambda: narrow_floats.quantize_absmax(ROW * np.float32(np.nan))),
        ("C1", lambda: fp4.quantize_mxfp4(ROW[0])),
        ("C2", lambda: fp4.quantize_mxfp4(ROW, run=3)),
        ("C3", lambda: fp4.quantize_mxfp4(ROW + np.float32(np.nan))),
        ("C3", lambda: fp4.quantize_mxfp4(ROW - np.float32(np.inf))),
        ("C1", lambda: fp4.dequantize_mxfp4(BYTES, np.zeros((1, 2), np.uint8))),
        ("C2", lambda: fp4.dequantize_mxfp4(BYTES, np.zeros((1, 1), np.uint8), run=0)),
        ("C1", lambda: fp4.quantize_nvfp4(ROW[:, :15])),
        ("C2", lambda: fp4.quantize_nvfp4(ROW, run=16)),
        ("C3", lambda: fp4.quantize_nvfp4(ROW + np.float32(np.nan))),
        ("C1", lambda: fp4.dequantize_nvfp4(BYTES.astype(np.int8), np.zeros((1, 2), np.uint8), np.float32(1))),
        ("C2", lambda: fp4.dequantize_nvfp4(BYTES, np.zeros((1, 2), np.uint8), np.float32(1), run=5)),
    ],
)
def test_refused_by_label(label, call):
    with pytest.raises(ContractError, match=f"^{label}: "):
        call()


def test_nothing_gives_nothing_without_a_launch():
    nothing = np.zeros((0, 32), np.float32)
    with device.recording() as launches:
        assert narrow_floats.quantize_linear(nothing, np.float32(1)).shape == (0, 32)
        assert fp4.quantize_mxfp4(nothing)[0].shape == (0, 16)
    assert launches == []
