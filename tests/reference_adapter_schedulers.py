"""Schedulers for tests/reference_adapter.py: whole trajectories with the model a x + sin(t / 1000) w."""

import json
from math import sin
from pathlib import Path
from typing import Any

import numpy as np

from refimpl.media.scheduler import read_scheduler


def trajectory(
    path: str, x_init: Any, w: Any, a: float, noise: Any, meta: dict[str, Any], ops: Any,
    like_diffusers: bool = True,
) -> np.ndarray:
    """Return x before every evaluation of the model, and last the result, of each sample of a batch."""
    config = json.loads((Path(path) / "scheduler_config.json").read_text())
    scheduler, count = read_scheduler(config, like_diffusers=like_diffusers), meta["steps"]
    wanted = dict(meta["set_timesteps"]) if isinstance(meta["set_timesteps"], dict) else {}
    if meta["set_timesteps"] == "flux_sigmas":
        wanted["at"] = np.linspace(1, 1 / count, count)
    plan = scheduler.plan(count, **wanted)
    samples = []
    for number, (start, direction) in enumerate(zip(x_init, w, strict=True)):

        def model(x: Any, t: float, direction: Any = direction) -> Any:
            output = a * x + np.asarray(sin(t / 1000), x.dtype) * direction
            return np.concatenate([output, np.tanh(output)]) if meta["learned_variance"] else output

        x = start * np.asarray(plan.initial_scale, start.dtype)
        steps = scheduler.solve(x, model, plan, noise[:, number], ops, **meta["step_kwargs"])
        samples.append(np.stack(list(steps)))
    return np.stack(samples, 1)
