"""Where each class of diffusers' schedulers stops: its configuration as a plan."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from refimpl.contract import Array, UsageError, host
from refimpl.media import noise_schedule, sigmas
from refimpl.media.euler import ancestral_sigmas
from refimpl.media.few_step import distillation_timesteps
from refimpl.media.plan import Limit, Plan

__all__ = [
    "Config", "Configuration", "bar_of", "check_levels", "check_steps", "dpm_plan", "edm_plan", "flow_plan", "k_plan",
    "vp_plan",
]  # fmt: skip

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Configuration:
    """A scheduler_config.json that was read, with the defaults of its class."""

    name: str
    config: Config
    like_diffusers: bool = False
    """Whether to do as diffusers where it departs from the definition: DDIM and PNDM find the end of a step by
    subtraction; flows of FlowMatch classes are shifted twice; multistep solvers cut a flow's timestep to an integer."""


@host
def bar_of(config: Config) -> Array:
    """Return alpha_bar of each training step."""
    known, count = config["trained_betas"], config["num_train_timesteps"]
    steps = noise_schedule.betas(config["beta_schedule"], count, config["beta_start"], config["beta_end"])
    bar = noise_schedule.alphas_bar(steps if known is None else np.array(known, np.float64))
    bar = noise_schedule.shift_snr(bar, config.get("snr_shift_scale", 1.0))
    return noise_schedule.zero_terminal_snr(bar) if config.get("rescale_betas_zero_snr") else bar


def _limit(config: Config) -> Limit | None:
    if config.get("thresholding"):
        return Limit(config["sample_max_value"], config["dynamic_thresholding_ratio"])
    return Limit(config["clip_sample_range"]) if config.get("clip_sample") else None


def _stops(config: Config, count: int, more: int = 0, whole: bool = True) -> Array:
    train, spacing = config["num_train_timesteps"], config["timestep_spacing"]
    stops = noise_schedule.timesteps(
        spacing, count, train, offset=config.get("steps_offset", 0), more=more, whole=whole
    )
    if stops[0] > train - 1:
        raise UsageError(f"{count} steps begin at timestep {stops[0]:g}, but the model was trained on 0..{train - 1}")
    return stops


@host
def vp_plan(scheduler: Configuration, count: int) -> Plan:
    """Plan over training steps: alpha^2 + sigma^2 = 1."""
    config, name = scheduler.config, scheduler.name
    bar, train = bar_of(config), config["num_train_timesteps"]
    if "original_inference_steps" in config:
        stops = distillation_timesteps(count, train, config["original_inference_steps"])
    else:
        stops = _stops(config, count)
    whole = name == "DDPMScheduler" or (config["set_alpha_to_one"] and name != "TCDScheduler")
    final = 1.0 if whole else bar[0]
    bars, ends = np.append(bar[stops.astype(int)], final), None
    if scheduler.like_diffusers and name in ("DDIMScheduler", "CogVideoXDDIMScheduler", "PNDMScheduler"):
        before = noise_schedule.previous_timesteps(stops, train, by_subtraction=True).astype(int)
        end = np.where(before >= 0, bar[before], final)
        ends = end**0.5, (1 - end) ** 0.5
    return Plan(stops, bars**0.5, (1 - bars) ** 0.5, config["prediction_type"], limit=_limit(config), ends=ends)


def _spaced(config: Config, count: int, low: float, high: float, rho: float = 7.0) -> Array | None:
    """Return the noise levels that a configuration wants between two, or None where it wants those of the steps."""
    if config.get("use_karras_sigmas"):
        return sigmas.karras_sigmas(count, low, high, rho)
    if config.get("use_exponential_sigmas") or config.get("use_lu_lambdas"):
        return sigmas.exponential_sigmas(count, low, high)
    return sigmas.beta_sigmas(count, low, high) if config.get("use_beta_sigmas") else None


def _table(config: Config) -> Array:
    """Return sigma / alpha of each training step; without any signal that of alpha_bar = 2^-24, as in diffusers."""
    bar = bar_of(config)
    bar[-1] = bar[-1] or 2.0**-24
    if not (np.diff(bar) < 0).all():
        raise UsageError("the betas leave no signal long before the last training step: noise levels do not grow there")
    return ((1 - bar) / bar) ** 0.5


@host
def k_plan(scheduler: Configuration, count: int) -> Plan:
    """Plan over noise levels: alpha = 1."""
    config, table = scheduler.config, _table(scheduler.config)
    stops = _stops(config, count, whole=False)
    levels: Array = np.interp(stops, np.arange(len(table)), table)
    low, high = config.get("sigma_min") or levels[-1], config.get("sigma_max") or levels[0]
    if (spaced := _spaced(config, count, low, high)) is not None:
        levels, stops = spaced, sigmas.timestep_of(spaced, table)
    final = table[0] if config.get("final_sigmas_type", "zero") == "sigma_min" else 0.0
    largest, ends = float(levels[0]), config["timestep_spacing"] in ("linspace", "trailing")
    plan = Plan(
        stops, np.ones(count + 1), np.append(levels, final), config["prediction_type"],
        largest if ends else math.hypot(largest, 1), (levels**2 + 1) ** -0.5, _limit(config),
    )  # fmt: skip
    return _with_middle(plan, table, scheduler.name) if scheduler.name.startswith("KDPM2") else plan


def _with_middle(plan: Plan, table: Array, name: str) -> Plan:
    """Add the geometric middles of the steps, and at which timesteps they lie."""
    ends = plan.sigmas[1:-1]
    if "Ancestral" in name:
        ends = np.array([ancestral_sigmas(float(a), float(b))[0] for a, b in zip(plan.sigmas, ends, strict=False)])
    middle = np.sqrt(plan.sigmas[: len(ends)] * ends)
    return plan._replace(middle=(middle, sigmas.timestep_of(middle, table)))


