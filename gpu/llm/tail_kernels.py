"""The kernels of the cuts by a threshold that the whole distribution gives, one block a row.

A block sums over its row as often as it needs, in integers; then each thread writes its elements. A row without a
choice, marked in ``best``, is computed as if its first token were the best.
"""

import math
from functools import cache
from typing import Any

from gpu.compile import Kernel, device_function, numba_kernel
from gpu.llm.row_kernels import minus_infinity
from gpu.number import read, storage
from refimpl.contract import host

__all__ = ["below_of", "cutoff_kernel", "moments_of", "top_n_sigma_kernel", "units_of"]


@host
@cache
def below_of(dtype: str) -> Any:
    """Return the function that gives by how much a number lies below the best of its row, in float64."""
    from numba import float64

    wide = read(dtype)

    @device_function
    def below(number, best):
        return float64(wide(number)) - float64(wide(best))

    return below


@host
@cache
def units_of(power: int) -> Any:
    """Return the function that rounds float64 to a multiple of 2^-power."""
    from numba import cuda, float64

    one = 2.0**power

    @device_function
    def units(x):
        return cuda.libdevice.double2ll_rn(x * float64(one))

    return units


@host
@cache
def moments_of(dtype: str) -> Any:
    """Return the function that has each thread sum exp(x) and exp(x) x of its elements, in units of 2^-40.

    The kernel itself adds up the block: shared memory that is asked for in two functions cannot be linked.
    """
    from numba import cuda, float64, int64

    from gpu.select import fold

    below, units = below_of(dtype), units_of(40)

    @device_function
    def add(state, i, number, best):
        x = below(number, best)
        weight = cuda.libdevice.exp(x)
        return state[0] + units(weight), state[1] + units(weight * x if x > -math.inf else float64(0))

    sums = fold(add)

    @device_function
    def moments(row, best):
        return sums((int64(0), int64(0)), row, best)

    return moments


@host
@cache
def cutoff_kernel(dtype: str, is_eta: bool) -> Kernel:
    """Return the kernel of ``epsilon_cutoff_into`` and ``eta_cutoff_into``; ``share`` is epsilon in units of 2^-53."""
    from numba import cuda, float64, int32, int64, uint64

    from gpu.select import block_total, fold, share_of
    from gpu.warp import block

    held, cut, below, moments = storage(dtype), minus_infinity(dtype), below_of(dtype), moments_of(dtype)
    units = units_of(40)

    @device_function
    def keep(_, i, number, context):
        out, best, least = context
        x = below(number, best)
        out[i] = number if units(cuda.libdevice.exp(x)) >= least or x == float64(0) else cut
        return _

    write = fold(keep)

    @numba_kernel(
        f"{held}[:, ::1]", f"{held}[:, ::1]", "int32[::1]", "uint64", "float64",
        name=f"{'eta' if is_eta else 'epsilon'}_cutoff[{dtype}]",
    )
    def cutoff(out, logits, best, share, root):
        row = logits[block()]
        top = row[uint64(max(best[block()], int32(0)))]
        mass, moment = moments(row, top)
        mass, moment = block_total(mass), block_total(moment)
        least = share_of(share, mass, uint64(1)) + int64(1) if share else int64(0)
        if is_eta:
            scaled = root * cuda.libdevice.exp(float64(moment) / float64(mass)) * float64(2**40)
            least = min(least, cuda.libdevice.double2ll_ru(scaled))
        write(0, row, (out[block()], top, least))

    return cutoff


@host
@cache
def top_n_sigma_kernel(dtype: str) -> Kernel:
    """Return the kernel of ``top_n_sigma_into``: the widest distance, the mean, the deviation, the cut."""
    from numba import cuda, float64, int32, int64, uint64

    from gpu.select import block_min, block_total, fold
    from gpu.warp import block

    held, cut, below, units = storage(dtype), minus_infinity(dtype), below_of(dtype), units_of(40)

    @device_function
    def farther(most, i, number, best):
        x = below(number, best)
        return max(most, uint64(cuda.libdevice.double_as_longlong(abs(x)))) if x > -math.inf else most

    @device_function
    def add(state, i, number, context):
        best, exponent, mean = context
        x = below(number, best)
        if not x > -math.inf:
            return state
        scaled = cuda.libdevice.ldexp(x, -exponent)
        rest = scaled - mean
        return state[0] + int64(1), state[1] + units(scaled), state[2] + units(rest * rest)

    @device_function
    def keep(_, i, number, context):
        out, best, least = context
        out[i] = number if below(number, best) >= least else cut
        return _

    find, total, write = fold(farther), fold(add), fold(keep)

    @numba_kernel(
        f"{held}[:, ::1]", f"{held}[:, ::1]", "int32[::1]", "float64", name=f"top_n_sigma[{dtype}]"
    )
    def top_n_sigma(out, logits, best, n):
        row, none = logits[block()], (int64(0), int64(0), int64(0))
        top = row[uint64(max(best[block()], int32(0)))]
        widest = cuda.libdevice.longlong_as_double(int64(~block_min(~find(uint64(0), row, top))))
        exponent = cuda.libdevice.ilogb(widest) + int32(1) if widest > float64(0) else int32(0)
        count, mine, _ = total(none, row, (top, exponent, float64(0)))
        unit = float64(2.0**-40) / float64(block_total(count))
        mean = cuda.libdevice.dmul_rn(float64(block_total(mine)), unit)  # rounded, where a multiply-add would not be
        _, _, squares = total(none, row, (top, exponent, mean))
        sigma = cuda.libdevice.ldexp(math.sqrt(float64(block_total(squares)) * unit), exponent)
        write(0, row, (out[block()], top, -(n * sigma)))

    return top_n_sigma
