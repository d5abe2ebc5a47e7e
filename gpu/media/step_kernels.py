"""The kernels of solver steps and guidance: one thread an element, or one block over a whole picture."""

import math
from functools import cache

from gpu.compile import Kernel, numba_kernel
from gpu.number import read, storage, write
from refimpl.contract import host

__all__ = [
    "clip_kernel", "guide_kernel", "quantile_kernel", "scale_by_exp_kernel", "scale_kernel", "spread_kernel",
    "step_kernel",
]  # fmt: skip


@host
@cache
def step_kernel(dtype: str, outputs: tuple[str, str] | None = None) -> Kernel:
    """Return the kernel of a solver's step: a sum with weights; two ``outputs``, of these dtypes, are guided in it."""
    from numba import float32, uint64

    from gpu.warp import block, thread, threads

    wide, narrow, held = read(dtype), write(dtype), storage(dtype)

    def total(terms, weights, i):
        sum_ = float32(0)
        for j in range(uint64(terms.shape[0])):
            if weights[j] != float32(0):  # what is not looked at may be NaN
                sum_ += weights[j] * wide(terms[j, i])
        return sum_

    from gpu.compile import device_function

    summed = device_function(total)
    if outputs is None:

        @numba_kernel(f"{held}[::1]", f"{held}[:, ::1]", "float32[::1]", name=f"linear_combination[{dtype}]")
        def linear_combination(out, terms, weights):
            i = block() * threads() + thread()
            if i < uint64(out.size):
                out[i] = narrow(summed(terms, weights, i))

        return linear_combination

    said_cond, said_uncond = map(read, outputs)
    seen_cond, seen_uncond = map(storage, outputs)

    @numba_kernel(
        f"{held}[::1]", f"{held}[:, ::1]", "float32[::1]", f"{seen_cond}[::1]", f"{seen_uncond}[::1]", "float32",
        "float32", name=f"guided_combination[{dtype}]",
    )  # fmt: skip
    def guided_combination(out, terms, weights, cond, uncond, guidance_scale, weight):
        i = block() * threads() + thread()
        if i < uint64(out.size):
            value = summed(terms, weights, i)
            if weight != float32(0):
                u = said_uncond(uncond[i]) if guidance_scale != float32(1) else float32(0)
                c = said_cond(cond[i]) if guidance_scale != float32(0) else float32(0)
                guided = c if guidance_scale == float32(1) else u
                if guidance_scale != float32(1) and guidance_scale != float32(0):
                    guided = u + guidance_scale * (c - u)
                value += weight * guided
            out[i] = narrow(value)

    return guided_combination


@host
@cache
def guide_kernel(dtype: str, uncond_dtype: str) -> Kernel:
    """Return the kernel of guidance at a scale other than 0 and 1."""
    from numba import uint64

    from gpu.warp import block, thread, threads

    wide, other, narrow, held = read(dtype), read(uncond_dtype), write(dtype), storage(dtype)

    @numba_kernel(f"{held}[::1]", f"{held}[::1]", f"{storage(uncond_dtype)}[::1]", "float32", name=f"guide[{dtype}]")
    def guide(out, cond, uncond, guidance_scale):
        i = block() * threads() + thread()
        if i < uint64(out.size):
            u = other(uncond[i])
            out[i] = narrow(u + guidance_scale * (wide(cond[i]) - u))

    return guide


@host
@cache
def scale_by_exp_kernel(dtype: str, exponent_dtype: str) -> Kernel:
    """Return the kernel of scale_by_exp."""
    from numba import uint64

    from gpu.warp import block, thread, threads

    wide, other, narrow, held = read(dtype), read(exponent_dtype), write(dtype), storage(dtype)
    types = f"{held}[::1]", f"{held}[::1]", f"{storage(exponent_dtype)}[::1]", "float32"

    @numba_kernel(*types, name=f"scale_by_exp[{dtype}]")
    def scale_by_exp(out, x, exponent, scale):
        i = block() * threads() + thread()
        if i < uint64(out.size):
            out[i] = narrow(wide(x[i]) * math.exp(scale * other(exponent[i])))

    return scale_by_exp


@host
@cache
def clip_kernel(dtype: str) -> Kernel:
    """Return the kernel that cuts at a number of the host: NaN passes."""
    from numba import uint64

    from gpu.warp import block, thread, threads

    wide, narrow, held = read(dtype), write(dtype), storage(dtype)

    @numba_kernel(f"{held}[::1]", f"{held}[::1]", "float32", name=f"clip_x0[{dtype}]")
    def clip_x0(out, x0, largest):
        i = block() * threads() + thread()
        if i < uint64(out.size):
            value = wide(x0[i])
            value = largest if value > largest else value
            out[i] = narrow(-largest if value < -largest else value)

    return clip_x0


