"""Tables of noise and stops against closed forms and published numbers; configurations that are refused."""

import json
from math import exp, inf, log, nan, sin

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.contract import UsageError
from refimpl.media import noise_schedule, operations, sigmas
from refimpl.media.scheduler import SCHEDULERS, draw_picture, read_scheduler

counts = st.integers(2, 60)
levels = st.tuples(st.floats(0.001, 0.5), st.floats(1, 200))
NAMES = sorted(SCHEDULERS)


def config(name: str, **given) -> dict:
    known = {"_class_name": name} | ({"skip_prk_steps": True} if name == "PNDMScheduler" else {})
    return known | given


@given(counts, levels, st.floats(1, 10))
def test_spaced_levels_are_equal_steps_of_a_function_and_meet_both_ends(count, ends, rho):
    low, high = ends
    straight = {
        "karras": sigmas.karras_sigmas(count, low, high, rho) ** (1 / rho),
        "exponential": np.log(sigmas.exponential_sigmas(count, low, high)),
        "lambda": -np.log(sigmas.lu_sigmas(count, low, high)),
    }
    for line in straight.values():
        np.testing.assert_allclose(np.diff(line), (line[-1] - line[0]) / (count - 1), atol=1e-12 * np.abs(line).max())
    for found in (sigmas.karras_sigmas(count, low, high, rho), sigmas.beta_sigmas(count, low, high)):
        np.testing.assert_allclose(found[[0, -1]], [high, low], rtol=1e-12)
        assert (np.diff(found) < 0).all()


@given(counts)
def test_levels_at_quantiles_of_the_arcsine_law_are_a_cosine(count):
    found = sigmas.beta_sigmas(count, 0.0, 1.0, 0.5, 0.5)
    np.testing.assert_allclose(found, np.sin(np.pi / 2 * np.linspace(1, 0, count)) ** 2, atol=1e-12)


@given(st.floats(0.001, 1), st.floats(0.1, 10), st.floats(0.1, 10))
def test_a_shift_multiplies_the_odds_of_noise(sigma, first, second):
    level = np.array([sigma])
    once = sigmas.shift(level, first)
    if sigma < 0.999:
        np.testing.assert_allclose(once / (1 - once), first * level / (1 - level), rtol=1e-9)
    np.testing.assert_allclose(sigmas.shift(once, second), sigmas.shift(level, first * second), rtol=1e-12)
    np.testing.assert_allclose(sigmas.shift_dynamic(level, log(first)), once, rtol=1e-12)
    np.testing.assert_allclose(sigmas.shift_dynamic(level, first, "linear"), once, rtol=1e-12)


def test_the_cosine_schedule_is_the_papers():
    bar = noise_schedule.alphas_bar(noise_schedule.betas("squaredcos_cap_v2", 1000))
    t = np.arange(1, 1000)
    wanted = (np.cos((t / 1000 + 0.008) / 1.008 * np.pi / 2) / np.cos(0.008 / 1.008 * np.pi / 2)) ** 2
    np.testing.assert_allclose(bar[:-1], wanted, rtol=1e-9)
    assert bar[-1] / bar[-2] == pytest.approx(0.001)  # the last beta is cut at 0.999


def test_schedules_of_known_models():
    bar = noise_schedule.alphas_bar(noise_schedule.betas("scaled_linear", 1000, 0.00085, 0.012))
    table = ((1 - bar) / bar) ** 0.5
    np.testing.assert_allclose(table[[0, -1]], [0.0291675, 14.614642], rtol=2e-5)  # Stable Diffusion: float32 there
    linear = noise_schedule.alphas_bar(noise_schedule.betas("linear", 1000))
    np.testing.assert_allclose(linear[-1], 4.0358e-5, rtol=1e-4)  # Ho et al.: nearly 0


@given(st.floats(1e-4, 0.01), st.floats(0.011, 0.2))
def test_zero_terminal_snr_keeps_the_first_step_and_the_order(start, end):
    bar = noise_schedule.alphas_bar(noise_schedule.betas("linear", 100, start, end))
    found = noise_schedule.zero_terminal_snr(bar)
    np.testing.assert_allclose(found[0], bar[0], rtol=1e-12)
    assert found[-1] == 0 and (np.diff(found) < 0).all()


@given(st.floats(0.01, 0.99), st.floats(0.1, 10))
def test_a_shift_of_snr_divides_it(bar, scale):
    found = float(noise_schedule.shift_snr(np.array([bar]), scale)[0])
    assert found / (1 - found) == pytest.approx(bar / (1 - bar) / scale)


