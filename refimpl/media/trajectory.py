"""A whole way from noise to a picture with a model that needs no weights: what a scheduler is judged by."""

import json
from math import sin

import numpy as np

from refimpl.contract import Array, Float, host
from refimpl.media import operations
from refimpl.media.scheduler import draw_picture, read_scheduler

__all__ = ["linear_trajectory"]


@host
def linear_trajectory(
    scheduler_config: str, num_steps: int, noise: Float[Array, "*image"], direction: Float[Array, "*image"],
    a: float = 0.1, draws: Float[Array, "draws *image"] | None = None, eta: float | None = None,
    like_diffusers: bool = True,
) -> Float[Array, "evaluations *image"]:
    """Return x before every evaluation of the model, and last the picture, one after the other.

    ``scheduler_config`` is the text of a scheduler_config.json, ``draws`` holds the noise of each draw in the order of
    use, ``eta`` is that of solvers that take one. Before its first evaluation x is the initial scale times noise.

    Math: model(x, t) = a x + sin(t / 1000) direction, where x is scaled as the scheduler scales what a model sees.

    >>> flow = '{"_class_name": "FlowMatchEulerDiscreteScheduler"}'
    >>> linear_trajectory(flow, 1, np.array([1.0]), np.array([0.0]), 0.25)
    array([[1.  ],
           [0.75]])
    """
    scheduler = read_scheduler(json.loads(scheduler_config), like_diffusers=like_diffusers)

    def model(x: Array, timestep: float) -> Array:
        return (a * x + sin(timestep / 1000) * direction).astype(x.dtype)

    settings = {} if eta is None else {"eta": eta}
    fresh = [] if draws is None else list(draws)
    return np.stack(list(draw_picture(scheduler, noise, model, num_steps, fresh, operations, **settings)))
