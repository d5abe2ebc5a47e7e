"""The kernels of routers: one warp a token. An expert's place in the order is one 64-bit number, as in gpu.select."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from gpu.basics.activation_kernels import formulas
from gpu.compile import Kernel, device_function, numba_kernel
from gpu.number import read, storage
from refimpl.contract import host

__all__ = ["WARPS", "choose", "close_groups", "look_up"]

WARPS = 8
"""Of a block; each routes one token."""
_LEAST = 1e-20  # what keeps a sum of scores off 0 where all underflow


@host
@cache
def choose(form: str, share_of: str, dtype: str, bias_dtype: str) -> Kernel:
    """Return the kernel that takes the first k of all experts, one a pass: the least place above the last one's.

    ``form``: exponential, plain, sigmoid or sqrt_softplus. A weight is divided by the sum over all experts, over the
    chosen, or, ``share_of`` nothing, not at all; every lane adds up the chosen in the same order.
    """
    from numba import cuda, float32, int32, uint64

    from gpu.warp import block, lane, warp, warp_sum

    wide, take, (_, strength) = read(dtype), _take(form, dtype, bias_dtype), _scores(form)
    divides, whole, least_sum = share_of != "nothing", share_of == "all", _LEAST

    @numba_kernel(
        "int32[:, ::1]", "float32[:, ::1]", f"{storage(dtype)}[:, ::1]", f"{storage(bias_dtype)}[::1]",
        "int32[:, ::1]", "float32", name=f"route[{form} of {share_of}, {dtype}]",
    )
    def route(ids, weights, logits, bias, closed, scale):
        t, E, k = block() * uint64(WARPS) + warp(), uint64(logits.shape[1]), uint64(ids.shape[1])
        if t >= uint64(logits.shape[0]):
            return
        least, total, best, a = uint64(0), float32(0), float32(0), uint64(0)
        while a < k:
            place = take(logits, bias, closed, t, least)
            least, e = place + uint64(1), place & uint64(0xFFFFFFFF)
            if a == uint64(0):
                best = wide(logits[t, e])
            weight = strength(wide(logits[t, e]), best)
            total += weight
            if lane() == uint64(0):
                ids[t, a], weights[t, a] = int32(e), weight
            a += uint64(1)
        if whole:
            total, e = float32(0), lane()
            while e < E:
                total += strength(wide(logits[t, e]), best)
                e += uint64(32)
            total = warp_sum(total)
        cuda.syncwarp()
        a = lane()
        while a < k:
            weights[t, a] = scale * (weights[t, a] / (total + float32(least_sum)) if divides else weights[t, a])
            a += uint64(32)

    return route


@cache
def _take(form: str, dtype: str, bias_dtype: str) -> Any:
    """Return the function that gives a warp the least place, from ``least`` on, of a token's experts."""
    from numba import float32, uint64

    from gpu.select import key, warp_min
    from gpu.warp import lane

    wanted, rank = _wanted(form, dtype, bias_dtype), key("float32")

    @device_function
    def take(logits, bias, closed, t, least):
        E, groups, place, e = uint64(logits.shape[1]), uint64(closed.shape[1]), ~uint64(0), lane()
        width = E // max(groups, uint64(1))
        while e < E:
            score = wanted(logits, bias, t, e)
            if closed.size and closed[t, e // width]:
                score = float32(-math.inf)
            own = rank(score) << uint64(32) | e
            if own >= least:
                place = min(place, own)
            e += uint64(32)
        return warp_min(place)

    return take


@cache
def _wanted(form: str, dtype: str, bias_dtype: str) -> Any:
    """Return the function that gives by what an expert is chosen: its score, and its bias where there is one."""
    from numba import uint64

    wide, wide_bias, (chosen_by, _) = read(dtype), read(bias_dtype), _scores(form)

    @device_function
    def wanted(logits, bias, t, e):
        score = chosen_by(wide(logits[t, e]))
        return score + wide_bias(bias[e]) if e < uint64(bias.size) else score

    return wanted


@host
@cache
def close_groups(dtype: str, bias_dtype: str) -> Kernel:
    """Return the kernel that marks the groups of experts which are not among a token's best, by sigmoid scores."""
    from numba import cuda, float32, int32, uint64

    from gpu.select import key
    from gpu.warp import block, lane, warp

    wanted, rank = _wanted("sigmoid", dtype, bias_dtype), key("float32")

    @numba_kernel(
        "int32[:, ::1]", "float32[:, ::1]", f"{storage(dtype)}[:, ::1]", f"{storage(bias_dtype)}[::1]", "int64",
        name=f"close_groups[{dtype}]",
    )
    def close_groups(closed, sums, logits, bias, top_groups):
        t, groups = block() * uint64(WARPS) + warp(), uint64(closed.shape[1])
        if t >= uint64(logits.shape[0]):
            return
        width, g = uint64(logits.shape[1]) // groups, lane()
        while g < groups:
            first, second, e = float32(-math.inf), float32(-math.inf), g * width
            while e < (g + uint64(1)) * width:
                score = wanted(logits, bias, t, e)
                if score > first or score != score:
                    first, second = score, first
                elif score > second:
                    second = score
                e += uint64(1)
            sums[t, g] = first + second if width > uint64(1) else first
            g += uint64(32)
        cuda.syncwarp()
        g = lane()
        while g < groups:
            own, before, other = rank(sums[t, g]) << uint64(32) | g, uint64(0), uint64(0)
            while other < groups:
                before += uint64(1) if rank(sums[t, other]) << uint64(32) | other < own else uint64(0)
                other += uint64(1)
            closed[t, g] = int32(before >= uint64(top_groups))
            g += uint64(32)

    return close_groups


@host
@cache
def look_up(dtype: str) -> Kernel:
    """Return the kernel of ``hash_route_into``: one thread a token, which reads its experts' logits twice."""
    from numba import float32, uint64

    from gpu.warp import block, thread, threads

    wide, (_, strength), least_sum = read(dtype), _scores("sqrt_softplus"), _LEAST

    @numba_kernel(
        "int32[:, ::1]", "float32[:, ::1]", f"{storage(dtype)}[:, ::1]", "int32[::1]", "int32[:, ::1]", "float32",
        name=f"hash_route[{dtype}]",
    )
    def look_up(ids, weights, logits, token_ids, table, scale):
        t, total = block() * threads() + thread(), float32(0)
        if t >= uint64(logits.shape[0]):
            return
        token = uint64(token_ids[t])
        for a in range(table.shape[1]):
            total += strength(wide(logits[t, uint64(table[token, uint64(a)])]), total)
        for a in range(table.shape[1]):
            e = table[token, uint64(a)]
            ids[t, uint64(a)] = e
            weights[t, uint64(a)] = scale * (strength(wide(logits[t, uint64(e)]), total) / (total + float32(least_sum)))

    return look_up


@cache
def _scores(form: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return by what an expert is chosen, from its logit, and its weight, from its logit and the best one's."""
    softplus, logistic = formulas()["softplus"], formulas()["sigmoid"]

    def itself(x):
        return x

    def exponential(x, best):
        return math.exp(x - best)

    def plain(x, _):
        return logistic(x)

    def sigmoid(x, _):
        return logistic(x)

    def sqrt_softplus(x, _):
        return math.sqrt(softplus(x))

    def root(x):
        return math.sqrt(softplus(x))

    chosen_by = {"sigmoid": logistic, "sqrt_softplus": device_function(root)}.get(form, device_function(itself))
    named = {f.__name__: f for f in (exponential, plain, sigmoid, sqrt_softplus)}
    return chosen_by, device_function(named[form])
