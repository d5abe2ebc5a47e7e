"""The fault reports on denoising: spreads of guidance, ends of DDIM's steps, the last noise level, pure noise."""

import numpy as np
import pytest

from gpu import device
from gpu.media import operations as kernels
from refimpl.contract import UsageError
from refimpl.media import operations
from refimpl.media.ddpm import ddim
from refimpl.media.euler import euler
from refimpl.media.noise_schedule import alphas_bar, betas, zero_terminal_snr
from refimpl.media.plan import Plan
from refimpl.media.prediction import noise_weights, x0_weights
from refimpl.media.scheduler import read_scheduler
from refimpl.media.sigmas import karras_sigmas
from tests.outside.faults import load_case

CASE = load_case("cfg_rescale")
COND, UNCOND = CASE.inputs["cond"], CASE.inputs["uncond"]


@pytest.mark.parametrize("number", range(len(COND)))
@pytest.mark.parametrize("ops", (operations, kernels), ids=("reference", "kernels"))
def test_cfg_rescale(ops, number: int):
    with device.use("emulated"):
        guided = ops.guide(COND[number], UNCOND[number], CASE.inputs["guidance_scale"])
        found = ops.rescale_guidance(guided, COND[number], CASE.inputs["guidance_rescale"])
    CASE.assert_near(found, CASE.expected["out"][number])


def test_a_batch_of_three_holds_one_without_spread():
    assert any(np.ptp(UNCOND[n] + CASE.inputs["guidance_scale"] * (COND[n] - UNCOND[n])) == 0 for n in range(3))


DDIM = {
    "_class_name": "DDIMScheduler", "beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012,
    "clip_sample": False,
}  # fmt: skip


@pytest.mark.parametrize("spacing", ["linspace", "trailing", "leading"])
def test_ddim_timesteps(spacing: str):
    case = load_case("ddim_timesteps")
    scheduler = read_scheduler(DDIM | {"timestep_spacing": spacing})
    plan = scheduler.plan(10)
    assert plan.timesteps.tolist() == case.expected[f"{spacing}_10"].tolist()
    bar = alphas_bar(betas("scaled_linear", 1000, 0.00085, 0.012))
    before = [*plan.timesteps[1:].astype(int).tolist(), -1]  # the next entry of the schedule, and then the picture
    assert spacing != "linspace" or before == case.expected["linspace_10_previous"].tolist()
    np.testing.assert_allclose(plan.alphas[1:] ** 2, [bar[t] if t >= 0 else 1.0 for t in before], rtol=1e-12)
    assert plan.ends is None and scheduler.plan(1000).timesteps.max() == case.expected["steps_1000_highest"]


@pytest.mark.parametrize(("step", "name"), [(0, "step_999_to_888"), (9, "last_step_0")])
def test_ddim_steps(step: int, name: str):
    case = load_case("ddim_timesteps")
    plan = read_scheduler(DDIM | {"timestep_spacing": "linspace"}).plan(10)
    one = Plan(plan.timesteps[step : step + 1], plan.alphas[step : step + 2], plan.sigmas[step : step + 2])
    *_, found = ddim(case.inputs["x"], lambda x, t: case.inputs["eps"], one, (), operations)
    case.assert_near(found, case.expected[name])


def test_karras_sigmas_last_step():
    case = load_case("karras_sigmas_last_step")
    n, low, high, rho = (case.inputs[key] for key in ("n", "sigma_min", "sigma_max", "rho"))
    sigmas = np.append(karras_sigmas(n, low, high, rho), 0.0)
    case.assert_near(sigmas, case.expected["sigmas"])
    last = Plan(np.zeros(1), np.ones(2), sigmas[-2:], "sample")
    *_, found = euler(case.inputs["x"], lambda x, t: case.inputs["x0_now"], last, (), operations)
    case.assert_near(found, case.expected["after_last_step"])


def test_zero_terminal_snr():
    case = load_case("zero_terminal_snr")
    bar = zero_terminal_snr(alphas_bar(betas("scaled_linear", 1000, 0.00085, 0.012)))
    case.assert_near(bar[[0, 500, 998, 999]], case.expected["alpha_bar_at_0_500_998_999"])
    for t in (500, 999):
        alpha, sigma = bar[t] ** 0.5, (1 - bar[t]) ** 0.5
        for name, weights in (("x0", x0_weights), ("eps", noise_weights)):
            of_x, of_v = weights(alpha, sigma, "v_prediction")
            case.assert_near(of_x * case.inputs["x"] + of_v * case.inputs["v"], case.expected[f"{name}_{t}"])
    assert case.expected["epsilon_prediction_at_999"] == "reject"
    with pytest.raises(UsageError, match="zero terminal SNR"):
        x0_weights(0.0, 1.0, "epsilon")
    with pytest.raises(UsageError, match="zero terminal SNR"):
        read_scheduler(DDIM | {"rescale_betas_zero_snr": True})
