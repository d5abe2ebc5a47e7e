"""UniPC: a predictor over lambda, and a corrector that takes the newest estimate to go the last step again."""

from collections.abc import Iterator, Sequence
from math import expm1, factorial
from typing import Any

import numpy as np

from refimpl.contract import Array, UsageError, composed, host
from refimpl.media.dpm import estimate, lambda_at, phi
from refimpl.media.euler import ask
from refimpl.media.plan import Noise, Plan
from refimpl.media.step import combine

__all__ = ["unipc", "unipc_weights"]


@host
def unipc_weights(lambdas: Sequence[float], kind: str, plus: bool, corrects: bool) -> list[float]:
    """Return the weights of the estimates at the start of the step and before it, the newest first; with ``corrects``
    the one at the end of the step comes first. ``lambdas`` are of the end, the start and before. Times -alpha'
    (plus) or -sigma'.

    Math: with h = lambda' - lambda, z = -h (plus) or h, B = z (bh1) or e^z - 1 (bh2), r_j = (lambda_j - lambda) / h:
        (e^z - 1) m_0 + B sum_j a_j (m_j - m_0) / r_j, where sum_j a_j r_j^(k-1) = z phi_(k+1)(z) k! / B for k = 1 ...;
        a single a is 1 / 2.
    Source: Zhao et al., UniPC, 2023, theorem 3.1 and appendix.
    """
    h = lambdas[0] - lambdas[1]
    z = -h if plus else h
    r = [(each - lambdas[1]) / h for each in lambdas[2:]] + ([1.0] if corrects else [])
    if not r:
        return [expm1(z)]
    b = z if kind == "bh1" else expm1(z)
    wanted = [z * phi(k + 1, z) * factorial(k) / b for k in range(1, len(r) + 1)]
    a = np.linalg.solve([[each**k for each in r] for k in range(len(r))], wanted) if len(r) > 1 else [0.5]
    each = [b * float(a_j) / r_j for a_j, r_j in zip(a, r, strict=True)]
    first = expm1(z) - sum(each)
    return [each[-1], first, *each[:-1]] if corrects else [first, *each]


@composed
def unipc(
    x: Array, model: Any, plan: Plan, noise: Noise, ops: Any, *, order: int = 2, kind: str = "bh2",
    predict_x0: bool = True, lower_order_final: bool = True, disable_corrector: Sequence[int] = (),
) -> Iterator[Array]:
    """Correct the last step by what the model says at its end, then predict the next: one evaluation a step.

    Source: Zhao et al., UniPC, 2023, algorithms 1 and 2.
    """
    if kind not in ("bh1", "bh2") or order < 1:
        raise UsageError(f"UniPC has no {kind!r} of order {order}: bh1 or bh2, from order 1")
    n, algorithm, known, before, used = len(plan.timesteps), "dpmsolver" + "++" * predict_x0, list[Array](), x, 0
    scale, kept = (plan.alphas, plan.sigmas) if predict_x0 else (plan.sigmas, plan.alphas)

    def go(start: Array, estimates: list[Array], i: int, use: int, corrects: bool) -> Array:
        lambdas = [lambda_at(plan, j) for j in range(i + 1, i - use, -1)]
        weights = unipc_weights(lambdas, kind, predict_x0, corrects)
        terms = [(-float(scale[i + 1]) * w, m) for w, m in zip(weights, estimates, strict=False)]
        return combine(((float(kept[i + 1]) / float(kept[i]), start), *terms), ops)

    for i in range(n):
        yield x
        newest = estimate(x, ask(x, model, plan, i, ops), plan, i, algorithm, ops)
        if i > 0 and i - 1 not in disable_corrector:
            x = go(before, [newest, *known], i - 1, used, True)
        known = [newest, *known[: order - 1]]
        used = min(len(known), n - i) if lower_order_final else len(known)
        used = used if plan.sigmas[i + 1] > 0 else 1  # a step of infinite width has no history
        before, x = x, go(x, known, i, used, False)
    yield x
