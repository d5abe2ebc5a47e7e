"""Tensor cores against NumPy: fragments by the formulas of the ISA, one table for each shape and type."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.interpreter import matrix, mma
from gpu.interpreter.lanes import FIRST_FREE
from tests.interpreter.warp import LANES, run

OPCODES = list(mma.catalogue())
DTYPES = {
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "tf32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "s8": np.dtype(np.int8), "u8": np.dtype(np.uint8), "f32": np.dtype(np.float32), "s32": np.dtype(np.int32),
}  # fmt: skip
Place = Callable[[int, int, int], tuple[int, int]]  # group, thread in group, element -> row, column
A: dict[tuple[int, int], tuple[int, Place]] = {  # bytes of an element, k -> elements of a lane, their places
    (2, 8): (4, lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1))),
    (2, 16): (8, lambda g, t, i: (g if i < 2 or 4 <= i < 6 else g + 8, t * 2 + (i & 1) + (0 if i < 4 else 8))),
    (4, 4): (2, lambda g, t, i: (g if i == 0 else g + 8, t)),
    (4, 8): (4, lambda g, t, i: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4)),
    (1, 16): (8, lambda g, t, i: (g if i < 4 else g + 8, t * 4 + (i & 3))),
    (1, 32): (16, lambda g, t, i: (g if i < 4 or 8 <= i < 12 else g + 8, t * 4 + (i & 3) + (0 if i < 8 else 16))),
}
B: dict[tuple[int, int], tuple[int, Place]] = {
    (2, 8): (2, lambda g, t, i: (t * 2 + i, g)),
    (2, 16): (4, lambda g, t, i: (t * 2 + (i & 1) + (0 if i < 2 else 8), g)),
    (4, 4): (1, lambda g, t, i: (t, g)),
    (4, 8): (2, lambda g, t, i: (t if i == 0 else t + 4, g)),
    (1, 16): (4, lambda g, t, i: (t * 4 + i, g)),
    (1, 32): (8, lambda g, t, i: (t * 4 + (i & 3) + (0 if i < 4 else 16), g)),
}
C: tuple[int, Place] = (4, lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)))


def registers(values: np.ndarray, layout: tuple[int, Place]) -> np.ndarray:
    """Return the registers [count, 32 lanes] of a fragment of a matrix."""
    count, place = layout
    lanes = [[values[place(lane >> 2, lane % 4, i)] for i in range(count)] for lane in range(LANES)]
    return np.array(lanes, values.dtype).view(np.uint32).T.astype(np.uint64)


def result(found: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the 16 x 8 matrix that the registers of D hold."""
    values = np.ascontiguousarray(found.astype(np.uint32).T).view(dtype)
    matrix_MN = np.empty((16, 8), dtype)
    for lane in range(LANES):
        for i in range(4):
            matrix_MN[C[1](lane >> 2, lane % 4, i)] = values[lane, i]
    return matrix_MN


