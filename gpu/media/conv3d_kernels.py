"""The kernel behind ``gpu.media.conv3d``: one thread an output, its sum in one order, so that chunks change no bit."""

from functools import cache

from gpu.compile import Kernel, numba_kernel
from gpu.number import read, storage, write
from refimpl.contract import host

__all__ = ["over_video"]


@host
@cache
def over_video(dtype: str, w_dtype: str, b_dtype: str) -> Kernel:
    """Return the kernel of the causal convolution of a video; its padding is read as zeros."""
    from numba import cuda, float32, uint64

    from gpu.warp import block, thread, threads

    wide, wide_w, wide_b, narrow = read(dtype), read(w_dtype), read(b_dtype), write(dtype)
    held = f"{storage(dtype)}[:, :, :, ::1]"
    types = held, held, f"{storage(w_dtype)}[:, :, :, :, ::1]", f"{storage(b_dtype)}[::1]"

    @numba_kernel(*types, *["uint64"] * 5, name=f"conv3d[{dtype}]")
    def over_video(y, seen, w, b, stride, stride_y, stride_x, top, left):
        frames, rows, columns = uint64(y.shape[1]), uint64(y.shape[2]), uint64(y.shape[3])
        at = block() * threads() + thread()
        if at >= uint64(y.shape[0]) * frames * rows * columns:
            return
        o, t = at // (frames * rows * columns), at // (rows * columns) % frames
        row, column, total = at // columns % rows, at % columns, float32(0)
        for c in range(uint64(w.shape[1])):
            for h in range(uint64(w.shape[2])):
                for i in range(uint64(w.shape[3])):
                    at_y = row * stride_y + i - top
                    for j in range(uint64(w.shape[4])):
                        at_x, value = column * stride_x + j - left, float32(0)
                        if at_y < uint64(seen.shape[2]) and at_x < uint64(seen.shape[3]):
                            value = wide(seen[c, t * stride + h, at_y, at_x])
                        total = cuda.fma(value, wide_w(w[o, c, h, i, j]), total)
        if o < uint64(b.size):
            total += wide_b(b[o])
        y[o, t, row, column] = narrow(total)

    return over_video
