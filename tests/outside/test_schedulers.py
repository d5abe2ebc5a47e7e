"""Schedulers as diffusers runs them: whole trajectories; where we depart by default, and how to depart not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu import device
from gpu.media import operations as kernels
from refimpl.media import operations
from refimpl.media.scheduler import read_scheduler
from tests.reference_adapter_schedulers import trajectory

FOLDER = Path(__file__).parents[3] / "shared" / "reference" / "schedulers"
CASES = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())
EMULATED = ("ddim_eta", "ddpm_learned_range", "dpmpp_threshold", "euler_ancestral", "flow_shift3", "unipc", "lcm")
DEPARTING = {
    "ddim_linspace", "ddim_trailing", "flow_heun", "flow_shift3", "flow_stochastic", "dpmpp_flow", "unipc_flow",
}  # fmt: skip
"""Cases that our own definition does not give: the end of a step, one shift of a flow, timesteps that are not cut."""


def test_there_are_80_cases():
    assert len(CASES) == 80


def stored(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    with np.load(FOLDER / name / "expected.npz") as archive:
        return json.loads((FOLDER / name / "meta.json").read_text()), dict(archive)


def errors(name: str, dtype: str, ops: Any = operations, like_diffusers: bool = True) -> tuple[float, float]:
    """Return how far our trajectory is off: its largest error, and the length of it over that of theirs."""
    meta, arrays = stored(name)
    start, direction, noise = (arrays[key].astype(dtype) for key in ("x_init", "w", "noise"))
    found = trajectory(
        str(FOLDER / name), start, direction, float(arrays["a"]), noise, meta, ops, like_diffusers=like_diffusers
    )
    wanted = arrays["samples"].astype(np.float64)
    wanted = wanted + arrays["samples_lo"] if dtype == "float64" and "samples_lo" in arrays else wanted
    assert found.shape == wanted.shape and found.dtype == dtype
    away = found - wanted
    return float(np.abs(away).max()), float(np.linalg.norm(away) / np.linalg.norm(wanted))


def passes(name: str, *given: Any, **named: Any) -> bool:
    most = stored(name)[0]["tolerances"]["samples"]
    largest, relative = errors(name, "float32", *given, **named)
    return largest <= most["max_abs"] and relative <= most["rel_l2"]


@pytest.mark.parametrize("name", CASES)
def test_equals_diffusers(name: str):
    assert passes(name)


@pytest.mark.parametrize("name", CASES)
def test_equals_diffusers_in_float64(name: str):
    assert errors(name, "float64")[1] <= 1e-9


@pytest.mark.parametrize("name", EMULATED)
def test_kernels_equal_diffusers(name: str):
    with device.use("emulated"):
        assert passes(name, kernels)


@pytest.mark.parametrize("name", CASES)
def test_our_own_definition_departs_where_it_is_said_to(name: str):
    assert passes(name, like_diffusers=False) == (name not in DEPARTING)


def test_a_flow_is_shifted_once_or_as_diffusers_twice():
    config = {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}
    once, twice = (read_scheduler(config, like_diffusers=like).plan(28).sigmas[-2] for like in (False, True))
    assert (round(float(once), 5), round(float(twice), 5)) == (0.00299, 0.00893)  # CONVENTIONS, row 24