@host
@cache
def scale_kernel(dtype: str) -> Kernel:
    """Return the kernel that cuts at the first of two numbers of the device and multiplies by the second."""
    from numba import uint64

    from gpu.warp import block, thread, threads

    wide, narrow, held = read(dtype), write(dtype), storage(dtype)

    @numba_kernel(f"{held}[::1]", f"{held}[::1]", "float32[::1]", name=f"cut_and_scale[{dtype}]")
    def cut_and_scale(out, x, numbers):
        i = block() * threads() + thread()
        if i < uint64(out.size):
            value, largest = wide(x[i]), numbers[0]
            value = largest if value > largest else value
            value = -largest if value < -largest else value
            out[i] = narrow(value / numbers[1])

    return cut_and_scale


@host
@cache
def spread_kernel(dtype: str, cond_dtype: str) -> Kernel:
    """Return the kernel of what rescaling guidance divides by: one block, two passes over each picture."""
    from numba import float32, uint64

    from gpu.warp import block_sum, thread, threads

    wide, wide_cond = read(dtype), read(cond_dtype)
    types = "float32[::1]", f"{storage(dtype)}[::1]", f"{storage(cond_dtype)}[::1]", "float32"

    @numba_kernel(*types, name=f"rescale_spread[{dtype}]")
    def rescale_spread(numbers, guided, cond, rescale):
        count, sum_, sum_cond, i = uint64(guided.size), float32(0), float32(0), thread()
        while i < count:
            sum_ += wide(guided[i])
            sum_cond += wide_cond(cond[i])
            i += threads()
        mean, mean_cond = block_sum(sum_) / float32(count), block_sum(sum_cond) / float32(count)
        squares, squares_cond, i = float32(0), float32(0), thread()
        while i < count:
            away, away_cond = wide(guided[i]) - mean, wide_cond(cond[i]) - mean_cond
            squares += away * away
            squares_cond += away_cond * away_cond
            i += threads()
        guided_spread, cond_spread = math.sqrt(block_sum(squares)), math.sqrt(block_sum(squares_cond))
        if thread() == uint64(0):
            factor = float32(1)
            if guided_spread != float32(0):
                factor = float32(1) - rescale + rescale * cond_spread / guided_spread
            numbers[0], numbers[1] = float32(math.inf), float32(1) / factor

    return rescale_spread


@host
@cache
def quantile_kernel(dtype: str) -> Kernel:
    """Return the kernel of a quantile of abs(x): one block halves the range of the bits, 31 times, and counts."""
    from numba import cuda, float32, int32, uint64

    from gpu.warp import block_max, block_sum, thread, threads

    wide, held = read(dtype), storage(dtype)

    @numba_kernel("float32[::1]", f"{held}[::1]", "int64", "float32", "float32", name=f"quantile[{dtype}]")
    def quantile(numbers, x, place, part, largest):
        count, low, high = uint64(x.size), int32(-1), int32(0x7FFFFFFF)  # the value at place is in low + 1..high
        while high - low > int32(1):
            middle, below, i = low + (high - low) // int32(2), float32(0), thread()
            while i < count:
                bits = cuda.libdevice.float_as_int(abs(wide(x[i])))
                below += float32(1) if bits <= middle else float32(0)
                i += threads()
            if block_sum(below) > float32(place):
                high = middle
            else:
                low = middle
        below, above, nan, i = float32(0), float32(math.inf), float32(0), thread()
        while i < count:
            value = abs(wide(x[i]))
            bits = cuda.libdevice.float_as_int(value)
            below += float32(1) if bits <= high else float32(0)
            above = value if bits > high and value < above else above
            nan += float32(1) if value != value else float32(0)
            i += threads()
        below, above, nan = block_sum(below), -block_max(-above), block_sum(nan)
        if thread() == uint64(0):
            at = cuda.libdevice.int_as_float(high)
            after = at if below > float32(place) + float32(1) or part == float32(0) else above
            s = at if at == after else at + (after - at) * part
            s = min(max(s, float32(1)), largest)
            s = float32(math.nan) if nan > float32(0) else s
            numbers[0], numbers[1] = s, s

    return quantile
