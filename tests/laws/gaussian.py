"""A target whose flow is known: pictures of one normal value, a model that knows it, and plans of any width."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from refimpl.contract import Array
from refimpl.media import operations
from refimpl.media.euler import ancestral_sigmas
from refimpl.media.plan import Plan

MEAN, SPREAD = 0.3, 0.6
"""Of the target."""
FROM, TO = np.exp(2.0), np.exp(-2.0)
"""sigma / alpha at the start, and at the stop that is judged."""


def marginal(family: str, rho: Any) -> tuple[Any, Any]:
    """Return alpha and sigma where sigma / alpha is rho: variance preserving, of k-diffusion, or of a straight flow."""
    alpha = {"vp": (1 + rho**2) ** -0.5, "k": rho**0.0, "flow": 1 / (1 + rho)}[family]
    return alpha, rho * alpha


def spread_at(family: str, rho: Any) -> Any:
    """Return the standard deviation of x."""
    alpha, sigma = marginal(family, rho)
    return np.hypot(alpha * SPREAD, sigma)


def flowed(family: str, x: Array, start: float, end: float) -> Array:
    """Return where the flow leads: x keeps its place in the distribution."""
    places = (x - marginal(family, start)[0] * MEAN) / spread_at(family, start)
    return marginal(family, end)[0] * MEAN + spread_at(family, end) * places


class Model:
    """Says what is expected of the target, where the flow ends (consistent), or always the mean (point).

    It is told sigma / alpha as the timestep.
    """

    def __init__(self, family: str, prediction: str, mean: float = MEAN, kind: str = "expected") -> None:
        self.family, self.prediction, self.mean, self.kind = family, prediction, mean, kind
        self.calls = 0

    def __call__(self, x: Array, rho: float) -> Array:
        self.calls += 1
        alpha, sigma = marginal(self.family, np.float64(rho))
        x = x * np.sqrt(rho**2 + 1) if self.family == "k" else x
        kept = SPREAD / spread_at(self.family, rho)
        slope = {"expected": alpha * kept**2, "consistent": kept, "point": 0.0}[self.kind]
        x0 = self.mean + slope * (x - alpha * self.mean)
        noise = (x - alpha * x0) / sigma
        v = (alpha * noise - sigma * x0) / np.hypot(alpha, sigma)
        said = {"epsilon": noise, "sample": x0, "v_prediction": v, "edm": -v, "flow_prediction": noise - x0}
        return np.asarray(said[self.prediction])


def warped(count: int, order: int = 1) -> Array:
    """Return places 0..1 [count + 1]: smooth steps, no two of one width."""
    even = np.linspace(0, 1, count + 1)
    return even + 0.3 * even * (1 - even)


def graded(count: int, order: int) -> Array:
    """Return places 0..1 that begin with steps so small that the lower orders of a multistep solver do not show."""
    widths = [count ** (-(order + 1.5) / (j + 2)) for j in range(order - 1)]
    start = np.cumsum([0.0, *widths])
    return np.concatenate([start, start[-1] + (1 - start[-1]) * warped(count)[1:]])


def plan_of(family: str, rho: Array, prediction: str, last: float = 0.0) -> Plan:
    """Return a plan that stops at each rho, and then goes on to ``last`` times the last one."""
    alphas, sigmas = marginal(family, np.append(rho, last * rho[-1]))
    middle = np.sqrt(rho[:-1] * rho[1:])
    seen = (rho**2 + 1) ** -0.5 if family == "k" else None
    return Plan(rho, alphas, sigmas, prediction, input_scales=seen, middle=(middle, middle) if family == "k" else None)


def between(places: Array) -> Array:
    """Return sigma / alpha at places from ``FROM`` to ``TO``, in its logarithm."""
    return np.asarray(FROM ** (1 - places) * TO**places)


def with_ancestral_middle(plan: Plan) -> Plan:
    """Put the middles where steps lie that go further down than the next stop."""
    ends = [ancestral_sigmas(float(a), float(b))[0] for a, b in zip(plan.sigmas, plan.sigmas[1:-1], strict=False)]
    middle = np.sqrt(plan.sigmas[: len(ends)] * ends)
    return plan._replace(middle=(middle, middle))


def run(solver: Any, x: Array, model: Any, plan: Plan, draws: Sequence[Array] = (), **settings: Any) -> list[Array]:
    """Return all that a solver yields over the reference's operations."""
    return list(solver(x, model, plan, draws, operations, **settings))
