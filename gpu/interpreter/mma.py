"""The tensor cores: ``mma.sync`` on fragments in the registers of a warp; and ``movmatrix``, which transposes one.

A register of a fragment is a word of one, two or four neighbours along k. With g = lane / 4 and t = lane % 4 the ISA's
tables say, for every type alike: word r of A is row g + 8 (r % 2), word column t + 4 (r / 2); word r of B is word row
t + 4 r of column g; and number i of C or D is row g + 8 (i / 2), column 2 t + i % 2.

The hardware does not say in which order it adds. Here a sum begins with C and takes the products in the order of k,
each product exact and each sum rounded once to the nearest float32; a float16 result is rounded once more at the end.
"""

import functools

import numpy as np
from numba import types

from gpu.interpreter.bits import bits_to_float32, float32_to_bits, fma32
from gpu.interpreter.formats import bfloat16_value, float16_of, float16_value
from gpu.interpreter.grammar import expand
from gpu.interpreter.jit import allocating, inlined
from gpu.interpreter.lanes import LANES
from refimpl.contract import host

__all__ = ["catalogue", "code_of", "execute"]

_GRAMMAR = """
    mma.sync.aligned.m16n8k8.row.col.FLOAT.f16.f16.FLOAT
    mma.sync.aligned.m16n8k16.row.col.FLOAT.f16.f16.FLOAT
    mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
    mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32
    mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32
    mma.sync.aligned.m16n8k16.row.col{.satfinite}.s32.BYTE.BYTE.s32
    mma.sync.aligned.m16n8k32.row.col{.satfinite}.s32.BYTE.BYTE.s32
    mma.sync.aligned.m16n8k16.row.col.FLOAT.QUARTER.QUARTER.FLOAT
    mma.sync.aligned.m16n8k32.row.col.FLOAT.QUARTER.QUARTER.FLOAT
"""
_MOVE = "movmatrix.sync.aligned.m8n8.trans.b16"
_LISTS = {"FLOAT": ("f32", "f16"), "BYTE": ("s8", "u8"), "QUARTER": ("e4m3", "e5m2")}
_KINDS = ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8")
_F16, _BF16, _TF32, _E4M3, _E5M2, _S8, _U8 = range(7)
_TRANSPOSE = 1 << 19
_HALF, _WORD, _NAN = np.uint64(16), np.uint64(0xFFFFFFFF), np.uint64(0x7FFFFFFF)


@functools.cache
@host
def catalogue() -> dict[str, int]:
    """Return every opcode with its code: the types of A and B, k, halves in C and D, limits."""
    codes = {_MOVE: _TRANSPOSE}
    for opcode in expand(_GRAMMAR, _LISTS):
        *words, d, a, b, c = opcode.split(".")
        flags = (c == "f16") << 16 | (d == "f16") << 17 | ("satfinite" in words) << 18
        codes[opcode] = _KINDS.index(a) | _KINDS.index(b) << 4 | int(words[3][6:]) << 8 | flags
    return codes


@host
def code_of(opcode: str, width: int) -> int | None:
    """Return the code of an opcode, or None.

    >>> code_of("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 32) is not None
    True
    """
    return catalogue().get(opcode)


@inlined
def _per_word(kind):
    """Return how many numbers a register holds."""
    return 2 if kind <= _BF16 else 1 if kind == _TF32 else 4


@allocating
def execute(regs, rows, mask, code):
    """Run one instruction; every lane takes part."""
    if code == _TRANSPOSE:
        _transpose(regs[rows[0]], regs[rows[1]])
        return
    a, b, k = code & 15, (code >> 4) & 15, (code >> 8) & 255
    from_halves, to_halves = (code >> 16) & 1, (code >> 17) & 1
    words = k // _per_word(a) // 4  # registers of B; A has twice as many
    first = 2 if to_halves else 4
    middle, last = first + 2 * words, first + 3 * words
    left, right = np.empty((16, k), np.float32), np.empty((k, 8), np.float32)
    spread = np.empty((4, LANES), np.float32)
    for r in range(2 * words):
        _spread(regs[rows[first + r]], a, spread)
        _place_left(spread, left, r, _per_word(a))
    for r in range(words):
        _spread(regs[rows[middle + r]], b, spread)
        _place_right(spread, right, r, _per_word(b))
    if a >= _S8:
        _integers(left, right, regs, rows, last, (code >> 18) & 1)
    else:
        _floats(left, right, regs, rows, last, from_halves, to_halves)


