"""Laws of solver steps and guidance: what a sum with weights keeps, and how a picture is held in its range."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.contract import ContractError, UsageError
from refimpl.media import operations
from refimpl.media.few_step import consistency_weights, distillation_target
from refimpl.media.guidance import guide, is_guided, rescale_guidance
from refimpl.media.prediction import PREDICTIONS, clip_x0, noise_weights, threshold_x0, x0_weights
from refimpl.media.scheduler import read_scheduler
from refimpl.media.step import Guided, combine, guided_combination, linear_combination, scale_by_exp
from tests.laws.strategies import seeds

shapes = st.sampled_from(((1,), (3, 4, 5), (2, 1, 17)))
scales = st.floats(-8, 8)


def pictures(seed, count, shape):
    return np.random.default_rng(seed).standard_normal((count, *shape))


@given(seeds, shapes, scales)
def test_guidance_is_affine_and_exact_at_its_ends(seed, shape, scale):
    cond, uncond = pictures(seed, 2, shape)
    assert np.array_equal(guide(cond, uncond, 1), cond) and np.array_equal(guide(cond, uncond, 0.0), uncond)
    np.testing.assert_allclose(guide(cond, uncond, scale) + guide(uncond, cond, scale), cond + uncond, atol=1e-12)
    np.testing.assert_allclose(guide(cond, cond, scale), cond, atol=1e-12)


@given(seeds, shapes, scales, scales)
def test_a_fused_step_is_its_parts(seed, shape, scale, weight):
    *terms, cond, uncond = pictures(seed, 4, shape)
    weights = np.array([0.5, -2.0])
    fused = guided_combination(np.stack(terms), weights, cond, uncond, scale, weight)
    apart = linear_combination(np.stack([*terms, guide(cond, uncond, scale)]), np.append(weights, weight))
    np.testing.assert_allclose(fused, apart, atol=1e-12)
    through = combine(((0.5, terms[0]), (-2.0, terms[1]), (weight, Guided(cond, uncond, scale))), operations)
    assert np.array_equal(through, fused)


@given(seeds, shapes, st.floats(0.01, 1))
def test_rescaling_gives_back_the_spread_of_the_prompt(seed, shape, rescale):
    guided, cond = pictures(seed, 2, shape)
    whole = rescale_guidance(guided, cond, 1.0)
    if guided.size > 1:
        np.testing.assert_allclose(whole.std(), cond.std(), rtol=1e-9)
    mixed = rescale * whole + (1 - rescale) * guided
    np.testing.assert_allclose(rescale_guidance(guided, cond, rescale), mixed, atol=1e-12)


@given(seeds, shapes, st.floats(0, 1), st.floats(1, 4))
def test_a_thresholded_picture_is_in_range(seed, shape, quantile, largest):
    (x0,) = 3 * pictures(seed, 1, shape)
    found = threshold_x0(x0, quantile, largest)
    assert np.abs(found).max() <= 1
    s = min(max(np.quantile(np.abs(x0), quantile), 1), largest)
    np.testing.assert_allclose(found, np.clip(x0, -s, s) / s, atol=1e-12)


@given(seeds, st.sampled_from(PREDICTIONS), st.floats(0.01, 3), st.floats(0.01, 100))
def test_every_prediction_says_the_same_picture_and_noise(seed, prediction, alpha, sigma):
    x0, noise = np.random.default_rng(seed).standard_normal(2)
    x, r = alpha * x0 + sigma * noise, np.hypot(alpha, sigma)
    v = (alpha * noise - sigma * x0) / r
    said = {"epsilon": noise, "v_prediction": v, "edm": -v, "sample": x0, "flow_prediction": noise - x0}[prediction]
    (a, b), (c, d) = x0_weights(alpha, sigma, prediction), noise_weights(alpha, sigma, prediction)
    scale = (1 + sigma / alpha) * (1 + alpha / sigma)
    np.testing.assert_allclose([a * x + b * said, c * x + d * said], [x0, noise], atol=1e-11 * scale)


def test_epsilon_says_nothing_without_signal_and_the_sample_nothing_without_noise():
    with pytest.raises(UsageError, match="zero terminal SNR"):
        x0_weights(0.0, 1.0, "epsilon")
    with pytest.raises(UsageError, match="where there is none"):
        noise_weights(1.0, 0.0, "sample")
    with pytest.raises(UsageError, match="one of epsilon"):
        x0_weights(1.0, 1.0, "score")


def test_a_hidden_term_may_be_nan_and_a_nan_that_counts_is_not_hidden():
    terms = np.array([[1.0], [np.nan]])
    assert linear_combination(terms, np.array([2.0, 0.0])) == 2
    assert np.isnan(linear_combination(terms, np.array([2.0, 1e-30])))
    assert np.isnan(clip_x0(np.array([np.nan]), 1.0)) and np.isnan(threshold_x0(np.array([np.nan, 1]), 0.5)).all()


def test_guidance_is_off_at_1_and_outside_its_interval():
    assert not is_guided(1.0, 0.5) and is_guided(0.0, 0.5)
    assert not is_guided(4.0, 0.2, (0.2, 0.8)) and is_guided(4.0, 0.8, (0.2, 0.8))


@given(st.floats(0, 1e4), st.floats(0.1, 2))
def test_consistency_weights_keep_the_picture_at_the_end_and_the_spread_on_the_way(t, sigma_data):
    skip, out = consistency_weights(t, sigma_data)
    assert consistency_weights(0.0, sigma_data) == (1, 0)
    np.testing.assert_allclose(skip + out**2, 1, atol=1e-12)


@given(seeds, st.integers(0, 3))
def test_a_student_that_is_right_everywhere_is_its_own_target(seed, i):
    """Of one picture the flow is known: whoever says its noise everywhere says the same picture along the whole way."""
    plan = read_scheduler({"_class_name": "DDIMScheduler", "clip_sample": False}).plan(4)
    picture, noise = pictures(seed, 2, (3, 4))
    levels = dict(zip(plan.timesteps.tolist(), zip(plan.alphas, plan.sigmas, strict=True), strict=False))

    def right(x, timestep):
        alpha, sigma = levels[timestep]
        return (x - alpha * picture) / sigma

    x = plan.alphas[i] * picture + plan.sigmas[i] * noise
    found = distillation_target(x, right, right, plan, i, operations)
    alpha, sigma = plan.alphas[i + 1], plan.sigmas[i + 1]
    skip, out = consistency_weights(10.0 * plan.timesteps[i + 1]) if i < 3 else (0.0, 1.0)
    np.testing.assert_allclose(found, skip * (alpha * picture + sigma * noise) + out * picture, atol=1e-9)


A, B = np.zeros((2, 3)), np.zeros((3, 2))
BROKEN = [
    (linear_combination, "C1", (A, np.zeros(3))),
    (linear_combination, "C1", (np.zeros((0, 3)), np.zeros(0))),
    (guided_combination, "C1", (A, np.zeros((2, 1)), A[0], A[0], 2.0, 1.0)),
    (guided_combination, "C2", (A, np.zeros(2), A[0], B[0], 2.0, 1.0)),
    (scale_by_exp, "C1", (A, B, 1.0)),
    (guide, "C1", (A, B, 2.0)),
    (rescale_guidance, "C1", (A, B, 0.5)),
    (clip_x0, "C1", (A, 0.0)),
    (threshold_x0, "C1", (A, 1.5)),
    (threshold_x0, "C1", (A, 0.5, 0.5)),
    (threshold_x0, "C2", (np.zeros((0, 3)), 0.5)),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("op", "label", "arguments"), BROKEN, ids=lambda each: getattr(each, "__name__", None))
def test_constraints(op, label, arguments):
    with pytest.raises(ContractError, match=f"^{label}:"):
        op(*arguments)