@given(st.integers(1, 1000), st.sampled_from(("leading", "linspace", "trailing")))
def test_stops_fall_within_the_training_steps(count, spacing):
    stops = noise_schedule.timesteps(spacing, count, 1000)
    assert len(stops) == count and (np.diff(stops) < 0).all() and 0 <= stops[-1] <= stops[0] <= 999
    assert count == 1 or spacing == "leading" or stops[0] == 999
    ends = noise_schedule.previous_timesteps(stops, 1000)
    assert (ends < stops).all() and np.array_equal(ends[:-1], stops[1:]) and ends[-1] == -1


@given(st.floats(0.2, 50))
def test_a_noise_level_lies_between_training_steps_by_its_logarithm(sigma):
    table = np.exp(np.linspace(log(0.1), log(100), 31))
    np.testing.assert_allclose(sigmas.timestep_of(np.array([sigma]), table), 30 * log(sigma / 0.1) / log(1000))


@given(st.integers(2, 40), st.floats(0.01, 0.9))
def test_a_flow_ends_where_it_is_stretched_to(count, terminal):
    found = sigmas.stretch_to(sigmas.flow_sigmas(count, 1000), terminal)
    np.testing.assert_allclose(found, np.linspace(1, terminal, count), rtol=1e-9)
    assert sigmas.stretch_to(np.ones(1), terminal) == 1


def test_flows_are_shifted_statically_dynamically_and_to_an_end():
    name = "FlowMatchEulerDiscreteScheduler"
    still = read_scheduler(config(name, shift=exp(1.15))).plan(8)
    moving = read_scheduler(config(name, use_dynamic_shifting=True)).plan(8, mu=1.15)
    np.testing.assert_allclose(still.sigmas, moving.sigmas, rtol=1e-12)
    np.testing.assert_allclose(still.timesteps, 1000 * still.sigmas[:-1], rtol=1e-12)
    assert read_scheduler(config(name, shift_terminal=0.02)).plan(8).sigmas[-2] == pytest.approx(0.02)
    given_levels = read_scheduler(config(name)).plan(2, at=np.array([1.0, 0.5]))
    assert given_levels.sigmas.tolist() == [1, 0.5, 0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [1, 2, 50])
def test_every_class_goes_from_noise_to_a_picture(name: str, steps: int):
    noise, draws = np.array([1.0, -2.0]), [np.array([0.5, 0.25])] * 200
    scheduler = read_scheduler(json.loads(json.dumps(config(name))))
    *seen, picture = draw_picture(
        scheduler, noise, lambda x, t: 0.1 * x + sin(t / 1000), steps, draws, operations
    )
    assert len(seen) >= steps and np.isfinite(picture).all()


def test_cosine_tables_are_cut_only_where_no_signal_is_left():
    given = {"beta_schedule": "squaredcos_cap_v2", "prediction_type": "v_prediction"}
    largest = [
        read_scheduler(config("EulerDiscreteScheduler", **given, rescale_betas_zero_snr=zero)).plan(5).sigmas[0]
        for zero in (False, True)
    ]
    np.testing.assert_allclose(largest, [20291.17, 4096], rtol=1e-4)  # diffusers 0.42.1: 20291.303; floor 2^-24


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "given", [{"num_train_timesteps": wrong} for wrong in (nan, -1, 0, 0.5, inf, "10", None, True)], ids=str
)
def test_training_steps_are_a_whole_number(name: str, given: dict):
    with pytest.raises(UsageError, match="num_train_timesteps is a whole number above 0"):
        read_scheduler(config(name, **given))


