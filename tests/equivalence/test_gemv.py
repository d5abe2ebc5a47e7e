"""The linear maps by 16-byte loads: rows that end within a word, alignment, what their kernels read."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.tolerance import judge
from gpu import device, sass
from gpu.basics.gemv import gemv_into, gemv_takes
from gpu.basics.linear import linear, linear_into
from gpu.llm.gemv_blocks import GEMV_FORMATS, gemv_blocks_into
from gpu.llm.quantize import linear_blocks_into
from gpu.toolkit import spilled
from refimpl.llm.quantize import dequantize
from tests.equivalence.strategies import dtypes, examples, numbers, seeds
from tests.equivalence.test_quantize import random_blocks

tokens = st.sampled_from((1, 2, 3, 4, 5, 9))
outputs = st.sampled_from((1, 2, 7, 8, 9, 17, 33))
each_format = pytest.mark.parametrize("format", GEMV_FORMATS)


@examples
@given(seeds, tokens, outputs, st.integers(0, 90), dtypes, st.booleans(), dtypes, st.booleans())
def test_gemv_is_linear(seed, T, rows, words, w_dtype, has_wide_x, b_dtype, has_residual):
    D = words * 16 // numbers(0, 1, dtype=w_dtype).itemsize
    x = numbers(seed, T, D, dtype="float32" if has_wide_x else w_dtype)
    w, b = numbers(seed + 1, rows, D, dtype=w_dtype), numbers(seed + 2, rows, dtype=b_dtype)
    y = device.empty((T, rows), x.dtype)
    residual = numbers(seed + 3, T, rows, dtype=str(x.dtype)) if has_residual else None
    terms = [each.astype(np.float64) for each in (x, w, b, np.zeros(()) if residual is None else residual)]
    gemv_into(y, x, w, b, residual)
    reach = np.sqrt(np.square(terms[0]) @ np.square(terms[1]).T + np.square(terms[2]) + np.square(terms[3]))
    truth = terms[0] @ terms[1].T + terms[2] + terms[3]
    verdict = judge(np.append(y, y.dtype.type(reach.max())), np.append(truth, reach.max()), str(x.dtype), terms=D + 2)
    assert verdict.passed, verdict.reason


@given(seeds, st.integers(2, 9), dtypes)
def test_bits_of_gemv_do_not_depend_on_the_other_rows(seed, T, dtype):
    x, w = numbers(seed, T, 264), numbers(seed + 1, 11, 264, dtype=dtype)
    together, alone = device.empty((T, 11), np.float32), device.empty((1, 11), np.float32)
    gemv_into(together, x, w)
    for t in range(T):
        gemv_into(alone, x[t : t + 1].copy(), w)
        assert np.array_equal(alone[0], together[t])


@each_format
@examples
@given(seeds, tokens, outputs, st.integers(1, 80), st.booleans(), st.booleans())
def test_gemv_blocks_is_linear_of_the_weights(format, seed, T, rows, blocks, has_bias, has_residual):
    data = random_blocks(seed, rows, blocks, format)
    w, x, b = dequantize(data, format).astype(np.float64), numbers(seed, T, 32 * blocks), numbers(seed + 1, rows)
    y = numbers(seed + 2, T, rows) if has_residual else device.empty((T, rows), np.float32)
    truth = x.astype(np.float64) @ w.T + (b if has_bias else 0) + (y if has_residual else 0)
    gemv_blocks_into(y, x, data, format, b if has_bias else None, y if has_residual else None)
    reach = np.float32((np.abs(x) @ np.abs(w).T).max())  # of the terms, as some sums are next to nothing
    verdict = judge(np.append(y, reach), np.append(truth, np.float64(reach)), "float32", terms=32 * blocks)
    assert verdict.passed, verdict.reason


@each_format
@given(seeds, st.integers(2, 9), st.integers(1, 70))
def test_bits_of_gemv_blocks_do_not_depend_on_the_other_rows(format, seed, T, blocks):
    x, data = numbers(seed, T, 32 * blocks), random_blocks(seed, 5, blocks, format)
    together, alone = device.empty((T, 5), np.float32), device.empty((1, 5), np.float32)
    gemv_blocks_into(together, x, data, format)
    for t in range(T):
        gemv_blocks_into(alone, x[t : t + 1].copy(), data, format)
        assert np.array_equal(alone[0], together[t])


@each_format
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_damaged_scale_stays_in_its_row(format, value):
    data, x = random_blocks(3, 9, 35, format), numbers(3, 2, 35 * 32)
    clean, y = device.empty((2, 9), np.float32), device.empty((2, 9), np.float32)
    gemv_blocks_into(clean, x, data, format)
    if format == "mxfp4":  # its scales know NaN alone
        data[4, 33 * 17] = 255
    else:
        data.view(np.float16)[4, 33 * GEMV_FORMATS[format] // 2] = value
    gemv_blocks_into(y, x, data, format)
    assert not np.isfinite(y[:, 4]).any()
    assert np.array_equal(np.delete(y, 4, 1), np.delete(clean, 4, 1))


def test_arrays_that_begin_within_a_word_go_elsewhere():
    x, w = numbers(0, 2, 64), numbers(1, 3, 64, dtype="bfloat16")
    shifted = np.zeros(w.size + 1, w.dtype)[1:].reshape(w.shape)
    shifted[:] = w
    assert gemv_takes(x, w) and not gemv_takes(x, shifted) and not gemv_takes(numbers(0, 2, 65), numbers(1, 3, 65))
    np.testing.assert_allclose(linear(x, shifted), linear(x, w), rtol=1e-5)
    data = random_blocks(0, 3, 2, "q8_0")
    moved = np.zeros(data.size + 2, np.uint8)[2:].reshape(data.shape)
    moved[:] = data
    y, other = device.empty((2, 3), np.float32), device.empty((2, 3), np.float32)
    linear_blocks_into(y, x, data, "q8_0")
    linear_blocks_into(other, x, moved, "q8_0")
    np.testing.assert_allclose(other, y, rtol=1e-4)


def launched(into, *arguments):
    with device.recording() as launches:
        into(*arguments)
    (launch,) = launches
    return launch


def test_gemv_reads_each_sector_once_and_has_four_words_of_w_on_the_way():
    x, w, y = numbers(0, 1, 1024), numbers(1, 64, 1024, dtype="bfloat16"), device.empty((1, 64), np.float32)
    launch = launched(linear_into, y, x, w)
    assert launch.counters.loads["w"] == (64 * 1024 * 2 // 32,) * 2
    path = launch.kernel.cubin_path("sm_90")
    loop = max(re.split(r"\bBRA\b", sass.disassemble(path)), key=lambda text: text.count("LDG.E.128"))
    assert loop[: loop.index("FFMA")].count("LDG.E.128") == 8  # 2 rows of w, 2 words ahead; x is twice as wide
    assert spilled(launch.kernel.name, launch.kernel.ptx("sm_90"), "sm_90") == 0


@each_format
def test_gemv_blocks_reads_nearly_each_sector_once(format):
    x, data, y = numbers(0, 1, 576), random_blocks(1, 33, 18, format), device.empty((1, 33), np.float32)
    launch = launched(linear_blocks_into, y, x, data, format)
    asked, least = launch.counters.loads["w"]
    assert least <= asked <= 1.1 * least and least >= data.size // 32
    assert sass.count(launch.kernel.cubin_path("sm_90")).loads_128 >= 4
    assert spilled(launch.kernel.name, launch.kernel.ptx("sm_90"), "sm_90") == 0
