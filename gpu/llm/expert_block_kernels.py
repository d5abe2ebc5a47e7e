"""The kernel over a stack of quantised matrices: rows of x sorted by expert, a warp a row of weights."""

from functools import cache

from gpu.compile import Kernel, numba_kernel
from gpu.llm.block_kernels import CHUNK, WARPS, held_words, read_chunk
from gpu.llm.blocks import place
from refimpl.contract import host

__all__ = ["ROWS", "grouped_blocks"]

ROWS = 32
"""Of x, at most, for which a warp reads a row of weights once: a lane keeps the sum of one."""


@host
@cache
def grouped_blocks(format: str) -> Kernel:
    """Return the kernel in which a warp computes an output of ``tall`` rows, for each expert that has some of them.

    A row's sum has the order that linear_blocks_kernel has.
    """
    from numba import cuda, float32, uint16, uint64

    from gpu.warp import block, lane, warp, warp_sum

    chunk, most, put = read_chunk(format), held_words(format, CHUNK), place()

    @numba_kernel(
        "float32[:, ::1]", "float32[:, ::1]", "uint16[::1]", "int32[::1]", "float32[:, ::1]", "uint64",
        name=f"grouped_blocks[{format}]",
    )
    def grouped(y, x, words, offsets, b, tall):
        held, weights = cuda.shared.array((WARPS, most), uint16), cuda.shared.array((WARPS, CHUNK), float32)
        o, top = block() * uint64(WARPS) + warp(), uint64(cuda.blockIdx.y) * tall
        outputs, width, bottom = uint64(y.shape[1]), uint64(x.shape[1]), min(top + tall, uint64(len(x)))
        e = uint64(0)
        while o < outputs and e + uint64(1) < uint64(offsets.size):
            first, last = max(uint64(offsets[e]), top), min(uint64(offsets[e + uint64(1)]), bottom)
            mine, start = float32(0), uint64(0)
            while start < width and first < last:
                end, row = min(start + uint64(CHUNK), width), first
                chunk(weights[warp()], held[warp()], words, e * outputs + o, width, start, end)
                while row < last:
                    part, column = float32(0), lane()
                    while start + column < end:
                        part += weights[warp(), put(column)] * x[row, start + column]
                        column += uint64(32)
                    part = warp_sum(part)
                    mine += part if top + lane() == row else float32(0)
                    row += uint64(1)
                start += uint64(CHUNK)
            if first <= top + lane() < last:
                y[top + lane(), o] = mine + (b[e, o] if e < uint64(len(b)) else float32(0))
            e += uint64(1)

    return grouped
