"""Linear maps of the CPU executor: the written arithmetic bit for bit, whatever the batch, the tiles, the processor."""

import hashlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.executor.lanes import has
from gpu.executor.linear import SCRATCH_BYTES, embedding_row, linear_rows
from gpu.executor.linear_int8 import has_int8, linear_rows_int8, quantize_rows_int8
from gpu.executor.pack import FORMATS, Packed, pack
from refimpl.contract import ContractError
from refimpl.llm.quantize import linear_int8, quantize_int8
from refimpl.models.tensor import Tensor

NARROW = ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "mxfp4"]
TWO = dict.fromkeys(["q4_1", "q5_1", "q4_k", "q5_k"], (0, 2))
HALVES = TWO | {"q2_k": (80, 82), "q3_k": (108,), "q6_k": (208,)}  # bytes of the scales, where not (0,)


def weights(name: str, rows: int, blocks: int, seed: int) -> Tensor:
    """Return random weights: plain numbers (a block is one of them), or random bytes with finite scales."""
    rng, layout = np.random.default_rng(seed), FORMATS[name]
    if layout.elements == 1:
        dtype = ml_dtypes.bfloat16 if name == "bfloat16" else name
        return Tensor(name, (rows, blocks), rng.normal(size=(rows, blocks)).astype(dtype))
    data = rng.integers(0, 256, (rows, blocks, layout.bytes), np.uint8)
    if name == "mxfp4":
        data = rng.integers(0, 256, (rows, blocks, 17), np.uint8)
        data[..., 0] = rng.integers(118, 126, (rows, blocks))
        return Tensor(name, (rows, blocks * 32), data.reshape(rows, -1))
    for place in HALVES.get(name, (0,)):
        data[:, :, place : place + 2] = rng.normal(size=(rows, blocks, 1)).astype(np.float16).view(np.uint8)
    return Tensor(name, (rows, blocks * layout.elements), data.reshape(rows, -1))


def scratch() -> np.ndarray:
    return np.full(SCRATCH_BYTES, 255, np.uint8)  # as floats: no numbers


def linear(packed: Packed, x, bias=None, cuts=()) -> np.ndarray:
    """Run the kernel over tiles cut at ``cuts``, into a poisoned output with room between rows."""
    y, memory = np.full((len(x), packed.rows + 3), np.inf, np.float32), scratch()
    place = 0 if bias is None else bias.ctypes.data
    edges = [0, *sorted(min(cut, packed.tiles) for cut in cuts), packed.tiles]
    for begin, end in itertools.pairwise(edges):
        linear_rows(
            packed.code, packed.address, packed.columns, packed.rows, begin, end, x.ctypes.data, x.strides[0], len(x),
            y.ctypes.data, y.strides[0], place, memory.ctypes.data,
        )  # fmt: skip
    assert np.isposinf(y[:, packed.rows :]).all()
    return y[:, : packed.rows]


def fma(x, y, z) -> np.ndarray:
    """Return float32 x y + z rounded once: the float64 sum is rounded to odd, which a second rounding cannot upset."""
    product = x.astype(np.float64) * y
    total = product + z
    left = total - product
    rest = (product - (total - left)) + (z - left)
    is_even = total.view(np.int64) % 2 == 0
    towards = np.where(rest > 0, np.inf, -np.inf)
    return np.where((rest != 0) & is_even, np.nextafter(total, towards), total).astype(np.float32)


def chain(x, w, bias) -> np.ndarray:
    """Return x w^T + b as one chain of fused multiply-adds for each number."""
    total = np.zeros((len(x), len(w)), np.float32)
    for k in range(w.shape[1]):
        total = fma(x[:, k, None], w[None, :, k], total)
    return total + bias


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_rows_are_dequantised_bit_for_bit(name, data):
    rows, blocks = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 3))
    tensor = weights(name, rows, blocks, data.draw(st.integers(0, 99)))
    packed, row = pack(tensor), data.draw(st.integers(0, rows - 1))
    out, memory = np.full(packed.columns, np.inf, np.float32), scratch()
    embedding_row(packed.code, packed.address, packed.columns, row, out.ctypes.data, memory.ctypes.data)
    np.testing.assert_array_equal(out, tensor.read()[row])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("tokens", [1, 14])
