"""Every kernel of solver steps and guidance gives what the reference gives in float64 on the same numbers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpu import device
from gpu.media import operations as kernels
from refimpl.media import operations
from refimpl.media.scheduler import draw_picture, read_scheduler
from tests.equivalence.strategies import assert_equivalent, dtypes, each_kernel, examples, numbers, seeds, specials

shapes = st.sampled_from(((1,), (1, 33), (3, 5, 7), (2, 1, 257)))
scales = st.sampled_from((0.0, 1.0, 0.5, 7.5, -2.0))


@each_kernel("linear_combination", "guided_combination")
@examples
@given(seeds, shapes, dtypes, dtypes, specials, st.sampled_from((1, 2, 8)), scales)
def test_steps(kernel, seed, shape, dtype, other, special, count, scale):
    weights = numbers(seed + 9, count)
    weights[seed % count] = 0 if count > 1 else 0.75
    arguments = {"terms": numbers(seed, count, *shape, dtype=dtype, special=special), "weights": weights}
    if kernel.op == "guided_combination":
        cond, uncond = numbers(seed + 1, *shape, dtype=dtype), numbers(seed + 2, *shape, dtype=other)
        arguments |= {"cond": cond, "uncond": uncond, "guidance_scale": scale, "weight": -0.5}
    assert_equivalent(kernel, arguments, dtype, terms=1000 * count)


@each_kernel("guide", "rescale_guidance", "scale_by_exp")
@examples
@given(seeds, shapes, dtypes, dtypes, specials, scales)
def test_pairs(kernel, seed, shape, dtype, other, special, scale):
    first, second = numbers(seed, *shape, dtype=dtype, special=special), numbers(seed + 1, *shape, dtype=other)
    arguments = {
        "guide": {"cond": first, "uncond": second, "guidance_scale": scale},
        "rescale_guidance": {"guided": first, "cond": second, "rescale": 0.7},
        "scale_by_exp": {"x": first, "exponent": second, "scale": 0.5},
    }[kernel.op]
    if kernel.op == "guide" and scale == 0:
        arguments["uncond"] = arguments["uncond"].astype(first.dtype)  # what is handed on keeps its dtype
    assert_equivalent(kernel, arguments, dtype, terms=300 + first.size)


@each_kernel("clip_x0", "threshold_x0")
@examples
@given(seeds, shapes, dtypes, specials, st.sampled_from((0.0, 0.3, 0.5, 0.995, 1.0)), st.booleans())
def test_ranges(kernel, seed, shape, dtype, special, quantile, tied):
    x0 = 2 * numbers(seed, *shape, special=special)
    x0 = (np.round(x0) if tied else x0).astype(numbers(0, 1, dtype=dtype).dtype)
    limits = {"largest": 1.5} if kernel.op == "clip_x0" else {"quantile": quantile, "largest": 2.5}
    assert_equivalent(kernel, {"x0": x0} | limits, dtype, terms=64)


def _half(x, timestep):
    return 0.5 * x


def test_a_solver_over_kernels_is_the_one_over_the_reference():
    scheduler = read_scheduler({"_class_name": "DPMSolverMultistepScheduler", "solver_order": 3, "thresholding": True})
    noise = numbers(3, 2, 3, 4)
    with device.use("emulated"):
        found = list(draw_picture(scheduler, noise, _half, 5, (), kernels))
    for ours, truth in zip(found, draw_picture(scheduler, noise, _half, 5, (), operations), strict=True):
        np.testing.assert_allclose(ours, truth, atol=1e-5)
