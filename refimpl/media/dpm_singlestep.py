"""Exponential integrators that start each group of one to three evaluations anew: DPM-Solver and ++, singlestep."""

from collections.abc import Iterator
from typing import Any

from refimpl.contract import Array, UsageError, composed, host
from refimpl.media.dpm import estimate, lambda_at, taylor_weights
from refimpl.media.euler import ask
from refimpl.media.plan import Noise, Plan
from refimpl.media.step import combine

__all__ = ["dpm_singlestep", "orders"]


@host
def orders(count: int, order: int, lower_order_final: bool = True, to_zero: bool = True) -> list[int]:
    """Return the order of each of ``count`` evaluations: groups 1, 2 .. order; fewer at the end, and 1 into sigma = 0.

    >>> orders(6, 3), orders(4, 2, lower_order_final=False, to_zero=False)
    ([1, 2, 3, 1, 2, 1], [1, 2, 1, 2])
    """
    group = list(range(1, order + 1))
    if not lower_order_final or order == 1:
        found = (group * (count // order + 1))[:count]
    elif count % order == 0:
        found = group * (count // order - 1) + [*group[:-1], 1]
    else:
        found = (group * (count // order + 1))[:count]
    return [*found[:-1], 1] if to_zero else found


@composed
def dpm_singlestep(
    x: Array, model: Any, plan: Plan, noise: Noise, ops: Any, *, algorithm: str = "dpmsolver++", order: int = 2,
    kind: str = "midpoint", lower_order_final: bool = True,
) -> Iterator[Array]:
    """Step from the start of each group by a polynomial in lambda through the estimates of the group.

    Source: Lu et al., DPM-Solver, 2022, algorithms 1 and 2; Lu et al., DPM-Solver++, 2022, algorithm 1.
    """
    if algorithm not in ("dpmsolver", "dpmsolver++") or kind not in ("midpoint", "heun") or order not in (1, 2, 3):
        raise UsageError(f"DPM-Solver in single steps has no {algorithm!r} of order {order} with {kind!r}")
    base, estimates = x, list[Array]()
    for i, use in enumerate(orders(len(plan.timesteps), order, lower_order_final, float(plan.sigmas[-1]) == 0)):
        yield x
        if use == 1:
            base, estimates = x, []
        estimates = [*estimates, estimate(x, ask(x, model, plan, i, ops), plan, i, algorithm, ops)]
        start, plus = i - use + 1, algorithm.endswith("++")
        lambdas = [lambda_at(plan, j) for j in range(start, i + 2)]
        scale, kept = (plan.alphas, plan.sigmas) if plus else (plan.sigmas, plan.alphas)
        weights = [-float(scale[i + 1]) * w for w in _weights(algorithm, kind, lambdas)]
        terms = zip(weights, estimates, strict=True)
        x = combine(((float(kept[i + 1]) / float(kept[start]), base), *terms), ops)
    yield x


def _weights(algorithm: str, kind: str, lambdas: list[float]) -> list[float]:
    """Return the weights of a group's estimates, the oldest first, from its lambdas and that of its end."""
    h, use = lambdas[-1] - lambdas[0], len(lambdas) - 1
    if use == 1:
        return list(taylor_weights(algorithm, kind, 1, h))
    if use == 2:
        r = (lambdas[1] - lambdas[0]) / h
        w0, w1 = taylor_weights(algorithm, kind, 2, h)
        return [w0 - w1 / r, w1 / r]
    r1, r0 = (lambdas[1] - lambdas[0]) / h, (lambdas[2] - lambdas[0]) / h
    w0, w1, w2 = taylor_weights(algorithm, kind, 3, h)
    if kind == "midpoint":  # the derivative of the first and the newest estimate alone
        return [w0 - w1 / r0, 0.0, w1 / r0]
    # D1 = (r0 d1 - r1 d0) / (r0 - r1) and D2 / 2 = (d0 - d1) / (r0 - r1), d1 and d0 slopes to the second and the third
    d1, d0 = (w1 * r0 - 2 * w2) / (r0 - r1), (2 * w2 - w1 * r1) / (r0 - r1)
    return [w0 - d1 / r1 - d0 / r0, d1 / r1, d0 / r0]
