"""First-order solvers in the noise level: along the flow, with fresh noise, from noise to picture."""

from collections.abc import Iterator
from math import sqrt
from typing import Any

from refimpl.contract import Array, composed, host
from refimpl.media.plan import Noise, Plan
from refimpl.media.step import combine, estimate_x0

__all__ = ["ancestral_sigmas", "ask", "end_of_step", "euler", "euler_ancestral", "flow_euler"]


@composed
def ask(x: Array, model: Any, plan: Plan, i: int, ops: Any, timestep: float | None = None) -> Any:
    """Ask the model about x at step i: it sees x scaled, and the timestep.

    Source: the definition.
    """
    scale = 1.0 if plan.input_scales is None else float(plan.input_scales[i])
    seen = x if scale == 1 else combine(((scale, x),), ops)
    return model(seen, float(plan.timesteps[i]) if timestep is None else timestep)


@composed
def euler(
    x: Array, model: Any, plan: Plan, noise: Noise, ops: Any, *, s_churn: float = 0.0, s_tmin: float = 0.0,
    s_tmax: float = float("inf"), s_noise: float = 1.0,
) -> Iterator[Array]:
    """Follow the flow dx / dsigma = (x - alpha x0) / sigma by straight steps; alpha is the same at all steps.

    With ``s_churn`` each step first adds noise, up to sigma (1 + gamma): gamma = min(s_churn / n, sqrt(2) - 1) where
    s_tmin <= sigma <= s_tmax. As diffusers does, the model is asked before that noise is added.

    Math: x' = (sigma' / sigma) x + alpha (1 - sigma' / sigma) x0.
    Source: Karras et al., EDM, 2022, algorithms 1 and 2; Song et al., DDIM, 2021.
    """
    draws = iter(noise)
    for i in range(len(plan.timesteps)):
        yield x
        output = ask(x, model, plan, i, ops)
        sigma, (alpha, end), at = float(plan.sigmas[i]), end_of_step(plan, i), plan
        gamma = min(s_churn / len(plan.timesteps), sqrt(2) - 1) if s_tmin <= sigma <= s_tmax else 0.0
        if gamma > 0:
            raised = sigma * (1 + gamma)
            x = combine(((1.0, x), (s_noise * sqrt(raised**2 - sigma**2), next(draws))), ops)
            at, sigma = plan._replace(sigmas=plan.sigmas * (1 + gamma)), raised
        x0 = estimate_x0(x, output, at, i, ops)
        x = combine(((end / sigma, x), (alpha * (1 - end / sigma), x0)), ops)
    yield x


@host
def end_of_step(plan: Plan, i: int) -> tuple[float, float]:
    """Return alpha and sigma behind step i."""
    return float(plan.alphas[i + 1]), float(plan.sigmas[i + 1])


@host
def ancestral_sigmas(sigma: float, end: float) -> tuple[float, float]:
    """Return how far down a step goes, and how much noise then leads back up to ``end``.

    Math: up^2 = end^2 (sigma^2 - end^2) / sigma^2;  down^2 = end^2 - up^2.

    >>> ancestral_sigmas(5.0, 4.0)
    (3.2, 2.4)
    """
    up = sqrt(end**2 * (sigma**2 - end**2) / sigma**2)
    return sqrt(end**2 - up**2), up


@composed
def euler_ancestral(x: Array, model: Any, plan: Plan, noise: Noise, ops: Any) -> Iterator[Array]:
    """Go further down than the next noise level, and add fresh noise up to it: the variance of DDPM.

    Source: Song et al., DDIM, 2021, equation 16 with eta = 1, in the noise level.
    """
    draws = iter(noise)
    for i in range(len(plan.timesteps)):
        yield x
        sigma, down_up = float(plan.sigmas[i]), ancestral_sigmas(float(plan.sigmas[i]), float(plan.sigmas[i + 1]))
        x0 = estimate_x0(x, ask(x, model, plan, i, ops), plan, i, ops)
        down, up = down_up
        x = combine(((down / sigma, x), (1 - down / sigma, x0), (up, next(draws))), ops)
    yield x


@composed
def flow_euler(
    x: Array, model: Any, plan: Plan, noise: Noise, ops: Any, *, stochastic: bool = False
) -> Iterator[Array]:
    """Follow the velocity that the model gives; or go to its x0, and back up by fresh noise (stochastic).

    Math: x' = x + (sigma' - sigma) v;  stochastic: x' = (1 - sigma') x0 + sigma' noise.
    Source: Lipman et al., Flow matching, 2022; Liu et al., Rectified flow, 2022.
    """
    draws = iter(noise)
    for i in range(len(plan.timesteps)):
        yield x
        velocity, (alpha, end) = ask(x, model, plan, i, ops), end_of_step(plan, i)
        if stochastic:
            x0 = estimate_x0(x, velocity, plan, i, ops)
            x = combine(((alpha, x0), (end, next(draws))), ops)
        else:
            x = combine(((1.0, x), (end - float(plan.sigmas[i]), velocity)), ops)
    yield x
