"""Where a solver stops on its way from noise to a picture."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from refimpl.contract import Array, host

__all__ = ["Limit", "Plan", "Solver", "end_of"]


class Limit(NamedTuple):
    """How an estimate of x0 is held in its range: cut at ``largest``; or at a quantile of it, and divided by that."""

    largest: float
    quantile: float | None = None


class Plan(NamedTuple):
    """x = alpha x0 + sigma noise: entry i says how before step i, the last one where the way ends.

    VP: alpha^2 + sigma^2 = 1. k-diffusion: alpha = 1. Flow: alpha = 1 - sigma.
    """

    timesteps: Array
    """What the model is told at each step [n]."""
    alphas: Array
    """[n + 1]"""
    sigmas: Array
    """[n + 1]"""
    prediction: str = "epsilon"
    """What the model gives: one of ``prediction.PREDICTIONS``."""
    initial_scale: float = 1.0
    """x starts as this times noise."""
    input_scales: Array | None = None
    """The model sees so many times x [n]; None: x itself."""
    limit: Limit | None = None
    middle: tuple[Array, Array] | None = None
    """Sigmas and timesteps between two stops, for solvers that ask there [n - 1]."""
    ends: tuple[Array, Array] | None = None
    """Alphas and sigmas where each step ends [n], if that is not where the next one begins: so diffusers' DDIM."""


Solver = Callable[..., Iterator[Any]]
"""solver(x, model, plan, noise, ops, **settings) yields x before every evaluation of the model, and last the result.
``model(x, timestep)`` gives its output, ``noise`` gives arrays: one for each draw."""

Noise = Iterable[Array]


@host
def end_of(plan: Plan, i: int) -> tuple[float, float]:
    """Return alpha and sigma where step i ends.

    >>> import numpy as np
    >>> end_of(Plan(np.array([999.0, 500.0]), np.ones(3), np.array([9.0, 3.0, 0.0])), 1)
    (1.0, 0.0)
    """
    alphas, sigmas = plan.ends or (plan.alphas[1:], plan.sigmas[1:])
    return float(alphas[i]), float(sigmas[i])
