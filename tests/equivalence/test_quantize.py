"""Every kernel over quantised weights: decoding and int8 arithmetic bit by bit, float32 sums by the tolerance."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.tolerance import judge
from gpu import device
from gpu.llm import quantize
from gpu.llm.quantize import dequantize_into, linear_blocks_into, linear_int8, quantize_int8
from refimpl.blocks import FORMATS, LAYOUTS
from refimpl.contract import ContractError
from refimpl.llm.quantize import dequantize
from tests.equivalence.strategies import dtypes, each_kernel, examples, numbers, reference, seeds

NARROW = [name for name, form in FORMATS.items() if form.elements == 32]
outputs = st.sampled_from((1, 2, 7, 8, 9, 19))
block_counts = st.sampled_from((1, 2, 3, 17, 33))
tokens = st.sampled_from((1, 1, 2, 5, 33))
of_a_format = settings(max_examples=max(12, settings.default.max_examples // 3))


def random_blocks(seed: int, rows: int, blocks: int, name: str, is_tame: bool = True) -> np.ndarray:
    """Draw blocks of random bytes; tame ones have the scales of usual weights, others may hold NaN and infinity."""
    draws = np.random.default_rng(seed)
    data = draws.integers(0, 256, (rows, blocks * FORMATS[name].bytes), np.uint8)
    if is_tame:
        block = data.view(LAYOUTS[name])
        for field in {"d", "m"} & set(LAYOUTS[name].names or ()):
            block[field] = draws.uniform(-0.1, 0.1, block.shape)
        if name == "mxfp4":
            block["exponent"] = draws.integers(118, 125, block.shape)
    return data


def assert_bits(got: np.ndarray, wanted: np.ndarray) -> None:
    """Demand the same bits; of a NaN, that it is one."""
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    numbers_ = wanted == wanted
    assert np.array_equal(numbers_, got == got)
    assert got[numbers_].tobytes() == wanted[numbers_].tobytes()


@each_kernel("dequantize")
@pytest.mark.parametrize("name", FORMATS)
@of_a_format
@given(seeds, outputs, block_counts, st.booleans())
def test_dequantize(kernel, name, seed, rows, blocks, is_tame):
    data = random_blocks(seed, rows, blocks if name in NARROW else min(blocks, 5), name, is_tame)
    with np.errstate(all="ignore"):
        assert_bits(kernel.call(data, name), dequantize(data, name))


@each_kernel("quantize_int8")
@examples
@given(seeds, tokens, block_counts, dtypes, st.sampled_from((1.0, 1e-3, 1e4, 1e-42, 0.0)))
def test_quantize_int8(kernel, seed, T, blocks, dtype, scale):
    x = numbers(seed, T, 32 * blocks, dtype=dtype) * np.asarray(scale).astype(numbers(0, 1, dtype=dtype).dtype)
    for got, wanted in zip(kernel.call(x), reference("quantize_int8")(x), strict=True):
        assert_bits(got, wanted)


def test_quantize_int8_ties_go_to_the_even_code():
    x = np.zeros((1, 32), np.float32)
    x[0, :7] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5]
    assert quantize_int8(x)[0][0, :7].tolist() == [127, 0, 2, 2, 0, -2, -2]


@each_kernel("linear_int8")
@pytest.mark.parametrize("name", NARROW)
@of_a_format
@given(seeds, tokens, outputs, block_counts, dtypes, st.booleans())
def test_linear_int8(kernel, name, seed, T, rows, blocks, dtype, is_tame):
    x, w = numbers(seed, T, 32 * blocks, dtype=dtype), random_blocks(seed, rows, blocks, name, is_tame)
    with np.errstate(all="ignore"):
        assert_bits(kernel.call(x, w, name), reference("linear_int8")(x, w, name))


@pytest.mark.parametrize("name", FORMATS)
@of_a_format
@given(seeds, tokens, outputs, st.sampled_from((1, 2, 3, 17)), st.booleans(), st.booleans())
def test_linear_blocks_is_linear_of_the_weights(name, seed, T, rows, blocks, has_bias, has_residual):
    data = random_blocks(seed, rows, blocks if name in NARROW else min(blocks, 3), name)
    w = dequantize(data, name).astype(np.float64)
    x, b = numbers(seed, T, w.shape[1]), numbers(seed + 1, rows) if has_bias else None
    stream = numbers(seed + 2, T, rows) * np.float32(has_residual)
    truth = x.astype(np.float64) @ w.T + (0 if b is None else b) + stream
    reach = np.abs(x).astype(np.float64) @ np.abs(w).T + np.abs(stream) + (0 if b is None else np.abs(b))
    y = stream if has_residual else device.empty((T, rows), np.float32)
    linear_blocks_into(y, x, data, name, b, stream if has_residual else None)
    amplification = (reach / np.abs(truth).max(1, keepdims=True)).max() ** 2
    verdict = judge(y, truth, "float32", terms=round(w.shape[1] * max(1, amplification / w.shape[1])))
    assert verdict.passed, verdict.reason


@given(seeds, st.sampled_from((1, 2, 33, 40)), st.sampled_from(("q8_0", "q4_0", "q6_k", "mxfp4")))
def test_a_row_of_linear_blocks_has_the_same_bits_in_any_batch(seed, T, name):
    data, x = random_blocks(seed, 9, 2, name), numbers(seed, T, 2 * FORMATS[name].elements)
    together, alone = device.empty((T, 9), np.float32), device.empty((1, 9), np.float32)
    linear_blocks_into(together, x, data, name)
    for t in (0, T // 2, T - 1):
        linear_blocks_into(alone, x[t : t + 1], data, name)
        assert np.array_equal(alone[0], together[t])


@given(seeds, st.lists(st.integers(0, 8), min_size=1, max_size=20), st.sampled_from(sorted(FORMATS)))
def test_rows_are_dequantised_by_id(seed, ids, name):
    data = random_blocks(seed, 9, 3, name)
    out = device.empty((len(ids), 3 * FORMATS[name].elements), np.float32)
    dequantize_into(out, data, name, np.int32(ids))
    assert_bits(out, dequantize(data, name)[ids])


def bad(value: float) -> np.ndarray:
    x = np.zeros((1, 32), np.float32)
    x[0, 3] = value
    return x


@pytest.mark.parametrize(
    ("label", "twin", "arguments"),
    [
        ("C1", quantize.dequantize, (np.zeros((1, 18), np.uint8), "q9_9")),
        ("C2", quantize.dequantize, (np.zeros((1, 19), np.uint8), "q4_0")),
        ("C2", quantize.dequantize, (np.zeros((1, 18), np.int8), "q4_0")),
        ("C1", quantize_int8, (np.zeros((1, 33), np.float32),)),
        ("C1", quantize_int8, (np.zeros(32, np.float32),)),
        *(("C2", quantize_int8, (bad(value),)) for value in (np.nan, -np.nan, np.inf, -np.inf)),
        ("C1", linear_int8, (np.zeros((1, 256), np.float32), np.zeros((1, 144), np.uint8), "q4_k")),
        ("C2", linear_int8, (np.zeros((1, 32), np.float32), np.zeros((1, 17), np.uint8), "q4_0")),
        ("C2", linear_int8, (bad(np.inf), np.zeros((1, 18), np.uint8), "q4_0")),
        ("C3", linear_int8, (np.zeros((1, 64), np.float32), np.zeros((1, 18), np.uint8), "q4_0")),
    ],
)
def test_refused_by_label(label, twin, arguments):
    with pytest.raises(ContractError, match=f"^{label}: "):
        twin(*arguments)


@pytest.mark.parametrize("T", [0, 3])
def test_nothing_gives_nothing_without_a_launch(T):
    with device.recording() as launches:
        assert quantize.dequantize(np.zeros((0, 36), np.uint8), "q4_0").shape == (0, 64)
        assert linear_int8(np.zeros((0, 64), np.float32), np.zeros((T, 36), np.uint8), "q4_0").shape == (0, T)
        assert [part.shape for part in quantize_int8(np.zeros((T, 0), np.float32))] == [(T, 0), (T, 0)]
    assert launches == []
