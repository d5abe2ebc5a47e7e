"""A multistep solver over training steps: DDIM's step, with the model's newest outputs mixed."""

from collections.abc import Iterator
from typing import Any

from refimpl.contract import Array, composed
from refimpl.media.euler import ask
from refimpl.media.plan import Noise, Plan, end_of
from refimpl.media.step import combine, estimate_noise, estimate_x0, output_of

__all__ = ["pndm"]

_ADAMS = ((1.0,), (3 / 2, -1 / 2), (23 / 12, -16 / 12, 5 / 12), (55 / 24, -59 / 24, 37 / 24, -9 / 24))


@composed
def pndm(x: Array, model: Any, plan: Plan, noise: Noise, ops: Any) -> Iterator[Array]:
    """Step as DDIM does, by Adams-Bashforth's mixture of up to four outputs; the first step asks at both of its ends.

    The weights are those of equal steps.

    Source: Liu et al., PNDM, 2022, equations 11 and 12 (PLMS, without the Runge-Kutta start).
    """
    outputs: list[Array] = []
    for i in range(len(plan.timesteps)):
        yield x
        newest = output_of(ask(x, model, plan, i, ops), ops)
        if i == 0 and len(plan.timesteps) > 1:  # look at the end of the step, and go it again by the mean
            there = _step(x, newest, plan, 0, ops)
            yield there
            mixed = combine(((0.5, output_of(ask(there, model, plan, 1, ops), ops)), (0.5, newest)), ops)
            x, outputs = _step(x, mixed, plan, 0, ops), [newest]
            continue
        outputs = [newest, *outputs[:3]]
        x = _step(x, combine(tuple(zip(_ADAMS[len(outputs) - 1], outputs, strict=True)), ops), plan, i, ops)
    yield x


def _step(x: Array, output: Array, plan: Plan, i: int, ops: Any) -> Array:
    alpha, sigma = end_of(plan, i)
    x0, seen = estimate_x0(x, output, plan, i, ops), estimate_noise(x, output, plan, i, ops)
    return combine(((alpha, x0), (sigma, seen)), ops)
