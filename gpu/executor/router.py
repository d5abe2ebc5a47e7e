"""Routers on the CPU: to which experts a token goes, and with what weights, as refimpl's routers say.

The largest are chosen, of equals the lower index, NaN before all others. A row is computed by itself in one order.
"""

from math import inf

from gpu.executor.elementary import exp
from gpu.executor.jit import inlined, jit
from gpu.executor.program import floats_at, words_at
from gpu.executor.vector import LANES, fold_max, fold_sum, keep, load_part, splat, store, vmax

__all__ = ["ROUTERS", "route_row", "router_bytes"]

ROUTERS = ("softmax_top_k", "top_k_softmax", "sigmoid_group_top_k", "top_k_sigmoid")
"""The operations of refimpl that ``route_row`` computes."""


@inlined
def router_bytes(experts):
    """Return the bytes of scratch that a row takes: what chooses, what weighs, what the groups score, who is taken."""
    return 5 * 4 * (experts + LANES)


@inlined
def _exponentials(logits, experts, out):
    """Write e to the logits less their maximum, and return the sum."""
    peak = splat(-inf)
    for i in range(0, experts, LANES):
        peak = vmax(keep(load_part(logits + 4 * i, experts - i), 0, experts - i, splat(-inf)), peak)
    peak, total = splat(fold_max(peak)), splat(0.0)
    for i in range(0, experts, LANES):
        part = keep(exp(load_part(logits + 4 * i, experts - i) - peak), 0, experts - i, splat(0.0))
        store(out + 4 * i, part)
        total = total + part
    return fold_sum(total)


@inlined
def _sigmoids(logits, experts, out):
    """Write the logistic function of the logits."""
    for i in range(0, experts, LANES):
        part = exp(splat(0.0) - load_part(logits + 4 * i, experts - i))
        store(out + 4 * i, splat(1.0) / (splat(1.0) + part))


@inlined
def _is_better(x, y):
    """Say whether x is chosen before a y that comes first."""
    return x > y or (x != x and y == y)


@inlined
def _group_score(values, first, last):
    """Return the sum of the two best values first .. last - 1, or the only one."""
    best = second = values[first]
    for e in range(first + 1, last):
        if _is_better(values[e], best):
            best, second = values[e], best
        elif e == first + 1 or _is_better(values[e], second):
            second = values[e]
    return best + second if last - first > 1 else best


@inlined
def _pick(values, taken, count):
    """Return the place of the best value that is not taken, and take it."""
    best = -1
    for e in range(count):
        if taken[e] == 0 and (best < 0 or _is_better(values[e], values[best])):
            best = e
    taken[best] = 1
    return best


@jit
def _close_groups(values, experts, groups, top_groups, scores, taken):
    """Set the values outside the best groups to -inf."""
    width = experts // groups
    for g in range(groups):
        scores[g], taken[g] = _group_score(values, g * width, (g + 1) * width), 0
    for _ in range(top_groups):
        _pick(scores, taken, groups)
    for e in range(experts):
        if taken[e // width] == 0:
            values[e] = -inf


@jit
def route_row(record, logits, ids, shares, scratch):
    """Write the experts of a token, int64 at ``ids``, and their weights, float32 at ``shares``, in the order of choice.

    ``record`` is one of LAYER; ``scratch`` has ``router_bytes``.
    """
    experts, active, room = record.experts, record.active, 4 * (record.experts + LANES)
    values, scores = floats_at(scratch, experts), floats_at(scratch + room, experts)
    groups, taken = floats_at(scratch + 2 * room, experts), words_at(scratch + 3 * room, experts)
    given, chosen, weights = floats_at(logits, experts), words_at(ids, active), floats_at(shares, active)
    total = 1.0
    if record.weighs_by == 0:
        total = _exponentials(logits, experts, scratch + room)
    else:
        _sigmoids(logits, experts, scratch + room)
    correction = floats_at(record.correction, experts)
    for e in range(experts):
        values[e] = given[e]
        if record.chooses_by == 1:
            values[e] = scores[e] + correction[e] if record.correction else scores[e]
    if record.top_groups < record.groups:
        _close_groups(values, experts, record.groups, record.top_groups, groups, taken)
    taken[:] = 0
    picked = 0.0
    for a in range(active):
        chosen[a] = _pick(values, taken, experts)
        picked += scores[chosen[a]]
    if record.renormalise:
        total = picked + (1e-20 if record.weighs_by == 1 else 0.0)
    for a in range(active):
        weights[a] = record.route_scale * (scores[chosen[a]] / total)
