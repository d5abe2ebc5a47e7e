"""Block formats against the gguf package, int8 arithmetic against scalar loops, tensors as files hold them."""

import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.blocks import FORMATS
from refimpl.contract import ContractError
from refimpl.llm.quantize import dequantize, linear_int8, quantize_int8
from refimpl.models.tensor import Tensor
from tests.laws.strategies import DTYPES, normal, seeds

NARROW = ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "mxfp4"]


E2M1 = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32).tolist()


def each_format(test):
    return pytest.mark.parametrize("name", FORMATS)(test)


def random_bytes(seed: int, rows: int, blocks: int, name: str) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, blocks * FORMATS[name].bytes), dtype=np.uint8)


def quantised(seed: int, rows: int, width: int, name: str) -> np.ndarray:
    """Blocks whose scales are usual numbers."""
    return gguf.quants.quantize(normal(seed, rows, width, dtype=np.float32), gguf.GGMLQuantizationType[name.upper()])


def test_formats_are_those_of_ggml():
    sizes = {kind.name.lower(): size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    assert len(FORMATS) == 11
    assert dict(FORMATS) == {name: sizes[name] for name in FORMATS}


@each_format
@given(seed=seeds, rows=st.integers(0, 4), blocks=st.integers(1, 3))
def test_equals_ggufs_reading_bit_by_bit(name, seed, rows, blocks):
    data = random_bytes(seed, rows, blocks, name)
    if name == "mxfp4":
        data[:, ::17] %= 255  # 255 is NaN by the standard, and 2^128 in ggml
    with np.errstate(invalid="ignore", over="ignore"):
        wanted = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name.upper()]) if rows else np.zeros((0, 0))
    got = dequantize(data, name)
    assert got.dtype == np.float32 and got.shape == (rows, blocks * FORMATS[name].elements)
    if rows:
        number = ~np.isnan(wanted)
        assert (number == ~np.isnan(got)).all()
        assert (got.view(np.uint32) == wanted.view(np.uint32))[number].all()


def test_mxfp4_is_what_the_standard_says():
    data = random_bytes(1, 8, 3, "mxfp4")
    data[0, 0] = 255
    block = data.reshape(8, 3, 17)
    powers = block[..., 0].copy().view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    numbers = np.float32(E2M1)[np.concatenate([block[..., 1:] & 15, block[..., 1:] >> 4], axis=-1)]
    with np.errstate(over="ignore"):
        assert np.array_equal(dequantize(data, "mxfp4"), (numbers * powers[..., None]).reshape(8, 96), equal_nan=True)
    assert np.isnan(dequantize(data, "mxfp4")[0, :32]).all()


@each_format
def test_reads_a_view_that_is_not_contiguous(name):
    data = random_bytes(0, 6, 2, name)
    assert np.array_equal(dequantize(data[::2], name), dequantize(data, name)[::2], equal_nan=True)
    assert np.array_equal(dequantize(np.asfortranarray(data), name), dequantize(data, name), equal_nan=True)


@given(seeds, st.integers(1, 4), st.integers(1, 3))
def test_int8_is_within_half_a_step(seed, T, blocks):
    x = normal(seed, T, 32 * blocks, dtype=np.float32)
    q, scale = quantize_int8(x)
    assert q.dtype == np.int8 and scale.dtype == np.float32 and scale.shape == (T, blocks)
    steps = np.repeat(scale, 32, axis=1).astype(np.float64)
    assert (np.abs(x - q * steps) <= (0.5 + 1e-5) * steps).all()
    assert (np.abs(q.astype(int)).reshape(T, blocks, 32).max(-1) == 127).all()


@given(seeds, st.integers(-10, 10))
def test_int8_by_scalars(seed, exponent):
    x = normal(seed, 1, 32, dtype=np.float32) * np.float32(2.0**exponent)
    q, scale = quantize_int8(x)
    assert scale[0, 0] == np.float32(max(abs(v) for v in x[0])) / np.float32(127)
    assert q[0].tolist() == [round(float(v / scale[0, 0])) for v in x[0]]  # Python rounds half to even