REFUSED = [
    ("FlowMatchScheduler", {}, "no scheduler 'FlowMatchScheduler'; those read here are DDPMScheduler, "),
    ("DDIMScheduler", {"beta_schedul": "linear"}, "key that is not understood: beta_schedul"),
    ("DDIMScheduler", {"rescale_betas_zero_snr": True}, "predicts epsilon .*zero terminal SNR"),
    ("DDIMScheduler", {"prediction_type": "score"}, "prediction_type is epsilon or v_prediction"),
    ("DDIMScheduler", {"timestep_spacing": "log"}, "timestep_spacing is leading or linspace or trailing, not 'log'"),
    ("DDIMScheduler", {"beta_schedule": "exp"}, "beta_schedule is linear or"),
    ("DDIMScheduler", {"beta_start": nan}, "beta_start is a number above 0, not nan"),
    ("DDIMScheduler", {"beta_end": 1.5}, "betas lie between 0 and 1"),
    ("DDIMScheduler", {"trained_betas": [0.1, 0.2]}, "trained_betas are a list of num_train_timesteps 1000"),
    ("DDIMScheduler", {"trained_betas": [0.1, nan], "num_train_timesteps": 2}, "betas lie between 0 and 1"),
    ("DDIMScheduler", {"clip_sample": 1}, "clip_sample is true or false, not 1"),
    ("DDIMScheduler", {"steps_offset": -1}, "steps_offset is a whole number from 0"),
    ("PNDMScheduler", {"skip_prk_steps": False}, "skip_prk_steps True alone"),
    ("LCMScheduler", {"original_inference_steps": 2000}, "2000 are more than num_train_timesteps 1000"),
    ("EulerDiscreteScheduler", {"sigma_min": 2.0, "sigma_max": 2.0}, "sigma_min 2.0 is not below sigma_max 2.0"),
    ("EulerDiscreteScheduler", {"sigma_min": -2.0}, "sigma_min is a number from 0"),
    ("EulerDiscreteScheduler", {"timestep_type": "continuous"}, "timestep_type 'discrete' alone"),
    ("EDMEulerScheduler", {"sigma_min": 0.0}, "sigma_min is a number above 0"),
    ("EDMEulerScheduler", {"sigma_schedule": "beta"}, "sigma_schedule is karras or exponential"),
    ("FlowMatchEulerDiscreteScheduler", {"shift": nan}, "shift is a number above 0, not nan"),
    ("FlowMatchEulerDiscreteScheduler", {"shift_terminal": 1.0}, "shift_terminal lies between 0 and 1"),
    ("FlowMatchEulerDiscreteScheduler", {"time_shift_type": "cubic"}, "time_shift_type is exponential or linear"),
    ("UniPCMultistepScheduler", {"disable_corrector": 0}, "disable_corrector is a list of steps"),
    ("DPMSolverMultistepScheduler", {"lambda_min_clipped": "-1"}, "lambda_min_clipped is a number or -inf"),
    ("DPMSolverMultistepScheduler", {"final_sigmas_type": "one"}, "final_sigmas_type is zero or sigma_min"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "message"), REFUSED)
def test_configurations_that_are_refused(name: str, given: dict, message: str):
    with pytest.raises(UsageError, match=message):
        read_scheduler({"_class_name": name} | given)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [0, -3, 1001])
def test_numbers_of_steps_that_are_refused(name: str, steps: int):
    with pytest.raises(UsageError, match=r"takes 1 to \d+ steps"):
        read_scheduler(config(name)).plan(steps)


PLANS = [
    ("DDIMScheduler", {"steps_offset": 1}, 1000, {}, "begin at timestep 1000, but the model was trained on 0..999"),
    ("DDIMScheduler", {}, 4, {"mu": 1.0}, "takes neither mu nor noise levels"),
    ("FlowMatchEulerDiscreteScheduler", {}, 4, {"mu": 1.0}, "use_dynamic_shifting, which is off"),
    ("FlowMatchEulerDiscreteScheduler", {"use_dynamic_shifting": True}, 4, {}, "needs mu"),
    ("FlowMatchEulerDiscreteScheduler", {}, 3, {"at": [1.0, 0.2, 0.5]}, "fall from at most 1 to above 0"),
    ("FlowMatchEulerDiscreteScheduler", {}, 2, {"at": [1.0, nan]}, "fall from at most 1 to above 0"),
    ("FlowMatchEulerDiscreteScheduler", {}, 3, {"at": [1.0, 0.5]}, "3 noise levels fall"),
    ("EulerDiscreteScheduler", {"beta_start": 0.5, "beta_end": 0.6}, 4, {}, "leave no signal"),
    ("DPMSolverMultistepScheduler", {"algorithm_type": "dpmsolver"}, 4, {}, "ends at final_sigmas_type sigma_min"),
]


@pytest.mark.parametrize(("name", "given", "steps", "asked", "message"), PLANS)
def test_plans_that_are_refused(name: str, given: dict, steps: int, asked: dict, message: str):
    scheduler = read_scheduler(config(name, **given))
    with pytest.raises(UsageError, match=message):
        scheduler.plan(steps, **asked)


@pytest.mark.parametrize("name", ["DDIMScheduler", "TCDScheduler", "EulerDiscreteScheduler"])
def test_settings_of_a_run_reach_the_solver(name: str):
    setting = {"DDIMScheduler": {"eta": 1.0}, "TCDScheduler": {"eta": 0.9}, "EulerDiscreteScheduler": {"s_churn": 9.0}}
    noise, draws = np.array([1.0, -2.0]), [np.array([0.5, 0.25])] * 9
    plain, asked = (
        list(draw_picture(read_scheduler(config(name)), noise, lambda x, t: 0.1 * x, 3, draws, operations, **each))[-1]
        for each in ({"eta": 0.0} if "eta" in setting[name] else {}, setting[name])
    )
    assert not np.array_equal(plain, asked)