@inlined
def _quarter(bits, kind):
    """Return an 8-bit float as float32: an e5m2 is the upper byte of a float16, an e4m3 needs another bias."""
    if kind == _E5M2:
        return float16_value(bits << np.uint64(8))
    magnitude = bits & np.uint64(0x7F)
    value = float16_value((bits & np.uint64(0x80)) << np.uint64(8) | magnitude << np.uint64(7)) * np.float32(256)
    return np.float32(np.nan) if magnitude == np.uint64(0x7F) else value


@allocating
def _spread(words, kind, out):
    """Write the numbers of each lane's word, low ones first; every one is exact in float32."""
    if kind == _TF32:
        for lane in range(LANES):
            out[0, lane] = bits_to_float32(words[lane] & np.uint64(0xFFFFE000))
    elif kind == _F16:
        for i in range(2):
            for lane in range(LANES):
                out[i, lane] = float16_value(words[lane] >> np.uint64(16 * i))
    elif kind == _BF16:
        for i in range(2):
            for lane in range(LANES):
                out[i, lane] = bfloat16_value(words[lane] >> np.uint64(16 * i))
    else:
        for i in range(4):
            for lane in range(LANES):
                bits = (words[lane] >> np.uint64(8 * i)) & np.uint64(0xFF)
                if kind >= _S8:
                    out[i, lane] = np.float32(types.int8(bits) if kind == _S8 else types.int32(bits))
                else:
                    out[i, lane] = _quarter(bits, kind)


@inlined
def _place_left(spread, left, r, count):
    """Put a register of A in its place."""
    for lane in range(LANES):
        g, t = lane >> 2, lane & 3
        for i in range(count):
            left[g + 8 * (r & 1), (t + 4 * (r >> 1)) * count + i] = spread[i, lane]


@inlined
def _place_right(spread, right, r, count):
    """Put a register of B in its place."""
    for lane in range(LANES):
        g, t = lane >> 2, lane & 3
        for i in range(count):
            right[(t + 4 * r) * count + i, g] = spread[i, lane]


@allocating
def _floats(left, right, regs, rows, last, from_halves, to_halves):
    """Write D = A B + C of floats."""
    sums = np.empty((16, 8), np.float32)
    for lane in range(LANES):
        for i in range(4):
            bits = regs[rows[last + (i >> 1 if from_halves else i)], lane]
            value = float16_value(bits >> np.uint64(16 * (i & 1))) if from_halves else bits_to_float32(bits)
            sums[(lane >> 2) + 8 * (i >> 1), 2 * (lane & 3) + (i & 1)] = value
    for m in range(16):
        for k in range(left.shape[1]):
            x = left[m, k]
            for n in range(8):
                sums[m, n] = fma32(x, right[k, n], sums[m, n])
    for lane in range(LANES):
        for i in range(4):
            value = sums[(lane >> 2) + 8 * (i >> 1), 2 * (lane & 3) + (i & 1)]
            if not to_halves:
                regs[rows[i], lane] = np.uint64(float32_to_bits(value)) if value == value else _NAN
            elif i & 1:
                regs[rows[i >> 1], lane] |= np.uint64(float16_of(value)) << _HALF
            else:
                regs[rows[i >> 1], lane] = np.uint64(float16_of(value))


@allocating
def _integers(left, right, regs, rows, last, limited):
    """Write D = A B + C of integers, which float64 holds exactly; what is too large wraps around, or is clamped."""
    sums = np.empty((16, 8), np.float64)
    for lane in range(LANES):
        for i in range(4):
            value = np.float64(types.int32(regs[rows[last + i], lane]))
            sums[(lane >> 2) + 8 * (i >> 1), 2 * (lane & 3) + (i & 1)] = value
    for m in range(16):
        for k in range(left.shape[1]):
            for n in range(8):
                sums[m, n] += np.float64(left[m, k] * right[k, n])
    for lane in range(LANES):
        for i in range(4):
            value = sums[(lane >> 2) + 8 * (i >> 1), 2 * (lane & 3) + (i & 1)]
            if limited:
                value = min(max(value, -2147483648.0), 2147483647.0)
            regs[rows[i], lane] = np.uint64(np.int64(value)) & _WORD


@allocating
def _transpose(target, source):
    """Transpose an 8 x 8 matrix of 16-bit numbers."""
    words = source.copy()  # the registers may be one
    for lane in range(LANES):
        g, t = lane >> 2, lane & 3
        shift = np.uint64(16 * (g & 1))
        low, high = words[8 * t + (g >> 1)] >> shift, words[8 * t + 4 + (g >> 1)] >> shift
        target[lane] = (low & np.uint64(0xFFFF)) | (high & np.uint64(0xFFFF)) << _HALF
