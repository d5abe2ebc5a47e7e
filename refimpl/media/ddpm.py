"""Solvers over the training steps themselves: DDPM, which walks back, and DDIM, which may leave steps out."""

from collections.abc import Iterator
from math import exp, log, sqrt
from typing import Any

from refimpl.contract import Array, UsageError, composed, host
from refimpl.media.euler import ask
from refimpl.media.plan import Noise, Plan, end_of
from refimpl.media.step import combine, estimate_noise, estimate_x0, output_of

__all__ = ["VARIANCES", "ddim", "ddpm", "posterior"]

VARIANCES = ("fixed_small", "fixed_small_log", "fixed_large", "fixed_large_log", "learned_range")


@host
def posterior(alpha: float, sigma: float, alpha_end: float, sigma_end: float) -> tuple[float, float, float, float]:
    """Return q(x' | x, x0) of a VP step: the weights of x0 and x in its mean, its variance, and beta of the step.

    Math: beta = 1 - alpha^2 / alpha'^2;  mean = alpha' beta / sigma^2 x0 + sqrt(1 - beta) sigma'^2 / sigma^2 x;
        variance = sigma'^2 / sigma^2 beta.
    Source: Ho et al., 2020, equations 6 and 7.

    >>> [round(number, 9) for number in posterior(0.6, 0.8, 1.0, 0.0)]
    [1.0, 0.0, 0.0, 0.64]
    """
    kept = alpha**2 / alpha_end**2
    beta = 1 - kept
    share = sigma_end**2 / sigma**2
    return alpha_end * beta / sigma**2, sqrt(kept) * share, share * beta, beta


@composed
def ddpm(
    x: Array, model: Any, plan: Plan, noise: Noise, ops: Any, *, variance: str = "fixed_small"
) -> Iterator[Array]:
    """Walk back: draw x' from q(x' | x, x0) with the model's x0; the step from timestep 0 adds no noise.

    ``variance`` is that of q (fixed_small), beta (fixed_large), or a place between the two, which the model says in
    -1..1, in their logarithms (learned_range): such a model gives twice the channels.

    Source: Ho et al., 2020, algorithm 2; Nichol, Dhariwal, 2021, equation 15.
    """
    if variance not in VARIANCES:
        raise UsageError(f"variance_type is one of {', '.join(VARIANCES)}, not {variance!r}")
    draws = iter(noise)
    for i, timestep in enumerate(plan.timesteps):
        yield x
        output, said = ask(x, model, plan, i, ops), None
        if variance == "learned_range":
            output = output_of(output, ops)
            output, said = output[: len(x)], output[len(x) :]
        x0 = estimate_x0(x, output, plan, i, ops)
        w_x0, w_x, small, beta = posterior(float(plan.alphas[i]), float(plan.sigmas[i]), *end_of(plan, i))
        x = combine(((w_x0, x0), (w_x, x)), ops)
        if timestep > 0:
            spread = _spread(variance, max(small, 1e-20), beta, said, next(draws), ops)
            x = combine(((1.0, x), spread), ops)
    yield x


def _spread(variance: str, small: float, beta: float, said: Array, noise: Array, ops: Any) -> tuple[float, Array]:
    """Return a weight and an array whose product is the noise of a step."""
    if variance == "learned_range":
        middle, half = (log(beta) + log(small)) / 2, (log(beta) - log(small)) / 2
        return exp(middle / 2), ops.scale_by_exp(noise, said, half / 2)
    return sqrt(small if "small" in variance else beta), noise


@composed
def ddim(
    x: Array, model: Any, plan: Plan, noise: Noise, ops: Any, *, eta: float = 0.0,
    use_clipped_model_output: bool = False,
) -> Iterator[Array]:
    """Go from the x0 and the noise that the model sees straight to the next noise level.

    ``eta`` is the share of DDPM's variance that is drawn anew. After x0 was held in its range, the noise is that of the
    model, or the one that fits x0 (use_clipped_model_output).

    Math: x' = alpha' x0 + sqrt(sigma'^2 - s^2) noise_hat + s noise;
        s = eta sigma' / sigma sqrt(1 - alpha^2 / alpha'^2).
    Source: Song et al., DDIM, 2021, equations 12 and 16. CogVideoX's step is the same with eta = 0.
    """
    draws = iter(noise)
    for i in range(len(plan.timesteps)):
        yield x
        output = output_of(ask(x, model, plan, i, ops), ops)
        alpha, sigma, (alpha_end, sigma_end) = float(plan.alphas[i]), float(plan.sigmas[i]), end_of(plan, i)
        x0 = estimate_x0(x, output, plan, i, ops)
        if use_clipped_model_output:
            seen = combine(((1 / sigma, x), (-alpha / sigma, x0)), ops)
        else:
            seen = estimate_noise(x, output, plan, i, ops)
        s = eta * sigma_end / sigma * sqrt(max(1 - alpha**2 / alpha_end**2, 0.0))
        fresh = ((s, next(draws)),) if eta > 0 else ()
        x = combine(((alpha_end, x0), (sqrt(max(sigma_end**2 - s**2, 0.0)), seen), *fresh), ops)
    yield x
