"""Scheduler configurations as diffusers writes them: where each class stops, and which solver it is."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from refimpl.contract import Array, UsageError, composed, host
from refimpl.media import noise_schedule, sigmas
from refimpl.media.ddpm import ddim, ddpm
from refimpl.media.deis import deis
from refimpl.media.dpm import dpm_multistep
from refimpl.media.dpm_singlestep import dpm_singlestep
from refimpl.media.euler import ancestral_sigmas, euler, euler_ancestral, flow_euler
from refimpl.media.few_step import distillation_timesteps, lcm, tcd
from refimpl.media.heun import flow_heun, heun, kdpm2, kdpm2_ancestral
from refimpl.media.lms import lms
from refimpl.media.plan import Limit, Noise, Plan, Solver
from refimpl.media.pndm import pndm
from refimpl.media.step import combine
from refimpl.media.unipc import unipc

__all__ = ["SCHEDULERS", "Scheduler", "draw_picture", "read_scheduler"]

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Scheduler:
    """A configuration that was read: ``plan`` says where to stop, ``solve`` how to go."""

    name: str
    config: Config
    like_diffusers: bool = False
    """Whether to do as diffusers where it departs from the definition: DDIM and PNDM find the end of a step by
    subtraction; flows of FlowMatch classes are shifted twice; multistep solvers cut a flow's timestep to an integer."""

    def plan(self, num_steps: int, *, mu: float | None = None, at: Array | None = None) -> Plan:
        """Return where a solver of so many steps stops; ``mu`` shifts dynamically, ``at`` are noise levels of a flow."""
        check_steps(self.config, num_steps)
        flow = SCHEDULERS[self.name].plan is _flow_plan
        if (mu is not None or at is not None) and not flow:
            raise UsageError(f"{self.name} takes neither mu nor noise levels: flows do")
        return _flow_plan(self, num_steps, mu, at) if flow else SCHEDULERS[self.name].plan(self, num_steps)

    def solve(self, x: Array, model: Any, plan: Plan, noise: Noise, ops: Any, **settings: Any) -> Iterator[Array]:
        """Run the solver from ``x``, with what the configuration says and ``settings`` on top."""
        kind = SCHEDULERS[self.name]
        return kind.solver(x, model, plan, noise, ops, **{**kind.settings(self.config), **settings})


@dataclass(frozen=True)
class Kind:
    """A class of diffusers: how it plans, which solver it is, which keys it knows, and what they set."""

    plan: Callable[..., Plan]
    solver: Solver
    keys: Mapping[str, Any]
    settings: Callable[[Config], dict[str, Any]] = lambda config: {}


_NOISE = {
    "num_train_timesteps": 1000, "beta_start": 1e-4, "beta_end": 0.02, "beta_schedule": "linear", "trained_betas": None,
    "prediction_type": "epsilon", "timestep_spacing": "leading", "steps_offset": 0,
}  # fmt: skip
_CLIPS = {"clip_sample": True, "clip_sample_range": 1.0}
_THRESHOLDS = {"thresholding": False, "dynamic_thresholding_ratio": 0.995, "sample_max_value": 1.0}
_SPREADS = {"use_karras_sigmas": False, "use_exponential_sigmas": False, "use_beta_sigmas": False}
_ZERO = {"rescale_betas_zero_snr": False}
_VP = _NOISE | _CLIPS | _THRESHOLDS | _ZERO | {"set_alpha_to_one": True}
_LATENT = {"beta_start": 0.00085, "beta_end": 0.012}
_TAUGHT = _LATENT | {
    "beta_schedule": "scaled_linear", "clip_sample": False, "original_inference_steps": 50, "timestep_scaling": 10.0,
}  # fmt: skip
_K = _NOISE | _SPREADS | {"timestep_spacing": "linspace"}
_DPM = _NOISE | _THRESHOLDS | _SPREADS | {
    "timestep_spacing": "linspace", "solver_order": 2, "lower_order_final": True, "use_flow_sigmas": False,
    "flow_shift": 1.0, "final_sigmas_type": "zero", "use_dynamic_shifting": False, "time_shift_type": "exponential",
}  # fmt: skip
_FLOW = {"num_train_timesteps": 1000, "shift": 1.0}


def _bar(config: Config) -> Array:
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


def _vp_plan(scheduler: Scheduler, count: int) -> Plan:
    """Plan over training steps: alpha^2 + sigma^2 = 1."""
    config, name = scheduler.config, scheduler.name
    bar, train = _bar(config), config["num_train_timesteps"]
    if "original_inference_steps" in config:
        stops = distillation_timesteps(count, train, config["original_inference_steps"])
    else:
        stops = _stops(config, count)
    whole = name == "DDPMScheduler" or config["set_alpha_to_one"] and name != "TCDScheduler"
    final = 1.0 if whole else bar[0]
    bars, ends = np.append(bar[stops.astype(int)], final), None
    if scheduler.like_diffusers and name in ("DDIMScheduler", "CogVideoXDDIMScheduler", "PNDMScheduler"):
        before = stops.astype(int) - train // count
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
    """Return sigma / alpha of each training step; without any signal it is that of alpha_bar = 2^-24, as in diffusers."""
    bar = _bar(config)
    bar[-1] = max(bar[-1], 2.0**-24)
    return ((1 - bar) / bar) ** 0.5


