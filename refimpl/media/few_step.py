"""A picture in one to eight steps: consistency models, which go to x0 at once and back up, and how they are taught."""

from collections.abc import Iterator
from math import floor, sqrt
from typing import Any

import numpy as np

from refimpl.contract import Array, composed, host
from refimpl.media.euler import ask
from refimpl.media.plan import Noise, Plan, end_of
from refimpl.media.step import combine, estimate_noise, estimate_x0, output_of

__all__ = ["consistency_weights", "distillation_target", "distillation_timesteps", "lcm", "tcd"]


@host
def consistency_weights(t: float, sigma_data: float = 0.5) -> tuple[float, float]:
    """Return c_skip and c_out of f(x, t) = c_skip x + c_out F(x, t): without noise, f is x itself.

    Source: Song et al., Consistency models, 2023, section 3; Luo et al., LCM, 2023.

    >>> consistency_weights(0.0), consistency_weights(0.5)
    ((1.0, 0.0), (0.5, 0.7071067811865475))
    """
    return sigma_data**2 / (t**2 + sigma_data**2), t / sqrt(t**2 + sigma_data**2)


@host
def distillation_timesteps(count: int, train: int, taught: int) -> Array:
    """Return ``count`` of the ``taught`` timesteps on which a student was distilled, spread from the noisiest on.

    >>> distillation_timesteps(4, 1000, 50)
    array([999., 759., 499., 259.])
    """
    known = (np.arange(1, taught + 1) * (train // taught) - 1)[::-1]
    return known[np.floor(np.linspace(0, taught, count, endpoint=False)).astype(int)].astype(np.float64)


@composed
def distillation_target(
    x: Array, teacher: Any, student: Any, plan: Plan, i: int, ops: Any, *, timestep_scaling: float = 10.0
) -> Array:
    """Return what a student must say of x at step i: what it says itself one step of the teacher nearer to the picture.

    Teacher and student are models as solvers ask them; the student here is the running mean of the one that learns. At
    the last step the target is where the teacher ends: f without noise is x itself.

    Math: x' = alpha' x0 + sigma' noise_hat of the teacher (DDIM's step);  c_skip x' + c_out x0' of the student at x'.
    Source: Song et al., Consistency models, 2023, equation 7; Luo et al., LCM, 2023, algorithm 1.
    """
    output, (alpha, sigma) = output_of(ask(x, teacher, plan, i, ops), ops), end_of(plan, i)
    x0, seen = estimate_x0(x, output, plan, i, ops), estimate_noise(x, output, plan, i, ops)
    nearer = combine(((alpha, x0), (sigma, seen)), ops)
    if i == len(plan.timesteps) - 1:
        return nearer
    skip, out = consistency_weights(timestep_scaling * float(plan.timesteps[i + 1]))
    x0 = estimate_x0(nearer, ask(nearer, student, plan, i + 1, ops), plan, i + 1, ops)
    return combine(((skip, nearer), (out, x0)), ops)


@composed
def lcm(x: Array, model: Any, plan: Plan, noise: Noise, ops: Any, *, timestep_scaling: float = 10.0) -> Iterator[Array]:
    """Go to the picture at once, then back up to the next noise level by fresh noise; the last step stays there.

    Math: f = c_skip x + c_out x0 at t = timestep_scaling timestep;  x' = alpha' f + sigma' noise.
    Source: Luo et al., Latent consistency models, 2023, algorithm 3.
    """
    draws, last = iter(noise), len(plan.timesteps) - 1
    for i, timestep in enumerate(plan.timesteps):
        yield x
        x0 = estimate_x0(x, ask(x, model, plan, i, ops), plan, i, ops)
        skip, out = consistency_weights(timestep_scaling * float(timestep))
        alpha, sigma = end_of(plan, i) if i < last else (1.0, 0.0)
        fresh = ((sigma, next(draws)),) if i < last else ()
        x = combine(((alpha * out, x0), (alpha * skip, x), *fresh), ops)
    yield x


@composed
def tcd(
    x: Array, model: Any, plan: Plan, noise: Noise, ops: Any, *, eta: float = 0.3, bar: Array | None = None
) -> Iterator[Array]:
    """Go along the flow to a noise level below the next one, and back up to it by fresh noise.

    ``bar`` is alpha^2 at each training step: the level below is that of timestep floor((1 - eta) next).

    Math: y = alpha_s x0 + sigma_s noise_hat;  x' = alpha' / alpha_s y + sqrt(1 - alpha'^2 / alpha_s^2) noise.
    Source: Zheng et al., Trajectory consistency distillation, 2024, algorithm 4.
    """
    assert bar is not None
    draws, last = iter(noise), len(plan.timesteps) - 1
    for i in range(last + 1):
        yield x
        output = output_of(ask(x, model, plan, i, ops), ops)
        below = float(bar[floor((1 - eta) * (float(plan.timesteps[i + 1]) if i < last else 0.0))])
        x0, seen = estimate_x0(x, output, plan, i, ops), estimate_noise(x, output, plan, i, ops)
        kept = end_of(plan, i)[0] / sqrt(below) if eta > 0 and i < last else 1.0
        fresh = ((sqrt(max(1 - kept**2, 0.0)), next(draws)),) if eta > 0 and i < last else ()
        x = combine(((kept * sqrt(below), x0), (kept * sqrt(1 - below), seen), *fresh), ops)
    yield x
