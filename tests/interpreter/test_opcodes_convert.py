"""``cvt`` against its definition in fractions, and to the nearest against NumPy and ml_dtypes."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.interpreter import convert
from tests.interpreter.exact import INTEGERS, converted, is_nan, number, register, width_of
from tests.interpreter.warp import LANES, lanes_of, run

OPCODES = list(convert.catalogue())
MODES = {"rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi"}
NUMBERS = (
    [0.5, 1.0, 1.5, 2.5, 127.5, 255.5, 448.0, 464.0, 57344.0, 61440.0, 65504.0, 65519.0, 65520.0, 1e-45, 2.0**-126]
    + [2.0**n for n in (-24, -14, 7, 8, 15, 16, 24, 31, 32, 63, 64, 127)]
    + [2.0**31 - 128, 2.0**63 - 2.0**39, 3.3895314e38, 3.4e38, 1e39, 1e308, 5e-324, 0.1]
)  # fmt: skip


def groups() -> dict[tuple[str, str], list[str]]:
    """Return the opcodes of each pair of types."""
    found: dict[tuple[str, str], list[str]] = {}
    for opcode in convert.catalogue():
        to, source = opcode.split(".")[-2:]
        found.setdefault((to, source), []).append(opcode)
    return found


def corners(kind: str) -> list[int]:
    """Return patterns of a type that are apt to go wrong."""
    width = width_of(kind)
    patterns = [0, 1, (1 << width) - 1, 1 << width - 1, (1 << width - 1) - 1, (1 << width - 1) + 1]
    if kind in INTEGERS:
        near = [(1 << n) + d for n in (11, 24, 53) for d in (-1, 0, 1) if n < width]
        return patterns + near + [-x & ((1 << width) - 1) for x in near]
    with np.errstate(over="ignore"):
        return patterns + [register(s * x, kind) for x in (*NUMBERS, 0.0, math.inf, math.nan) for s in (1, -1)]


def wanted(opcode: str, patterns: np.ndarray) -> list[int]:
    """Return what each pattern becomes."""
    *parts, to, source = opcode.split(".")
    mode = next((part for part in parts if part in MODES), "")
    flags = set(parts) & {"sat", "ftz", "relu", "satfinite"}
    to, source = to.removesuffix("x2"), source.removesuffix("x2")
    return [converted(number(int(pattern), source), source, to, mode, flags) for pattern in patterns]


def check(got: np.ndarray, want: list[int], opcode: str, *operands: np.ndarray) -> None:
    """Compare registers; a NaN that is only widened keeps what bits it likes."""
    to = opcode.split(".")[-2]
    for lane, (mine, truth) in enumerate(zip(got.tolist(), want, strict=True)):
        same = mine == truth or (to == "f32" and is_nan(truth, to) and is_nan(mine, to))
        assert same, (opcode, [hex(int(operand[lane])) for operand in operands], hex(mine), hex(truth))


@pytest.mark.parametrize("types", groups(), ids=".".join)
@settings(max_examples=8)
@given(st.data())
def test_cvt(types: tuple[str, str], data: st.DataObject):
    to, source = (kind.removesuffix("x2") for kind in types)
    draw = lanes_of(width_of(source), corners(source))
    first, second = data.draw(draw), data.draw(draw)
    shift = np.uint64(width_of(to))
    for opcode in groups()[types]:
        if types[1].endswith("x2"):
            operands = [first << np.uint64(width_of(source)) | second]
        else:
            operands = [first, second] if types[0].endswith("x2") else [first]
        got = run(convert, opcode, *operands, width=width_of(to))
        low = np.array(wanted(opcode, operands[-1]), np.uint64)
        pair = (np.array(wanted(opcode, first), np.uint64) << shift | low) if types[0].endswith("x2") else low
        check(got, pair.tolist(), opcode, *operands)


@pytest.mark.parametrize("types", groups(), ids=".".join)
def test_corners(types: tuple[str, str]):
    to, source = (kind.removesuffix("x2") for kind in types)
    listed = corners(source)
    lanes = np.array(listed + [0] * (-len(listed) % LANES), np.uint64).reshape(-1, LANES)
    for opcode in groups()[types]:
        for patterns in lanes:
            operands = [patterns] * (1 + (types[0].endswith("x2") and not types[1].endswith("x2")))
            got = run(convert, opcode, *operands, width=width_of(to))
            check(got & np.uint64((1 << width_of(to)) - 1), wanted(opcode, patterns), opcode, patterns)


def sweep(opcode: str, patterns: np.ndarray) -> np.ndarray:
    """Return what many patterns become, a warp at a time."""
    return np.concatenate([run(convert, opcode, lanes) for lanes in patterns.astype(np.uint64).reshape(-1, LANES)])


@pytest.mark.parametrize(
    ("opcode", "dtype", "bits"),
    [
        ("cvt.rn.f16.f32", np.float16, 16),
        ("cvt.rn.f16x2.f32", np.float16, 32),
        ("cvt.rn.bf16.f32", ml_dtypes.bfloat16, 16),
        ("cvt.rn.bf16x2.f32", ml_dtypes.bfloat16, 32),
    ],
)
def test_narrowing_is_numpys(opcode: str, dtype: type, bits: int):
    patterns = np.random.default_rng(3).integers(0, 1 << 32, 1 << 14).astype(np.uint32)
    patterns[::2] &= 0xFFFFF000  # ties
    x = patterns.view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        want = x.astype(dtype)
    want = np.where(np.isnan(x), 0x7FFF, want.view(np.uint16)).astype(np.uint64)
    lanes = patterns.astype(np.uint64).reshape(-1, LANES)
    got = np.concatenate([run(convert, opcode, *[row] * (bits // 16)) for row in lanes])
    assert np.array_equal(got, want | want << np.uint64(16) if bits == 32 else want)


@pytest.mark.parametrize(("opcode", "dtype"), [("cvt.f32.f16", np.float16), ("cvt.f32.bf16", ml_dtypes.bfloat16)])
def test_widening_is_numpys(opcode: str, dtype: type):
    patterns = np.arange(1 << 16).astype(np.uint16)
    got = sweep(opcode, patterns).astype(np.uint32).view(np.float32)
    want = patterns.view(dtype).astype(np.float32)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.parametrize(("kind", "dtype"), [("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2)])
def test_bytes_go_to_float16_and_back(kind: str, dtype: type):
    pairs = np.arange(1 << 16).astype(np.uint16)
    halves = sweep(f"cvt.rn.f16x2.{kind}x2", pairs)
    want = pairs.view(dtype).astype(np.float16)
    assert np.array_equal(halves.astype(np.uint32).view(np.float16), want, equal_nan=True)
    back = sweep(f"cvt.rn.satfinite.{kind}x2.f16x2", halves).astype(np.uint16).view(np.uint8)
    numbers = np.isfinite(want)
    assert np.array_equal(back[numbers], pairs.view(np.uint8)[numbers])
    assert (back[np.isnan(want)] == 0x7F).all()


@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize("opcode", ["cvt.s8.s32", "cvt.sat.s8.s32", "cvt.rni.s8.f32", "cvt.u8.s32"])
def test_a_signed_result_fills_its_register(opcode: str, width: int):
    source = np.full(LANES, 0xFFFFFF85 if "f32" not in opcode else register(-123.0, "f32"), np.uint64)
    want = 0x85 if "u8" in opcode else -123 & ((1 << width) - 1)
    assert (run(convert, opcode, source, width=width) == want).all()


def test_idle_lanes_keep_theirs():
    lanes = np.arange(LANES).astype(np.float32).view(np.uint32).astype(np.uint64)
    for opcode in ("cvt.rzi.s32.f32", "cvt.rzi.u64.f32", "cvt.f64.f32"):
        got = run(convert, opcode, lanes, mask=0x0F0F0001)
        whole = np.arange(LANES).astype(np.float64)
        want = whole.view(np.uint64) if "f64" in opcode else whole.astype(np.uint64)
        assert (got[[0, 16, 19, 27]] == want[[0, 16, 19, 27]]).all()


def test_what_the_grammar_has_not_is_unknown():
    unknown = (
        "cvt.f16.f32", "cvt.rn.f32.f16", "cvt.rn.s32.f32", "cvt.rzi.f32.s32", "cvt.rn.e4m3x2.f32", "cvt.rn.ftz.f64.s32",
        "cvt.rna.f32.f64", "cvt.rn.relu.f16.f64", "cvt.rn.bf16x2", "cvt.sat.ftz.f32.f32", "mov.b32",
    )  # fmt: skip
    assert [opcode for opcode in unknown if convert.code_of(opcode, 32) is not None] == []
