"""Faults of schedulers: what was read wrong in a configuration, or in whose order noise is drawn."""

import json
from collections.abc import Callable
from typing import Any

from golden.derive.solvers import linear_trajectory
from golden.values import Array

__all__ = [
    "always_corrected", "draws_in_reverse", "ends_without_noise", "eta_forgotten", "euler_instead", "heun_for_midpoint",
    "karras_added", "karras_forgotten", "large_variance", "lower_order", "noise_for_x0", "one_step_off", "other_b",
    "other_end_of_step", "other_spacing", "other_betas", "second_order_at_final", "shifted_otherwise",
    "small_start", "snr_unshifted", "timesteps_whole_or_not", "unclipped", "uncorrected", "unshifted",
    "v_read_as_noise", "zero_snr_ignored",
]  # fmt: skip


def _read(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., Array]:
    """Return what reads ``change(config)`` where another configuration stands."""

    def fault(scheduler_config: str, **others: Any) -> Array:
        config = json.loads(scheduler_config)
        return linear_trajectory(json.dumps(config | change(config)), **others)

    return fault


def draws_in_reverse(draws: Array, **others: Any) -> Array:
    """The first noise is used last."""
    return linear_trajectory(draws=draws[::-1], **others)


def eta_forgotten(eta: float, **others: Any) -> Array:
    """No noise, whatever its share."""
    return linear_trajectory(eta=0.0, **others)


def _otherwise(like_diffusers: bool, **others: Any) -> Array:
    """What diffusers does where the definition is asked for, and the other way round."""
    return linear_trajectory(like_diffusers=not like_diffusers, **others)


def small_start(noise: Array, **others: Any) -> Array:
    """x starts as noise itself: the scale of the start is forgotten."""
    right = linear_trajectory(noise=noise, **others)
    return linear_trajectory(noise=noise * (noise.flat[0] / right[0].flat[0]), **others)


shifted_otherwise = other_end_of_step = timesteps_whole_or_not = _otherwise
always_corrected = _read(lambda config: {"disable_corrector": []})
ends_without_noise = _read(lambda config: {"set_alpha_to_one": True})
euler_instead = _read(lambda config: {"_class_name": "EulerDiscreteScheduler"})
heun_for_midpoint = _read(lambda config: {"solver_type": "midpoint" if config.get("solver_type") == "heun" else "heun"})
karras_added = _read(lambda config: {"use_karras_sigmas": True})
karras_forgotten = _read(lambda config: {"use_karras_sigmas": False})
large_variance = _read(lambda config: {"variance_type": "fixed_large"})
lower_order = _read(lambda config: {"solver_order": config.get("solver_order", 2) - 1})
noise_for_x0 = _read(
    lambda config: {"predict_x0": False, "algorithm_type": "dpmsolver", "final_sigmas_type": "sigma_min"}
)
one_step_off = _read(lambda config: {"steps_offset": config.get("steps_offset", 0) - 1})
other_b = _read(lambda config: {"solver_type": "bh2"})
other_spacing = _read(lambda config: {"timestep_spacing": "trailing"})
other_betas = _read(lambda config: {"beta_schedule": "linear"})
second_order_at_final = _read(lambda config: {"euler_at_final": False})
snr_unshifted = _read(lambda config: {"snr_shift_scale": 1.0})
unclipped = _read(lambda config: {"clip_sample": False})
uncorrected = _read(lambda config: {"disable_corrector": list(range(100))})
unshifted = _read(lambda config: {"shift": 1.0, "flow_shift": 1.0})
v_read_as_noise = _read(lambda config: {"prediction_type": "epsilon"})
zero_snr_ignored = _read(lambda config: {"rescale_betas_zero_snr": False})
