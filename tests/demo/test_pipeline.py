"""One text for every device: what kernels draw on the interpreter is what the specification draws."""

from dataclasses import replace

import numpy as np
import pytest

from gpu.device import to_host, use
from gpu.media.namespace import namespace
from refimpl.media import operations
from refimpl.media.pipeline import denoise, latent_shape, noise_of, open_pipeline, picture_of, plan_of


@pytest.mark.parametrize("model", ["glyphs", "moving-glyphs"])
def test_kernels_draw_what_the_specification_draws(model: str) -> None:
    pipeline = open_pipeline(model)
    pipeline = replace(pipeline, denoiser=replace(pipeline.denoiser, num_layers=1))
    plan, shape = plan_of(pipeline, 2), latent_shape(pipeline, 8, 8, 1 if model == "moving-glyphs" else None)
    assert namespace("cpu") is operations
    made = []
    for ops in (operations, namespace("emulated")):
        with use("emulated"):
            *_, latent = denoise(pipeline, plan, (7, 10), 3.0, noise_of(0, 0, 0, shape), iter(()), ops)
            made.append((to_host(latent), to_host(picture_of(pipeline, latent, ops))))
    for plain, kernels in zip(*made, strict=True):
        np.testing.assert_allclose(kernels, plain, rtol=1e-4, atol=1e-4)
