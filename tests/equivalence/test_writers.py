"""Kernels that write blocks against the specification, byte by byte."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu import device
from gpu.llm.block_writers import quantize
from refimpl.blocks import FORMATS
from refimpl.contract import ContractError
from tests.equivalence.strategies import dtypes, each_kernel, numbers, reference, seeds

of_a_format = settings(max_examples=max(8, settings.default.max_examples // 6))
scales = st.sampled_from((1.0, 0.02, 1e-3, 1e-7))


def weights(seed: int, rows: int, width: int, dtype: str, scale: float, is_whole: bool) -> np.ndarray:
    """Draw weights with heavy tails, or small whole numbers, which tie; a part of a row is 0, one all the same."""
    w = numbers(seed, rows, width) * np.exp(numbers(seed + 1, rows, width)) * np.float32(scale)
    w = np.round(numbers(seed, rows, width) * 3) * np.float32(scale) if is_whole else w
    w[:1, :16], w[-1:, -32:] = 0, scale
    return w.astype(numbers(0, 1, dtype=dtype).dtype)


@each_kernel("quantize")
@pytest.mark.parametrize("name", FORMATS)
@of_a_format
@given(seeds, st.sampled_from((1, 2, 3)), st.sampled_from((1, 2, 3, 5)), dtypes, scales, st.booleans())
def test_quantize(kernel, name, seed, rows, blocks, dtype, scale, is_whole):
    elements = FORMATS[name].elements
    w = weights(seed, rows, (blocks if elements == 32 else min(blocks, 2)) * elements, dtype, scale, is_whole)
    with device.checks(orders=1):
        assert np.array_equal(kernel.call(w, name), reference("quantize")(w, name))


@pytest.mark.parametrize("name", FORMATS)
def test_quantize_of_a_row_does_not_depend_on_the_others(name):
    w = weights(0, 5, FORMATS[name].elements, "float32", 1.0, False)
    assert np.array_equal(quantize(w, name), np.concatenate([quantize(w[i : i + 1], name) for i in range(5)]))
    with device.recording() as launches:
        assert quantize(w[:0], name).shape == (0, FORMATS[name].bytes) and quantize(w[:, :0], name).shape == (5, 0)
    assert launches == []


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", [1e-41, 1e-30, 1e-14])
def test_quantize_of_what_float16_cannot_scale(name, size):
    w = numbers(3, 2, FORMATS[name].elements) * np.float32(size)
    assert np.array_equal(quantize(w, name), reference("quantize")(w, name))


def row(name: str, value: float) -> np.ndarray:
    w = numbers(0, 1, 256)
    w[0, 200] = value
    return w


@pytest.mark.parametrize(
    ("label", "call"),
    [
        ("C1", lambda: quantize(np.zeros((1, 32), np.float32), "q9_9")),
        ("C2", lambda: quantize(np.zeros((1, 33), np.float32), "q4_0")),
        ("C2", lambda: quantize(np.zeros(256, np.float32), "q4_k")),
        *(("C3", lambda name=name, value=value: quantize(row(name, value), name)) for name in FORMATS
          for value in (np.nan, -np.nan, np.inf, -np.inf, 3e38) if (name, value) != ("mxfp4", 3e38)),
    ],
)  # fmt: skip
def test_quantize_refuses(label, call):
    with pytest.raises(ContractError, match=f"^{label}: "):
        call()