@host
def edm_plan(scheduler: Configuration, count: int) -> Plan:
    """Plan over noise levels with data of spread sigma_data: x0 is in its units, so alpha = sigma_data."""
    config = scheduler.config
    spaces = {"karras": sigmas.karras_sigmas, "exponential": sigmas.exponential_sigmas}
    if config["sigma_schedule"] not in spaces:
        raise UsageError(f"sigma_schedule is karras or exponential, not {config['sigma_schedule']!r}")
    rho = (config["rho"],) if config["sigma_schedule"] == "karras" else ()
    levels = spaces[config["sigma_schedule"]](count, config["sigma_min"], config["sigma_max"], *rho)
    final = 0.0 if config["final_sigmas_type"] == "zero" else levels[-1]
    said = {"epsilon": "edm", "v_prediction": "v_prediction"}
    if config["prediction_type"] not in said:
        raise UsageError(f"EDM's prediction_type is epsilon or v_prediction, not {config['prediction_type']!r}")
    data = float(config["sigma_data"])
    return Plan(
        0.25 * np.log(levels), np.full(count + 1, data), np.append(levels, final), said[config["prediction_type"]],
        math.hypot(config["sigma_max"], 1), (levels**2 + data**2) ** -0.5,
    )  # fmt: skip


@host
def dpm_plan(scheduler: Configuration, count: int) -> Plan:
    """Plan of the exponential integrators: VP, from the noise levels of k-diffusion; or a flow."""
    config, train = scheduler.config, scheduler.config["num_train_timesteps"]
    if config["use_flow_sigmas"]:
        levels: Array = np.linspace(1, 1 / train, count + 1)  # UniPC begins where all is noise, but lambda is finite
        levels = levels if scheduler.name.startswith("UniPC") else 1 - levels[::-1]
        levels = sigmas.shift(levels, config["flow_shift"])
        levels[0] = min(levels[0], 1 - 1e-6)
        levels = np.append(levels[:-1], 0.0 if config["final_sigmas_type"] == "zero" else levels[-2])
        told = np.floor(levels[:-1] * train) if scheduler.like_diffusers else levels[:-1] * train
        return Plan(told, 1 - levels, levels, config["prediction_type"], limit=_limit(config))
    table = _table(config)
    seen = int((-np.log(table[::-1]) < config.get("lambda_min_clipped", -math.inf)).sum())
    stops = _stops(dict(config) | {"num_train_timesteps": train - seen}, count, more=1)
    levels = np.interp(stops, np.arange(train), table)
    if (spaced := _spaced(config, count, table[0], table[-1])) is not None:
        levels, stops = spaced, sigmas.timestep_of(spaced, table)
        stops = stops if config["beta_schedule"] == "squaredcos_cap_v2" else np.round(stops)
    final = 0.0 if config["final_sigmas_type"] == "zero" else table[0]
    if final == 0 and not scheduler.name.startswith("DEIS") and not _to_zero(config):
        raise UsageError("a solver that interpolates the noise ends at final_sigmas_type sigma_min, not at zero")
    levels = np.append(levels, final)
    alphas = (levels**2 + 1) ** -0.5
    return Plan(stops, alphas, levels * alphas, config["prediction_type"], limit=_limit(config))


def _to_zero(config: Config) -> bool:
    return config.get("predict_x0", True) and str(config.get("algorithm_type", "++")).endswith("++")


@host
def flow_plan(scheduler: Configuration, count: int, mu: float | None, at: Array | None) -> Plan:
    """Plan of a straight flow: alpha = 1 - sigma, and the model is told sigma times the training steps."""
    config, train = scheduler.config, scheduler.config["num_train_timesteps"]
    factor, dynamic = config["shift"], config.get("use_dynamic_shifting", False)
    if dynamic != (mu is not None):
        raise UsageError("use_dynamic_shifting needs mu" if dynamic else "mu is for use_dynamic_shifting, which is off")
    if mu is not None:
        levels = sigmas.flow_sigmas(count, train) if at is None else check_levels(at, count)
        levels = sigmas.shift_dynamic(levels, mu, config["time_shift_type"])
    elif at is None:
        levels = sigmas.flow_sigmas(count, train, factor, double_shift=scheduler.like_diffusers)
    else:
        levels = sigmas.shift(check_levels(at, count), factor)
    if config.get("shift_terminal"):
        levels = sigmas.stretch_to(levels, config["shift_terminal"])
    if (spaced := _spaced(config, count, levels[-1], levels[0])) is not None:
        levels = spaced
    final = 0.0
    if config.get("invert_sigmas"):
        levels, final = 1 - levels, 1.0
    return Plan(levels * train, 1 - np.append(levels, final), np.append(levels, final), "flow_prediction")


@host
def check_steps(config: Config, count: Any) -> None:
    """Refuse a number of steps that is none, or more than the model was trained on."""
    noise_schedule.check_counts(count, config.get("original_inference_steps", config["num_train_timesteps"]))


@host
def check_levels(at: Array, count: int) -> Array:
    """Return the noise levels of a flow that a caller gives, if they fall from at most 1 to above 0.

    >>> check_levels([1.0, 0.5], 2)
    array([1. , 0.5])
    """
    levels = np.asarray(at, np.float64)
    falls = levels.shape == (count,) and bool((np.diff(levels) < 0).all()) and 0 < levels[-1] <= levels[0] <= 1
    if not falls:
        raise UsageError(f"{count} noise levels fall from at most 1 to above 0, not {np.array2string(levels)}")
    return levels