def _k_plan(scheduler: Scheduler, count: int) -> Plan:
    """Plan over noise levels: alpha = 1."""
    config, table = scheduler.config, _table(scheduler.config)
    stops = _stops(config, count, whole=False)
    levels = np.interp(stops, np.arange(len(table)), table)
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


def _edm_plan(scheduler: Scheduler, count: int) -> Plan:
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


def _dpm_plan(scheduler: Scheduler, count: int) -> Plan:
    """Plan of the exponential integrators: VP, from the noise levels of k-diffusion; or a flow."""
    config, train = scheduler.config, scheduler.config["num_train_timesteps"]
    if config["use_flow_sigmas"]:
        levels = np.linspace(1, 1 / train, count + 1)  # UniPC begins where all is noise, but for lambda to be finite
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


def _flow_plan(scheduler: Scheduler, count: int, mu: float | None, at: Array | None) -> Plan:
    """Plan of a straight flow: alpha = 1 - sigma, and the model is told sigma times the training steps."""
    config, train = scheduler.config, scheduler.config["num_train_timesteps"]
    factor, dynamic = config["shift"], config.get("use_dynamic_shifting", False)
    if dynamic != (mu is not None):
        raise UsageError("use_dynamic_shifting needs mu" if dynamic else "mu is for use_dynamic_shifting, which is off")
    levels = sigmas.flow_sigmas(count, train) if at is None else check_levels(at, count)
    if mu is not None:
        levels = sigmas.shift_dynamic(levels, mu, config["time_shift_type"])
    elif at is None and scheduler.like_diffusers:  # shifted ends, equal steps between, and shifted again
        levels = sigmas.shift(np.linspace(1, sigmas.shift(levels[-1:], factor)[0] if count > 1 else 1, count), factor)
    else:
        levels = sigmas.shift(levels, factor)
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


def _multistep(config: Config) -> dict[str, Any]:
    return {
        "algorithm": config["algorithm_type"], "order": config["solver_order"], "kind": config["solver_type"],
        "lower_order_final": config["lower_order_final"],
    }  # fmt: skip


def _unipc(config: Config) -> dict[str, Any]:
    names = ("predict_x0", "lower_order_final", "disable_corrector")
    return {"order": config["solver_order"], "kind": config["solver_type"]} | {name: config[name] for name in names}


SCHEDULERS: Mapping[str, Kind] = {
    "DDPMScheduler": Kind(
        _vp_plan, ddpm, _VP | {"variance_type": "fixed_small"}, lambda c: {"variance": c["variance_type"]}
    ),
    "DDIMScheduler": Kind(_vp_plan, ddim, _VP),
    "CogVideoXDDIMScheduler": Kind(
        _vp_plan, ddim, _VP | {"snr_shift_scale": 3.0, "beta_schedule": "scaled_linear", "beta_start": 0.00085,
                               "beta_end": 0.0120}),
    "PNDMScheduler": Kind(_vp_plan, pndm, _NOISE | {"set_alpha_to_one": False, "skip_prk_steps": False}),
    "LCMScheduler": Kind(_vp_plan, lcm, _VP | _TAUGHT, lambda c: {"timestep_scaling": c["timestep_scaling"]}),
    "TCDScheduler": Kind(_vp_plan, tcd, _VP | _TAUGHT, lambda c: {"bar": _bar(c)}),
    "EulerDiscreteScheduler": Kind(
        _k_plan, euler, _K | _ZERO | {"final_sigmas_type": "zero", "interpolation_type": "linear", "sigma_min": None,
                                      "sigma_max": None, "timestep_type": "discrete"}),
    "EulerAncestralDiscreteScheduler": Kind(_k_plan, euler_ancestral, _K | _ZERO),
    "HeunDiscreteScheduler": Kind(_k_plan, heun, _K | _LATENT | _CLIPS | {"clip_sample": False}),
    "KDPM2DiscreteScheduler": Kind(_k_plan, kdpm2, _K | _LATENT),
    "KDPM2AncestralDiscreteScheduler": Kind(_k_plan, kdpm2_ancestral, _K | _LATENT),
    "LMSDiscreteScheduler": Kind(_k_plan, lms, _K),
    "EDMEulerScheduler": Kind(
        _edm_plan, euler, {"num_train_timesteps": 1000, "prediction_type": "epsilon", "sigma_min": 0.002,
                           "sigma_max": 80.0, "sigma_data": 0.5, "sigma_schedule": "karras", "rho": 7.0,
                           "final_sigmas_type": "zero"}),
    "FlowMatchEulerDiscreteScheduler": Kind(
        _flow_plan, flow_euler, _FLOW | _SPREADS | {
            "use_dynamic_shifting": False, "base_shift": 0.5, "max_shift": 1.15, "base_image_seq_len": 256,
            "max_image_seq_len": 4096, "invert_sigmas": False, "shift_terminal": None,
            "time_shift_type": "exponential", "stochastic_sampling": False,
        }, lambda c: {"stochastic": c["stochastic_sampling"]}),
    "FlowMatchHeunDiscreteScheduler": Kind(_flow_plan, flow_heun, _FLOW),
    "DPMSolverMultistepScheduler": Kind(
        _dpm_plan, dpm_multistep, _DPM | _ZERO | {
            "algorithm_type": "dpmsolver++", "solver_type": "midpoint", "euler_at_final": False,
            "use_lu_lambdas": False, "lambda_min_clipped": -math.inf, "variance_type": None,
        }, lambda c: _multistep(c) | {"euler_at_final": c["euler_at_final"]}),
    "DPMSolverSinglestepScheduler": Kind(
        _dpm_plan, dpm_singlestep, _DPM | {
            "algorithm_type": "dpmsolver++", "solver_type": "midpoint", "lambda_min_clipped": -math.inf,
            "variance_type": None, "final_sigmas_type": "zero", "lower_order_final": False,
        }, _multistep),
    "DEISMultistepScheduler": Kind(
        _dpm_plan, deis, _DPM | {"algorithm_type": "deis", "solver_type": "logrho", "final_sigmas_type": "sigma_min"},
        lambda c: {"order": c["solver_order"], "lower_order_final": c["lower_order_final"]}),
    "UniPCMultistepScheduler": Kind(
        _dpm_plan, unipc, _DPM | _ZERO | {
            "predict_x0": True, "solver_type": "bh2", "disable_corrector": (), "solver_p": None, "sigma_min": None,
            "sigma_max": None, "shift_terminal": None,
        }, _unipc),
}  # fmt: skip
"""By diffusers' class: its plan, its solver, and its keys with their defaults."""