def multiplied(opcode: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Run an ``mma`` on whole matrices."""
    *_, to, _, _, _ = opcode.split(".")
    key = (a.dtype.itemsize, a.shape[1])
    operands = [*registers(a, A[key]), *registers(b, B[key]), *registers(c, C)]
    return result(run(mma, opcode, *operands, results=2 if to == "f16" else 4), DTYPES[to])


def shape(opcode: str) -> tuple[int, list[np.dtype]]:
    """Return k and the types of D, A, B, C."""
    words = opcode.split(".")
    return int(words[3][6:]), [DTYPES[word] for word in words[-4:]]


FLOATS = [opcode for opcode in mma.catalogue() if opcode.startswith("mma") and ".s32." not in opcode]
INTEGERS = [opcode for opcode in mma.catalogue() if ".s32." in opcode]


@pytest.mark.parametrize("opcode", FLOATS)
def test_small_numbers_are_exact(opcode: str):
    k, (to, left, right, added) = shape(opcode)
    rng = np.random.default_rng(k)
    a, b = (rng.integers(-4, 5, size).astype(dtype) for size, dtype in (((16, k), left), ((k, 8), right)))
    c = (rng.integers(-8, 9, (16, 8)) / 4).astype(added)
    want = a.astype(np.float64) @ b.astype(np.float64) + c
    assert np.array_equal(multiplied(opcode, a, b, c), want.astype(to))


def patterns(data: st.DataObject, size: tuple[int, int], dtype: np.dtype) -> np.ndarray:
    """Return a matrix of any bits: NaN, infinities and subnormal numbers among them."""
    count = size[0] * size[1] * dtype.itemsize
    return np.frombuffer(data.draw(st.binary(min_size=count, max_size=count)), dtype).reshape(size).copy()


@pytest.mark.parametrize("opcode", FLOATS)
@settings(max_examples=8)
@given(st.data())
def test_any_floats(opcode: str, data: st.DataObject):
    k, (to, left, right, added) = shape(opcode)
    a, b, c = patterns(data, (16, k), left), patterns(data, (k, 8), right), patterns(data, (16, 8), added)
    found = multiplied(opcode, a, b, c)
    if ".tf32" in opcode:
        a, b = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b))
    with np.errstate(all="ignore"):
        got, x, y, z = (each.astype(np.float64) for each in (found, a, b, c))
        terms = np.concatenate([x[:, :, None] * y[None], z[:, None]], axis=1)
        want, size = terms.sum(1), np.abs(terms).sum(1)
        finite = np.isfinite(terms).all(1)
        assert np.array_equal(got[~finite], want[~finite], equal_nan=True)
        plain = size < float(ml_dtypes.finfo(to).max)
        error = 2.0**-23 * (k + 1) * size + np.abs(want) * float(ml_dtypes.finfo(to).eps) + 2.0**-24
        assert (np.abs(got - want) <= error)[plain].all()


def test_a_sum_takes_k_in_order():
    opcode = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    rng = np.random.default_rng(9)
    a, b = rng.standard_normal((16, 16)).astype(np.float16), rng.standard_normal((16, 8)).astype(np.float16)
    c = rng.standard_normal((16, 8)).astype(np.float32)
    want = c.copy()
    for i in range(16):
        want += a[:, i : i + 1].astype(np.float32) * b[i].astype(np.float32)  # products of float16 are exact in float32
    assert np.array_equal(multiplied(opcode, a, b, c), want)


@pytest.mark.parametrize("opcode", INTEGERS)
@settings(max_examples=8)
@given(st.data())
def test_integers(opcode: str, data: st.DataObject):
    k, (_, left, right, _) = shape(opcode)
    a, b = patterns(data, (16, k), left), patterns(data, (k, 8), right)
    ends = np.array([-(2**31), 2**31 - 1, 0, 5], np.int32)
    c = ends[patterns(data, (16, 8), np.dtype(np.uint8)) % 4]
    want = a.astype(np.int64) @ b.astype(np.int64) + c
    want = np.clip(want, -(2**31), 2**31 - 1) if ".satfinite" in opcode else want
    assert np.array_equal(multiplied(opcode, a, b, c), want.astype(np.int32))


def test_nan_is_the_canonical_one():
    opcode = "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32"
    found = run(mma, opcode, *[np.full(LANES, 0xFFC1FFC1, np.uint64)] * 3, *[np.zeros(LANES, np.uint64)] * 4, results=4)
    assert (found == 0x7FFFFFFF).all()


MATRIX = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8) * 257


@pytest.mark.parametrize("opcode", matrix.catalogue())
def test_matrices(opcode: str):
    code = matrix.code_of(opcode, 32)
    count = int(opcode.split(".m8n8.x")[1][0])
    regs = np.zeros((FIRST_FREE + 4, LANES), np.uint64)
    rows = np.arange(FIRST_FREE, FIRST_FREE + 4).astype(np.int32)
    memory = MATRIX.swapaxes(1, 2) if ".trans" in opcode else MATRIX
    held = [[MATRIX[q, lane // 4, 2 * (lane % 4) :][:2] for lane in range(LANES)] for q in range(count)]
    words = np.ascontiguousarray(held).view(np.uint32)[..., 0]
    quads = np.zeros((LANES, 4), np.uint32)
    lines = np.ascontiguousarray(memory).view(np.uint32).reshape(32, 4)
    if opcode.startswith("ld"):
        quads[: 8 * count] = lines[: 8 * count]
        matrix.scatter(regs, rows, quads, code)
        assert np.array_equal(regs[rows[:count]], words) and not regs[rows[count:]].any()
    else:
        regs[rows[:count]] = words
        matrix.gather(regs, rows, quads, code)
        assert np.array_equal(quads[: 8 * count], lines[: 8 * count]) and not quads[8 * count :].any()


def test_movmatrix():
    held = np.ascontiguousarray([MATRIX[1, lane // 4, 2 * (lane % 4) :][:2] for lane in range(LANES)]).view(np.uint32)
    want = np.ascontiguousarray([MATRIX[1].T[lane // 4, 2 * (lane % 4) :][:2] for lane in range(LANES)]).view(np.uint32)
    assert np.array_equal(run(mma, "movmatrix.sync.aligned.m8n8.trans.b16", held[:, 0]), want[:, 0])


def test_what_the_grammar_has_not_is_unknown():
    unknown = (
        "mma.sync.aligned.m16n8k16.col.row.f32.f16.f16.f32", "mma.sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16",
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32", "mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32",
    )  # fmt: skip
    assert [opcode for opcode in unknown if mma.code_of(opcode, 32) is not None] == []
