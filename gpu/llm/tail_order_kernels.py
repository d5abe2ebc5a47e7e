"""The kernels of the cuts that take tokens in an order until a sum is reached: typical and top-h, one block a row.

They find the last token as top-p does. A row without a choice, marked in ``best``, is computed as if its first token
were the best.
"""

import math
from functools import cache

from gpu.compile import Kernel, device_function, numba_kernel
from gpu.llm.row_kernels import last_key, last_token, minus_infinity
from gpu.llm.tail_kernels import below_of, moments_of, units_of
from gpu.number import storage
from refimpl.contract import host

__all__ = ["top_h_kernel", "typical_kernel"]


@host
@cache
def typical_kernel(dtype: str) -> Kernel:
    """Return the kernel of ``typical_into``; ``share`` is p in units of 2^-53, ``weights`` are those of top-p.

    The keys are the 64 bits of the distance to the mean, which order numbers that are not negative.
    """
    from numba import cuda, float64, int32, int64, uint64

    from gpu.select import BINS, block_total, fold, share_of, total
    from gpu.warp import block

    held, cut, below, moments = storage(dtype), minus_infinity(dtype), below_of(dtype), moments_of(dtype)

    @device_function
    def rank(values, number):
        return uint64(cuda.libdevice.double_as_longlong(abs(below(number, values[1]) - values[2])))

    @device_function
    def weight(values, i):
        return values[0][i]

    @device_function
    def first_target(share, sums):
        return share_of(share, total(sums), uint64(1)) if share else int64(0)

    @device_function
    def keep(_, i, number, context):
        out, values, place = context
        out[i] = number if rank(values, number) <= place else cut
        return _

    find, write = last_key(rank, 64, weight, first_target, 16), fold(keep)

    @numba_kernel(
        f"{held}[:, ::1]", f"{held}[:, ::1]", "int32[::1]", "uint64", "int64[:, ::1]", name=f"typical[{dtype}]"
    )
    def typical(out, logits, best, share, weights):
        sums, found = cuda.shared.array(BINS, int64), cuda.shared.array(2, int64)
        row = logits[block()]
        top = row[uint64(max(best[block()], int32(0)))]
        mass, moment = moments(row, top)
        mass, moment = block_total(mass), block_total(moment)
        values = (weights[block()], top, float64(moment) / float64(mass))
        place, _ = find(row, values, share, sums, found)
        write(0, row, (out[block()], values, place))

    return typical


@host
@cache
def top_h_kernel(dtype: str) -> Kernel:
    """Return the kernel of ``top_h_into``; ``share`` is h in units of 2^-53, ``terms`` are made here.

    The terms are written before the barrier of their sum, so that the whole block may read them after it.
    """
    from numba import cuda, float64, int32, int64, uint64

    from gpu.select import BINS, block_total, fold, key, share_of
    from gpu.warp import block

    held, cut, below, moments = storage(dtype), minus_infinity(dtype), below_of(dtype), moments_of(dtype)
    rank, units = key(dtype), units_of(36)

    @device_function
    def make(state, i, number, context):
        terms, best, total = context
        x = below(number, best)
        term = units(cuda.libdevice.exp(x) * (total - x)) if x > -math.inf else int64(0)
        terms[i] = term
        return state + term

    @device_function
    def term(terms, i):
        return terms[i]

    @device_function
    def first_target(target, sums):
        return target

    @device_function
    def keep(_, i, number, context):
        out, place, last, best = context
        own = rank(number)
        out[i] = number if own < place or (own == place and i < last) or i == best else cut
        return _

    spread, find, write = fold(make), last_token(dtype, term, first_target, 16), fold(keep)

    @numba_kernel(
        f"{held}[:, ::1]", f"{held}[:, ::1]", "int32[::1]", "uint64", "int64[:, ::1]", name=f"top_h[{dtype}]"
    )
    def top_h(out, logits, best, share, terms):
        sums, found = cuda.shared.array(BINS, int64), cuda.shared.array(2, int64)
        row, own, first = logits[block()], terms[block()], uint64(max(best[block()], int32(0)))
        mass, _ = moments(row, row[first])
        total = cuda.libdevice.log(float64(block_total(mass)) * float64(2.0**-40))
        entropy = block_total(spread(int64(0), row, (own, row[first], total)))
        place, last = uint64(0), uint64(0)
        if entropy > int64(0):
            place, last = find(row, own, share_of(share, entropy, uint64(0)), sums, found)
        write(0, row, (out[block()], place, last, first))

    return top_h