@host
def read_scheduler(config: Config, *, like_diffusers: bool = False) -> Scheduler:
    """Read a scheduler_config.json: what is missing has diffusers' default, what is not understood is refused.

    >>> read_scheduler({"_class_name": "DDIMScheduler"}).plan(2).timesteps
    array([500.,   0.])
    """
    name = config.get("_class_name")
    if name not in SCHEDULERS:
        raise UsageError(f"there is no scheduler {name!r}; those read here are {', '.join(SCHEDULERS)}")
    keys = SCHEDULERS[name].keys
    given = {key: value for key, value in config.items() if not key.startswith("_")}
    if unknown := sorted(set(given) - set(keys)):
        raise UsageError(f"{name} has a key that is not understood: {', '.join(unknown)}")
    full = {**keys, **given}
    _check(name, full)
    return Scheduler(name, full, like_diffusers)


def _check(name: str, config: Config) -> None:
    """Refuse values that cannot be, and switches that are not understood."""
    switches = {
        "interpolation_type": "linear", "timestep_type": "discrete", "solver_p": None, "skip_prk_steps": True,
    }  # fmt: skip
    if name.startswith(("DPM", "DEIS", "UniPC")):
        switches |= {"use_dynamic_shifting": False, "variance_type": None, "shift_terminal": None}
    if name == "DEISMultistepScheduler":
        switches |= {"algorithm_type": "deis", "solver_type": "logrho"}
    for key, value in switches.items():
        if key in config and config[key] != value:
            raise UsageError(f"{name} is read with {key} {value!r} alone, not {config[key]!r}")
    numbers = {key: value for key, value in config.items() if isinstance(value, int | float) and key[:3] != "lam"}
    if wrong := [key for key, value in numbers.items() if not 0 <= value < math.inf]:
        raise UsageError(f"{name}: {wrong[0]} is a number from 0, not {config[wrong[0]]}")
    if config.get("rescale_betas_zero_snr") and config["prediction_type"] == "epsilon":
        raise UsageError(f"{name}: a model that predicts epsilon says nothing where all is noise (zero terminal SNR)")
    low, high = config.get("sigma_min"), config.get("sigma_max")
    if low is not None and high is not None and not low < high:
        raise UsageError(f"{name}: sigma_min {low} is not below sigma_max {high}")


@composed
def draw_picture(
    scheduler: Scheduler, noise: Array, model: Any, num_steps: int, draws: Noise, ops: Any, **settings: Any
) -> Iterator[Array]:
    """Make a picture out of noise: yields x before every evaluation of the model, and last the picture.

    Source: the definition.
    """
    plan = scheduler.plan(num_steps)
    x = noise if plan.initial_scale == 1 else combine(((plan.initial_scale, noise),), ops)
    return scheduler.solve(x, model, plan, draws, ops, **settings)
