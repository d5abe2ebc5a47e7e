"""What solvers do to arrays: sums with weights, which are numbers of the host."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from refimpl.contract import Array, Float, composed, op, require, rows, widen
from refimpl.media.plan import Plan
from refimpl.media.prediction import noise_weights, x0_weights

__all__ = [
    "Guided", "combine", "estimate_noise", "estimate_x0", "guided_combination", "linear_combination",
    "output_of", "scale_by_exp",
]  # fmt: skip


class Guided(NamedTuple):
    """A model's output that is still to be guided: solvers fuse that with their step."""

    cond: Array
    uncond: Array
    guidance_scale: float


@op
def linear_combination(
    terms: Float[Array, "count *image"], weights: Float[Array, " count"]
) -> Float[Array, "*image"]:
    """Add arrays with weights: the step of every solver.

    Math: sum_i weights_i terms_i, from the first to the last; a term of weight 0 is not looked at.
    Cost: 2 count image flop over (count + 1) image elements: bound by memory.
    Numerics: float32 or wider, one cast.
    Constraints:
        (C1) there is a weight for each term.
    Source: Lu et al., DPM-Solver, 2022; Karras et al., EDM, 2022: the steps of both are such sums.

    >>> linear_combination(np.array([[1.0], [10.0]]), np.array([2.0, 0.5]))
    array([7.])
    """
    fits = weights.ndim == 1 and rows(terms) == len(weights) > 0
    require(fits, "C1", f"terms {terms.shape}, weights {weights.shape}")
    return _total(terms, weights, []).astype(terms.dtype, copy=False)


@op
def guided_combination(
    terms: Float[Array, "count *image"], weights: Float[Array, " count"], cond: Float[Array, "*image"],
    uncond: Float[Array, "*image"], guidance_scale: float, weight: float,
) -> Float[Array, "*image"]:
    """Guide a model's output and add it to a solver's step, without writing it down in between.

    Math: linear_combination(terms, weights) + weight guide(cond, uncond, guidance_scale).
    Cost: (2 count + 5) image flop over (count + 3) image elements: bound by memory; apart it would move 3 image more.
    Numerics: as linear_combination; the guided output is not rounded in between.
    Constraints:
        (C1) there is a weight for each term.
        (C2) outputs have the shape of a term.
    Source: Ho, Salimans, 2022, and that of linear_combination.

    >>> guided_combination(np.array([[1.0]]), np.array([2.0]), np.array([3.0]), np.array([1.0]), 2.0, 0.5)
    array([4.5])
    """
    fits = weights.ndim == 1 and rows(terms) == len(weights) > 0
    require(fits, "C1", f"terms {terms.shape}, weights {weights.shape}")
    fits = cond.shape == uncond.shape == terms.shape[1:]
    require(fits, "C2", f"outputs {cond.shape} and {uncond.shape}, but terms {terms.shape}")
    c, u = widen(cond), widen(uncond)
    guided = c if guidance_scale == 1 else u if guidance_scale == 0 else u + guidance_scale * (c - u)
    return _total(terms, weights, [weight * guided] if weight != 0 else []).astype(terms.dtype, copy=False)


def _total(terms: Array, weights: Array, more: list[Array]) -> Array:
    parts = [w * widen(x) for x, w in zip(terms, weights.tolist(), strict=True) if w != 0] + more
    return np.asarray(sum(parts[1:], parts[0]) if parts else np.zeros_like(widen(terms[0])))


@op
def scale_by_exp(x: Float[Array, "*image"], exponent: Float[Array, "*image"], scale: float) -> Float[Array, "*image"]:
    """Give each value of the noise a spread of its own, which a model says by its logarithm.

    Math: x exp(scale exponent).
    Cost: 2 image flop over 3 image elements: bound by memory.
    Numerics: float32 or wider, one cast.
    Constraints:
        (C1) x and exponent have one shape.
    Source: Nichol, Dhariwal, 2021, equation 15.

    >>> scale_by_exp(np.array([2.0]), np.array([0.0]), 0.5)
    array([2.])
    """
    require(x.shape == exponent.shape, "C1", f"x {x.shape} and exponent {exponent.shape} do not have one shape")
    return np.asarray(widen(x) * np.exp(scale * widen(exponent))).astype(x.dtype, copy=False)


@composed
def combine(terms: Sequence[tuple[float, Any]], ops: Any) -> Array:
    """Add arrays with weights; the last of them may be a Guided output.

    Source: the definition.

    >>> from refimpl.media import operations
    >>> combine([(2.0, np.array([1.0])), (1.0, Guided(np.array([3.0]), np.array([1.0]), 2.0))], operations)
    array([7.])
    """
    arrays = [(w, x) for w, x in terms if not isinstance(x, Guided)]
    stack, weights = np.stack([x for _, x in arrays]), np.array([w for w, _ in arrays])
    for weight, output in terms:
        if isinstance(output, Guided):
            return ops.guided_combination(stack, weights, *output, float(weight))
    return ops.linear_combination(stack, weights)


@composed
def output_of(output: Any, ops: Any) -> Array:
    """Return a model's output as an array: guided now, if that is still to be done.

    Source: the definition.
    """
    return ops.guide(*output) if isinstance(output, Guided) else output


@composed
def estimate_x0(x: Array, output: Any, plan: Plan, i: int, ops: Any) -> Array:
    """Return the picture that the model sees in x at step i, held in its range if the plan says so.

    Source: the definition.
    """
    weights = x0_weights(float(plan.alphas[i]), float(plan.sigmas[i]), plan.prediction)
    x0 = combine(((weights[0], x), (weights[1], output)), ops)
    if plan.limit is None:
        return x0
    if plan.limit.quantile is None:
        return ops.clip_x0(x0, plan.limit.largest)
    return ops.threshold_x0(x0, plan.limit.quantile, plan.limit.largest)


@composed
def estimate_noise(x: Array, output: Any, plan: Plan, i: int, ops: Any) -> Array:
    """Return the noise that the model sees in x at step i.

    Source: the definition.
    """
    weights = noise_weights(float(plan.alphas[i]), float(plan.sigmas[i]), plan.prediction)
    return combine(((weights[0], x), (weights[1], output)), ops)
