"""Scheduler configurations as diffusers writes them: which solver each class is, and which keys it knows."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from refimpl.contract import Array, UsageError, composed, host
from refimpl.media.ddpm import ddim, ddpm
from refimpl.media.deis import deis
from refimpl.media.dpm import dpm_multistep
from refimpl.media.dpm_singlestep import dpm_singlestep
from refimpl.media.euler import euler, euler_ancestral, flow_euler
from refimpl.media.few_step import lcm, tcd
from refimpl.media.heun import flow_heun, heun, kdpm2, kdpm2_ancestral
from refimpl.media.lms import lms
from refimpl.media.plan import Noise, Plan, Solver
from refimpl.media.pndm import pndm
from refimpl.media.prediction import PREDICTIONS
from refimpl.media.scheduler_plans import (
    Config,
    Configuration,
    bar_of,
    check_steps,
    dpm_plan,
    edm_plan,
    flow_plan,
    k_plan,
    vp_plan,
)
from refimpl.media.step import combine
from refimpl.media.unipc import unipc

__all__ = ["SCHEDULERS", "Kind", "Scheduler", "draw_picture", "read_scheduler"]


@dataclass(frozen=True)
class Scheduler(Configuration):
    """A configuration that was read: ``plan`` says where to stop, ``solve`` how to go."""

    def plan(self, num_steps: int, *, mu: float | None = None, at: Array | None = None) -> Plan:
        """Return where a solver of so many steps stops; ``mu`` shifts a flow, ``at`` are noise levels of one."""
        check_steps(self.config, num_steps)
        flow = SCHEDULERS[self.name].plan is flow_plan
        if (mu is not None or at is not None) and not flow:
            raise UsageError(f"{self.name} takes neither mu nor noise levels: flows do")
        return flow_plan(self, num_steps, mu, at) if flow else SCHEDULERS[self.name].plan(self, num_steps)

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
_MOST = 1e6  # training steps that memory holds; far above any noise level
_LENGTHS = ("sigma_min", "sigma_max", "shift_terminal")
_WORDS = {
    "prediction_type": PREDICTIONS, "timestep_spacing": ("leading", "linspace", "trailing"),
    "final_sigmas_type": ("zero", "sigma_min"), "time_shift_type": ("exponential", "linear"),
    "beta_schedule": ("linear", "scaled_linear", "squaredcos_cap_v2"), "sigma_schedule": ("karras", "exponential"),
}  # fmt: skip


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
        vp_plan, ddpm, _VP | {"variance_type": "fixed_small"}, lambda c: {"variance": c["variance_type"]}
    ),
    "DDIMScheduler": Kind(vp_plan, ddim, _VP),
    "CogVideoXDDIMScheduler": Kind(
        vp_plan, ddim, _VP | {"snr_shift_scale": 3.0, "beta_schedule": "scaled_linear", "beta_start": 0.00085,
                               "beta_end": 0.0120}),
    "PNDMScheduler": Kind(vp_plan, pndm, _NOISE | {"set_alpha_to_one": False, "skip_prk_steps": False}),
    "LCMScheduler": Kind(vp_plan, lcm, _VP | _TAUGHT, lambda c: {"timestep_scaling": c["timestep_scaling"]}),
    "TCDScheduler": Kind(vp_plan, tcd, _VP | _TAUGHT, lambda c: {"bar": bar_of(c)}),
    "EulerDiscreteScheduler": Kind(
        k_plan, euler, _K | _ZERO | {"final_sigmas_type": "zero", "interpolation_type": "linear", "sigma_min": None,
                                      "sigma_max": None, "timestep_type": "discrete"}),
    "EulerAncestralDiscreteScheduler": Kind(k_plan, euler_ancestral, _K | _ZERO),
    "HeunDiscreteScheduler": Kind(k_plan, heun, _K | _LATENT | _CLIPS | {"clip_sample": False}),
    "KDPM2DiscreteScheduler": Kind(k_plan, kdpm2, _K | _LATENT),
    "KDPM2AncestralDiscreteScheduler": Kind(k_plan, kdpm2_ancestral, _K | _LATENT),
    "LMSDiscreteScheduler": Kind(k_plan, lms, _K),
    "EDMEulerScheduler": Kind(
        edm_plan, euler, {"num_train_timesteps": 1000, "prediction_type": "epsilon", "sigma_min": 0.002,
                           "sigma_max": 80.0, "sigma_data": 0.5, "sigma_schedule": "karras", "rho": 7.0,
                           "final_sigmas_type": "zero"}),
    "FlowMatchEulerDiscreteScheduler": Kind(
        flow_plan, flow_euler, _FLOW | _SPREADS | {
            "use_dynamic_shifting": False, "base_shift": 0.5, "max_shift": 1.15, "base_image_seq_len": 256,
            "max_image_seq_len": 4096, "invert_sigmas": False, "shift_terminal": None,
            "time_shift_type": "exponential", "stochastic_sampling": False,
        }, lambda c: {"stochastic": c["stochastic_sampling"]}),
    "FlowMatchHeunDiscreteScheduler": Kind(flow_plan, flow_heun, _FLOW),
    "DPMSolverMultistepScheduler": Kind(
        dpm_plan, dpm_multistep, _DPM | _ZERO | {
            "algorithm_type": "dpmsolver++", "solver_type": "midpoint", "euler_at_final": False,
            "use_lu_lambdas": False, "lambda_min_clipped": -math.inf, "variance_type": None,
        }, lambda c: _multistep(c) | {"euler_at_final": c["euler_at_final"]}),
    "DPMSolverSinglestepScheduler": Kind(
        dpm_plan, dpm_singlestep, _DPM | {
            "algorithm_type": "dpmsolver++", "solver_type": "midpoint", "lambda_min_clipped": -math.inf,
            "variance_type": None, "final_sigmas_type": "zero", "lower_order_final": False,
        }, _multistep),
    "DEISMultistepScheduler": Kind(
        dpm_plan, deis, _DPM | {"algorithm_type": "deis", "solver_type": "logrho", "final_sigmas_type": "sigma_min"},
        lambda c: {"order": c["solver_order"], "lower_order_final": c["lower_order_final"]}),
    "UniPCMultistepScheduler": Kind(
        dpm_plan, unipc, _DPM | _ZERO | {
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
    if not isinstance(config, Mapping):
        raise UsageError(f"a scheduler is read from keys and values, not from {type(config).__name__}")
    name = str(config.get("_class_name"))
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
    _check_kinds(name, config, SCHEDULERS[name].keys)
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
    if config.get("rescale_betas_zero_snr") and config["prediction_type"] == "epsilon":
        raise UsageError(f"{name}: a model that predicts epsilon says nothing where all is noise (zero terminal SNR)")
    low, high = config.get("sigma_min"), config.get("sigma_max")
    if low is not None and high is not None and not low < high:
        raise UsageError(f"{name}: sigma_min {low} is not below sigma_max {high}")
    betas = config.get("trained_betas")
    if betas is None:
        betas = [config[key] for key in ("beta_start", "beta_end") if key in config]
    elif not isinstance(betas, list) or len(betas) != config["num_train_timesteps"]:
        raise UsageError(f"{name}: trained_betas are a list of num_train_timesteps {config['num_train_timesteps']}")
    if not all(_is_number(beta) and 0 < beta < 1 for beta in betas):
        raise UsageError(f"{name}: betas lie between 0 and 1, these do not: {str(betas)[:60]}")
    if not 0 <= (config.get("shift_terminal") or 0) < 1:
        raise UsageError(f"{name}: shift_terminal lies between 0 and 1, {config['shift_terminal']} does not")
    known, train = config.get("original_inference_steps", 1), config["num_train_timesteps"]
    if known > train:
        raise UsageError(f"{name}: original_inference_steps {known} are more than num_train_timesteps {train}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_kinds(name: str, config: Config, defaults: Config) -> None:
    """Refuse a value of another kind than its key's default: a switch, a word, a whole number, a number above 0."""
    for key, value in config.items():
        default, said = defaults[key], f"{name}: {key} is"
        if isinstance(default, bool):
            if not isinstance(value, bool):
                raise UsageError(f"{said} true or false, not {value!r}")
        elif key in _WORDS and value not in _WORDS[key]:
            raise UsageError(f"{said} {' or '.join(_WORDS[key])}, not {value!r}")
        elif key == "disable_corrector":
            if not isinstance(value, list | tuple) or not all(isinstance(step, int) for step in value):
                raise UsageError(f"{said} a list of steps, not {value!r}")
        elif key == "lambda_min_clipped":
            if not _is_number(value) or not value <= _MOST:
                raise UsageError(f"{said} a number or -inf, not {value!r}")
        elif _is_number(default) or (key in _LENGTHS and value is not None):
            whole, least = isinstance(default, int), 0 if key == "steps_offset" or default is None else 1e-300
            if not _is_number(value) or not least <= value <= _MOST or (whole and not isinstance(value, int)):
                bound = "from 0" if least == 0 else "above 0"
                raise UsageError(f"{said} a {'whole ' * whole}number {bound}, not {value!r}; at most {_MOST:.0e}")


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