def test_int8_rounds_half_to_even():
    x = np.zeros((1, 32), np.float32)
    x[0, :7] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5]
    assert quantize_int8(x)[0][0, :7].tolist() == [127, 0, 2, 2, 0, -2, -2]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_int8_of_nothing_and_of_nearly_nothing(dtype):
    q, scale = quantize_int8(np.zeros((2, 64), dtype))
    assert not q.any() and not scale.any()
    q, scale = quantize_int8(np.full((1, 32), -ml_dtypes.finfo(dtype).smallest_subnormal, dtype))
    assert (q == q[0, 0]).all() and q[0, 0] in (0, -127), "no scale, or a whole one"


def test_int8_clips_when_the_scale_is_subnormal():
    x = np.full((1, 32), np.float32(2.0**-149) * 190, np.float32)  # 190 / 127 steps round to a scale of one step
    q, scale = quantize_int8(x)
    assert scale[0, 0] == np.float32(2.0**-149) and (q == 127).all()
    assert (quantize_int8(-x)[0] == -127).all()


def scalar_linear(x: np.ndarray, w: np.ndarray, name: str) -> np.ndarray:
    """The definition with Python's integers inside and numpy's float32 scalars outside."""
    q_x, d_x = quantize_int8(x)
    y = np.zeros((len(x), len(w)), np.float32)
    size = FORMATS[name].bytes
    for t in range(len(x)):
        for o in range(len(w)):
            total = np.float32(0)
            for b in range(x.shape[1] // 32):
                block = w[o, b * size : (b + 1) * size]
                d, m, q = scalar_block(block.tobytes(), name)
                part = [int(v) for v in q_x[t, 32 * b : 32 * b + 32]]
                inner = d * np.float32(sum(a * c for a, c in zip(q, part, strict=True)))
                if m is not None:
                    inner = inner + m * np.float32(sum(part))
                total = total + d_x[t, b] * inner
            y[t, o] = total
    return y


def scalar_block(block: bytes, name: str) -> tuple[np.float32, np.float32 | None, list[int]]:
    """Read one block of 32 elements: d, m and the codes."""
    if name == "mxfp4":
        halves = [byte & 15 for byte in block[1:]] + [byte >> 4 for byte in block[1:]]
        sizes = [int(2 * abs(x)) * (-1 if code > 7 else 1) for code, x in enumerate(E2M1)]
        return np.float32(2.0 ** (block[0] - 128)), None, [sizes[code] for code in halves]
    d = np.float32(np.frombuffer(block[:2], "<f2")[0])
    rest = block[2:]
    if name == "q8_0":
        return d, None, [byte - 256 * (byte > 127) for byte in rest]
    m = None
    if name.endswith("1"):
        m, rest = np.float32(np.frombuffer(rest[:2], "<f2")[0]), rest[2:]
    fifth = 0
    if name.startswith("q5"):
        fifth, rest = int.from_bytes(rest[:4], "little"), rest[4:]
    four = [byte & 15 for byte in rest] + [byte >> 4 for byte in rest]
    offset = {"q4_0": 8, "q5_0": 16}.get(name, 0)
    return d, m, [code + 16 * (fifth >> j & 1) - offset for j, code in enumerate(four)]


@pytest.mark.parametrize("name", NARROW)
@given(seed=seeds, T=st.integers(1, 2), outputs=st.integers(1, 3), blocks=st.integers(1, 3))
def test_linear_int8_by_scalars(name, seed, T, outputs, blocks):
    x, w = normal(seed, T, 32 * blocks, dtype=np.float32), quantised(seed + 1, outputs, 32 * blocks, name)
    assert np.array_equal(linear_int8(x, w, name), scalar_linear(x, w, name))


@pytest.mark.parametrize("name", NARROW)
def test_linear_int8_is_near_the_linear_map(name):
    x, w = normal(0, 5, 256, dtype=np.float32), quantised(1, 7, 256, name)
    exact = x @ dequantize(w, name).T
    assert np.linalg.norm(linear_int8(x, w, name) - exact) < 0.01 * np.linalg.norm(exact)


@pytest.mark.parametrize("name", NARROW)
def test_linear_int8_is_exact_for_activations_on_the_grid(name):
    x = np.random.default_rng(0).integers(-127, 128, (3, 64)).astype(np.float64)
    x[:, ::32] = 127
    w = quantised(1, 7, 64, name)
    np.testing.assert_allclose(linear_int8(x, w, name), x @ dequantize(w, name).astype(np.float64).T, rtol=1e-6)


@pytest.mark.parametrize("name", NARROW)
def test_linear_int8_of_a_token_does_not_depend_on_the_others(name):
    x, w = normal(0, 5, 96, dtype=np.float32), quantised(1, 7, 96, name)
    alone = np.concatenate([linear_int8(x[t : t + 1], w, name) for t in range(5)])
    assert np.array_equal(linear_int8(x, w, name), alone)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_linear_int8_keeps_the_dtype(dtype):
    x, w = normal(0, 2, 32, dtype=dtype), quantised(1, 3, 32, "q4_1")
    wide = np.float64 if dtype == np.float64 else np.float32
    got = linear_int8(x, w, "q4_1")
    assert got.dtype == dtype and np.array_equal(got, linear_int8(x.astype(wide), w, "q4_1").astype(dtype))


def bad(value: float) -> np.ndarray:
    x = np.zeros((1, 32), np.float32)
    x[0, 3] = value
    return x


@pytest.mark.parametrize(
    ("label", "call"),
    [
        ("C1", lambda: dequantize(np.zeros((1, 18), np.uint8), "q9_9")),
        ("C2", lambda: dequantize(np.zeros((1, 19), np.uint8), "q4_0")),
        ("C1", lambda: quantize_int8(np.zeros((1, 33), np.float32))),
        ("C2", lambda: quantize_int8(bad(np.nan))),
        ("C2", lambda: quantize_int8(bad(-np.inf))),
        ("C1", lambda: linear_int8(np.zeros((1, 256), np.float32), np.zeros((1, 144), np.uint8), "q4_k")),
        ("C2", lambda: linear_int8(np.zeros((1, 32), np.float32), np.zeros((1, 17), np.uint8), "q4_0")),
        ("C3", lambda: linear_int8(np.zeros((1, 64), np.float32), np.zeros((1, 18), np.uint8), "q4_0")),
    ],
)
def test_constraints(label, call):
    with pytest.raises(ContractError, match=f"^{label}: "):
        call()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_plain_tensor(dtype):
    data = normal(0, 4, 3, dtype=dtype)
    tensor = Tensor(dtype.name, (4, 3), data)
    for wide in (np.float32, np.float64):
        assert tensor.read(wide).dtype == wide and np.array_equal(tensor.read(wide), data.astype(wide))
    assert np.array_equal(tensor.transposed().read(), tensor.read().T) and tensor.transposed().shape == (3, 4)
    assert np.array_equal(tensor.take_rows(np.array([3, 0])).read(), tensor.read()[[3, 0]])
    assert np.shares_memory(tensor.take_rows(slice(1, 3)).data, data)


def test_plain_tensor_is_not_copied():
    data = normal(0, 4, 3, dtype=np.float32)
    assert np.shares_memory(Tensor("float32", (4, 3), data).read(), data)


@each_format
def test_block_tensor(name):
    width = 2 * FORMATS[name].elements
    data = np.zeros((6, 2 * FORMATS[name].bytes), np.uint8) if name.endswith("_k") else quantised(0, 6, width, name)
    tensor = Tensor(name, (6, width), data)
    assert np.array_equal(tensor.read(), dequantize(data, name)) and tensor.read(np.float64).dtype == np.float64
    assert np.array_equal(tensor.take_rows(np.array([5, 1])).read(), tensor.read()[[5, 1]])
    part = tensor.take_rows(slice(2, 4))
    assert np.shares_memory(part.data, data) and part.shape == (2, width)
    cube = Tensor(name, (2, 3, width), data.reshape(2, 3, -1))
    assert np.array_equal(cube.read(), tensor.read().reshape(2, 3, width))
    with pytest.raises(ContractError, match=rf"^C3: blocks of {name} "):
        tensor.transposed()


@pytest.mark.parametrize(
    ("label", "format", "shape", "data"),
    [
        ("C1", "q4_0", (2, 33), np.zeros((2, 18), np.uint8)),
        ("C2", "q4_0", (2, 32), np.zeros((2, 17), np.uint8)),
        ("C2", "q4_0", (2, 32), np.zeros((2, 18), np.int8)),
        ("C2", "float32", (2, 3), np.zeros((2, 3), np.float64)),
        ("C2", "float32", (2, 3), np.zeros((3, 2), np.float32)),
        ("C2", "q4_9", (2, 32), np.zeros((2, 18), np.uint8)),
    ],
)
def test_tensor_is_what_it_says(label, format, shape, data):
    with pytest.raises(ContractError, match=f"^{label}: "):
        Tensor(format, shape, data)
