"""Kernels over quantised weights: a warp a row, whose words it reads in aligned runs into shared memory."""

from functools import cache
from typing import Any

from gpu.compile import Kernel, device_function, numba_kernel
from gpu.llm.block_scales import scales, unit
from gpu.llm.blocks import FORMATS, block_units, code, decode, place
from gpu.number import storage, write
from refimpl.blocks import LAYOUTS
from refimpl.contract import host

__all__ = [
    "CHUNK", "WARPS", "dequantize_kernel", "held_words", "linear_blocks_kernel", "linear_int8_kernel", "read_chunk",
]  # fmt: skip

WARPS = 8
"""Warps of a block."""

CHUNK = 512
"""Columns that a warp reads at a time: whole blocks of every format, nearly whole sectors of memory."""

_SECTOR = 16  # words
_APART = 36  # bytes from one block of codes to the next: 9 banks, so that no two lanes read from the same


@cache
def _stage(format: str) -> Any:
    """Return the function that has a warp copy columns of a row, whole blocks, to shared memory, as they are.

    It gives the place of their first block. Loads begin at a sector of memory, so that none is asked for twice.
    """
    from numba import cuda, uint64

    from gpu.warp import lane

    elements, units, of_word = FORMATS[format].elements, block_units(format), 2 // unit(format)

    @device_function
    def stage(held, words, row, width, start, end):
        first = (row * width + start) // uint64(elements) * uint64(units)
        last = ((row * width + end) // uint64(elements) * uint64(units) + uint64(of_word - 1)) // uint64(of_word)
        sector = first // uint64(of_word) & ~uint64(_SECTOR - 1)
        cuda.syncwarp()  # what was there is read
        i = sector
        while i < last:  # as often for every lane: unrolled, lanes with another count would ask for other sectors
            if i + lane() < last:
                held[i + lane() - sector] = words[i + lane()]
            i += uint64(32)
        cuda.syncwarp()
        return first - sector * uint64(of_word)

    return stage


@host
def held_words(format: str, columns: int) -> int:
    """Return the words of shared memory that so many columns take."""
    return columns // FORMATS[format].elements * FORMATS[format].bytes // 2 + 1 + _SECTOR


@host
@cache
def read_chunk(format: str) -> Any:
    """Return the function that has a warp turn a chunk of a row into float32 in shared memory, by way of its words."""
    from numba import cuda, uint64

    from gpu.warp import lane

    stage, read = _stage(format), decode(format)

    @device_function
    def chunk(weights, held, words, row, width, start, end):
        at, column = stage(held, words, row, width, start, end), lane() * uint64(16)
        if column < uint64(end - start):
            read(weights, held, at, column)
        cuda.syncwarp()

    return chunk


@host
@cache
def dequantize_kernel(format: str) -> Kernel:
    """Return the kernel of ``dequantize_into``."""
    from numba import cuda, float32, uint16, uint64

    from gpu.warp import block, lane, warp

    chunk, most, put = read_chunk(format), held_words(format, CHUNK), place()

    @numba_kernel("float32[:, ::1]", "uint16[::1]", "int32[::1]", name=f"dequantize[{format}]")
    def dequantize(out, words, ids):
        held, weights = cuda.shared.array((WARPS, most), uint16), cuda.shared.array((WARPS, CHUNK), float32)
        row, start = uint64(cuda.blockIdx.y) * uint64(WARPS) + warp(), block() * uint64(CHUNK)
        width = uint64(out.shape[1])
        if row < uint64(len(out)):
            end, column = min(start + uint64(CHUNK), width), lane()
            source = uint64(ids[row]) if row < uint64(ids.size) else row
            chunk(weights[warp()], held[warp()], words, source, width, start, end)
            while start + column < end:
                out[row, start + column] = weights[warp(), put(column)]
                column += uint64(32)

    return dequantize


@host
@cache
def linear_blocks_kernel(format: str) -> Kernel:
    """Return the kernel of ``linear_blocks_into``."""
    from numba import cuda, float32, uint16, uint64

    from gpu.warp import block, lane, warp, warp_sum

    chunk, most, put = read_chunk(format), held_words(format, CHUNK), place()

    @numba_kernel(
        "float32[:, ::1]", "float32[:, ::1]", "uint16[::1]", "float32[::1]", "float32[:, ::1]",
        name=f"linear_blocks[{format}]",
    )
    def linear_blocks(y, x, words, b, residual):
        held, weights = cuda.shared.array((WARPS, most), uint16), cuda.shared.array((WARPS, CHUNK), float32)
        row, first_token = block() * uint64(WARPS) + warp(), uint64(cuda.blockIdx.y) * uint64(32)
        width, tokens = uint64(x.shape[1]), min(uint64(len(x)) - first_token, uint64(32))
        mine, start = float32(0), uint64(0)
        while start < width and row < uint64(y.shape[1]):
            end, token = min(start + uint64(CHUNK), width), uint64(0)
            chunk(weights[warp()], held[warp()], words, row, width, start, end)
            while token < tokens:
                part, column = float32(0), lane()
                while start + column < end:
                    part += weights[warp(), put(column)] * x[first_token + token, start + column]
                    column += uint64(32)
                part = warp_sum(part)
                mine += part if lane() == token else float32(0)
                token += uint64(1)
            start += uint64(CHUNK)
        if lane() < tokens and row < uint64(y.shape[1]):
            mine += b[row] if row < uint64(b.size) else float32(0)
            mine += residual[first_token + lane(), row] if residual.size else float32(0)
            y[first_token + lane(), row] = mine

    return linear_blocks


@cache
def _term(format: str) -> Any:
    """Return the function that multiplies a block with 32 codes and rounds each product and sum around the integers."""
    from numba import cuda, float32, int32, uint64

    read_code, read_scales, has_m = code(format), scales(format), "m" in (LAYOUTS[format].names or ())

    @device_function
    def term(words, at, q, scale):
        dot, everything = int32(0), int32(0)
        for i in range(32):
            value = int32(q[i])
            dot += read_code(words, at, uint64(i)) * value
            everything += value
        d, m = read_scales(words, at, uint64(0))
        inner = cuda.libdevice.fmul_rn(d, float32(dot))
        if has_m:
            inner = cuda.libdevice.fadd_rn(inner, cuda.libdevice.fmul_rn(m, float32(everything)))
        return cuda.libdevice.fmul_rn(scale, inner)

    return term


@host
@cache
def linear_int8_kernel(dtype: str, format: str) -> Kernel:
    """Return the kernel of ``linear_int8_into``."""
    from numba import cuda, float32, int8, uint16, uint64

    from gpu.warp import block, lane, warp

    stage, term, most, units = _stage(format), _term(format), held_words(format, 32 * 32), block_units(format)
    narrow = write(dtype)

    @numba_kernel(
        f"{storage(dtype)}[:, ::1]", "int8[:, ::1]", "float32[:, ::1]", "uint16[::1]",
        name=f"linear_int8[{dtype}, {format}]",
    )
    def linear_int8(y, q, scale, words):
        held, held_q = cuda.shared.array((WARPS, most), uint16), cuda.shared.array((WARPS, 32, _APART), int8)
        row, first_token = block() * uint64(WARPS) + warp(), uint64(cuda.blockIdx.y) * uint64(32)
        width, tokens = uint64(q.shape[1]), min(uint64(len(y)) - first_token, uint64(32))
        mine, start = float32(0), uint64(0)
        while start < width and row < uint64(y.shape[1]):
            end = min(start + uint64(32 * 32), width)
            at = stage(held[warp()], words, row, width, start, end) + lane() * uint64(units)
            count, own, t = (end - start) // uint64(32), start // uint64(32) + lane(), first_token
            while t < first_token + tokens:
                cuda.syncwarp()
                for b in range(count):
                    held_q[warp(), b, lane()] = q[t, start + b * uint64(32) + lane()]
                cuda.syncwarp()
                part = term(held[warp()], at, held_q[warp(), lane()], scale[t, own]) if lane() < count else float32(0)
                total = cuda.shfl_sync(0xFFFFFFFF, mine, t - first_token)
                for b in range(count):
                    total = cuda.libdevice.fadd_rn(total, cuda.shfl_sync(0xFFFFFFFF, part, b))
                mine = total if lane() == t - first_token else mine
                t += uint64(1)
            start = end
        if lane() < tokens and row < uint64(y.shape[1]):
            y[first_token + lane(), row] = narrow(mine)

    return linear_int8