def test_a_number_is_one_chain(name, tokens):
    tensor, rng = weights(name, 37, 300 // FORMATS[name].elements or 2, 1), np.random.default_rng(2)
    x, bias = (rng.normal(size=shape).astype(np.float32) for shape in ((tokens, tensor.shape[1]), 37))
    np.testing.assert_array_equal(linear(pack(tensor), x, bias), chain(x, tensor.read(), bias))


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_bits_do_not_depend_on_the_batch(name, data):
    rows, blocks = data.draw(st.integers(1, 100)), data.draw(st.integers(1, 600 // FORMATS[name].elements))
    packed = pack(weights(name, rows, blocks, data.draw(st.integers(0, 9))))
    rng, tokens = np.random.default_rng(3), data.draw(st.one_of(st.integers(1, 30), st.integers(255, 270)))
    room = data.draw(st.integers(0, 5))
    x = rng.normal(size=(tokens, packed.columns + room)).astype(np.float32)[:, : packed.columns]
    bias = rng.normal(size=rows).astype(np.float32) if data.draw(st.booleans()) else None
    whole = linear(packed, x, bias)
    first = data.draw(st.integers(0, tokens - 1))
    last = data.draw(st.integers(first + 1, tokens))
    part = linear(packed, x[first:last], bias, data.draw(st.lists(st.integers(0, 4), max_size=3)))
    np.testing.assert_array_equal(part, whole[first:last])


def test_no_token_and_no_tile_write_nothing():
    packed = pack(weights("q8_0", 40, 2, 0))
    assert linear(packed, np.ones((0, 64), np.float32)).shape == (0, 40)
    assert np.isfinite(linear(packed, np.ones((2, 64), np.float32), cuts=(1, 1))).all()


def test_a_number_that_is_not_finite_stays_in_its_row():
    packed, x = pack(weights("q4_1", 64, 4, 0)), np.ones((3, 128), np.float32)
    clean = linear(packed, x)
    x[1, 5] = np.nan
    y = linear(packed, x)
    assert np.isnan(y[1]).all()
    np.testing.assert_array_equal(y[[0, 2]], clean[[0, 2]])


def int8(x) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    tokens, width = x.shape
    q, scales = np.full((tokens, width), 99, np.int8), np.full((tokens, width // 32), np.nan, np.float32)
    sums = np.full((tokens, width // 32), 99, np.int32)
    places = (array.ctypes.data for array in (q, scales, sums))
    quantize_rows_int8(x.ctypes.data, x.strides[0], tokens, width, *places)
    return q, scales, sums


def linear_by_int8(packed: Packed, x, bias=None) -> np.ndarray:
    q, scales, sums = int8(x)
    y, memory = np.full((len(x), packed.rows + 3), np.inf, np.float32), scratch()
    linear_rows_int8(
        packed.code, packed.address, packed.columns, packed.rows, 0, packed.tiles,
        q.ctypes.data, scales.ctypes.data, sums.ctypes.data, len(x),
        y.ctypes.data, y.strides[0], 0 if bias is None else bias.ctypes.data, memory.ctypes.data,
    )  # fmt: skip
    assert np.isposinf(y[:, packed.rows :]).all()
    return y[:, : packed.rows]


@given(seed=st.integers(0, 99), tokens=st.integers(1, 5), blocks=st.integers(1, 4), exponent=st.integers(-140, 120))
def test_activations_are_quantised_as_specified(seed, tokens, blocks, exponent):
    x = np.ldexp(np.random.default_rng(seed).normal(size=(tokens, 32 * blocks)), exponent).astype(np.float32)
    x[0, :32] = 0
    q, scales, sums = int8(x)
    expected, expected_scales = quantize_int8(x)
    np.testing.assert_array_equal(q, expected)
    np.testing.assert_array_equal(scales, expected_scales)
    np.testing.assert_array_equal(sums, expected.reshape(tokens, blocks, 32).sum(axis=-1))


@pytest.mark.parametrize("name", NARROW)
@given(seed=st.integers(0, 99), rows=st.integers(1, 70), blocks=st.integers(1, 5), tokens=st.integers(1, 9))
def test_int8_arithmetic_is_the_specified_one(name, seed, rows, blocks, tokens):
    tensor, rng = weights(name, rows, blocks, seed), np.random.default_rng(seed)
    x, bias = (rng.normal(size=shape).astype(np.float32) for shape in ((tokens, 32 * blocks), rows))
    np.testing.assert_array_equal(linear_by_int8(pack(tensor), x), linear_int8(x, tensor.data, name))
    np.testing.assert_array_equal(linear_by_int8(pack(tensor), x, bias), linear_int8(x, tensor.data, name) + bias)


def test_int8_is_for_blocks_of_32():
    assert [name for code, name in enumerate(FORMATS) if has_int8(code)] == NARROW


def test_packing_moves_every_byte_once():
    tensor = weights("q5_1", 64, 3, 0)
    packed = pack(tensor)
    assert packed.data.size == tensor.data.size and packed.address % 64 == 0
    np.testing.assert_array_equal(np.sort(packed.data), np.sort(tensor.data.ravel()))


def test_float64_and_turned_weights_are_taken():
    tensor = Tensor("float64", (5, 7), np.random.default_rng(0).normal(size=(5, 7)))
    narrow = tensor.data.astype(np.float32)
    np.testing.assert_array_equal(linear(pack(tensor), np.eye(7, dtype=np.float32)), narrow.T)
    np.testing.assert_array_equal(linear(pack(tensor.transposed()), np.eye(5, dtype=np.float32)), narrow)


@pytest.mark.parametrize(("label", "tensor"), [
    ("C1", Tensor("float32", (3,), np.ones(3, np.float32))),
    ("C2", Tensor("int8", (3, 3), np.ones((3, 3), np.int8))),
])  # fmt: skip
def test_constraints_of_pack(label, tensor):
    with pytest.raises(ContractError, match=label):
        pack(tensor)


def digest() -> str:
    """Return a hash of the results of every kernel on fixed inputs."""
    seen, rng = hashlib.sha256(), np.random.default_rng(5)
    for name in FORMATS:
        packed = pack(weights(name, 40, 512 // FORMATS[name].elements, 6))
        x = rng.normal(size=(14, packed.columns)).astype(np.float32)
        results = [linear(packed, x), linear(packed, x[:1])]
        seen.update(b"".join(y.tobytes() for y in [*results, *([linear_by_int8(packed, x)] if name in NARROW else [])]))
    return seen.hexdigest()


@pytest.mark.parametrize(("processor", "flags"), [("generic", ""), ("x86-64-v3", "+avx,+avx2,+fma,+f16c")])
def test_bits_do_not_depend_on_the_processor(processor, flags):
    """Without F16C, FMA, VNNI: halves are widened by integers, fma is the C library's, and the bits are the same."""
    if not has("avx2"):
        processor, flags = "generic", ""
    environment = os.environ | {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": flags}
    command = "from tests.executor.test_linear import digest; print(digest())"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", command], cwd=root, env=environment, capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == (digest(), 0), done.stderr
