"""Second-order solvers in the noise level: the model is asked twice a step."""

from collections.abc import Generator, Iterator
from typing import Any

from refimpl.contract import Array, composed
from refimpl.media.euler import ancestral_sigmas, ask
from refimpl.media.plan import Noise, Plan
from refimpl.media.step import combine, estimate_x0

__all__ = ["flow_heun", "heun", "kdpm2", "kdpm2_ancestral"]


@composed
def heun(x: Array, model: Any, plan: Plan, noise: Noise, ops: Any) -> Iterator[Array]:
    """Go an Euler step, ask again there, and go by the mean of both slopes; the step to sigma = 0 asks once.

    Math: d = (x - x0) / sigma;  x' = x + (sigma' - sigma) (d + d') / 2, d' at x + (sigma' - sigma) d.
    Source: Karras et al., EDM, 2022, algorithm 1.
    """
    for i in range(len(plan.timesteps)):
        yield x
        sigma, end = float(plan.sigmas[i]), float(plan.sigmas[i + 1])
        x0 = estimate_x0(x, ask(x, model, plan, i, ops), plan, i, ops)
        there = combine(((end / sigma, x), (1 - end / sigma, x0)), ops)
        if end > 0:
            yield there
            x0_there = estimate_x0(there, ask(there, model, plan, i + 1, ops), plan, i + 1, ops)
            half = (end - sigma) / 2
            here = ((1 + half / sigma, x), (-half / sigma, x0), (half / end, there), (-half / end, x0_there))
            there = combine(here, ops)
        x = there
    yield x


@composed
def flow_heun(x: Array, model: Any, plan: Plan, noise: Noise, ops: Any) -> Iterator[Array]:
    """Go by the mean of the velocities at both ends of a step; the step to sigma = 0 asks once.

    Source: as heun, for the flow of Lipman et al., 2022.
    """
    for i in range(len(plan.timesteps)):
        yield x
        width = float(plan.sigmas[i + 1]) - float(plan.sigmas[i])
        velocity = ask(x, model, plan, i, ops)
        there = combine(((1.0, x), (width, velocity)), ops)
        if float(plan.sigmas[i + 1]) > 0:
            yield there
            half = combine(((1.0, x), (width / 2, velocity)), ops)
            there = combine(((1.0, half), (width / 2, ask(there, model, plan, i + 1, ops))), ops)
        x = there
    yield x


def _midpoint(
    x: Array, model: Any, plan: Plan, i: int, end: float, up: float, draws: Iterator[Array], ops: Any
) -> Generator[Array, None, Array]:
    """Yield x and the point between; return the end of the step, reached by the slope in the (geometric) middle."""
    yield x
    sigma = float(plan.sigmas[i])
    x0 = estimate_x0(x, ask(x, model, plan, i, ops), plan, i, ops)
    if plan.middle is None or end == 0:
        return combine(((end / sigma, x), (1 - end / sigma, x0)), ops)
    middle, timestep = float(plan.middle[0][i]), float(plan.middle[1][i])
    between = combine(((middle / sigma, x), (1 - middle / sigma, x0)), ops)
    yield between
    half_way = plan._replace(sigmas=plan.middle[0], input_scales=1 / (plan.middle[0] ** 2 + 1) ** 0.5)
    x0 = estimate_x0(between, ask(between, model, half_way, i, ops, timestep), half_way, i, ops)
    slope = (end - sigma) / middle
    fresh = ((up, next(draws)),) if up > 0 else ()
    return combine(((1.0, x), (slope, between), (-slope, x0), *fresh), ops)


@composed
def kdpm2(x: Array, model: Any, plan: Plan, noise: Noise, ops: Any) -> Iterator[Array]:
    """Go by the slope at the geometric middle of two noise levels: DPM-Solver-2 in k-diffusion's form.

    Source: Lu et al., DPM-Solver, 2022, algorithm 1; Karras et al., EDM, 2022.
    """
    for i in range(len(plan.timesteps)):
        x = yield from _midpoint(x, model, plan, i, float(plan.sigmas[i + 1]), 0.0, iter(()), ops)
    yield x


@composed
def kdpm2_ancestral(x: Array, model: Any, plan: Plan, noise: Noise, ops: Any) -> Iterator[Array]:
    """Go as kdpm2, further down than the next noise level, and add fresh noise up to it.

    Source: Lu et al., DPM-Solver, 2022, algorithm 1; Song et al., DDIM, 2021.
    """
    draws = iter(noise)
    for i in range(len(plan.timesteps)):
        down, up = ancestral_sigmas(float(plan.sigmas[i]), float(plan.sigmas[i + 1]))
        x = yield from _midpoint(x, model, plan, i, down, up, draws, ops)
    yield x
