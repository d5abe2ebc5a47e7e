"""The video model that comes with the project: as PyTorch computed it, on kernels, and in chunks."""

from pathlib import Path

import numpy as np
import pytest

from gpu.media import operations as kernels
from refimpl.contract import CheckpointError
from refimpl.media import operations
from refimpl.media.causal_vae import CausalSpec, causal_shapes, causal_spec, decode_video, encode_video
from refimpl.media.dit import dit_shapes, dit_weights
from refimpl.media.pipeline import open_pipeline
from refimpl.media.video_dit import video_dit, video_dit_spec
from refimpl.models.tensor import Tensor
from tests.laws.strategies import normal

STORED = np.load(Path(__file__).with_name("moving_glyphs.npz"))
"""What the modules of training/moving_glyphs.py make of the weights in refimpl/demo/moving-glyphs, in float64."""

CONFIG = {
    "_class_name": "VideoDiT", "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1, "in_channels": 2,
    "sample_size": 4, "num_embeds_ada_norm": 3, "sample_frames": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return open_pipeline("moving-glyphs", np.float64)


def test_the_autoencoder_says_what_pytorch_says(model):
    video = STORED["video"] / 127.5 - 1
    mean, logvar = encode_video(video, model.autoencoder_weights, model.autoencoder, operations)
    np.testing.assert_allclose(np.concatenate([mean, logvar]), STORED["moments"], atol=1e-5)
    decoded = decode_video(STORED["moments"][:4], model.autoencoder_weights, model.autoencoder, operations)
    np.testing.assert_allclose(decoded[:, [0, 1, 4, 8]], STORED["decoded"], atol=1e-9)


@pytest.mark.parametrize(("i", "timestep", "label"), [(0, 750.0, 7), (1, 62.5, 10)])
def test_the_denoiser_says_what_pytorch_says(model, i, timestep, label):
    x = STORED["x"][i].astype(np.float64)
    found = video_dit(x, timestep, label, model.denoiser_weights, model.denoiser, operations)
    np.testing.assert_allclose(found, STORED["velocity"][i], atol=1e-5)


def test_frames_come_as_they_are_decoded(model):
    latent, weights, spec = STORED["moments"][:4], model.autoencoder_weights, model.autoencoder
    whole, cache = decode_video(latent, weights, spec, operations), {}
    parts = [decode_video(latent[:, t : t + 1], weights, spec, operations, cache) for t in range(3)]
    assert [part.shape[1] for part in parts] == [1, 4, 4]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=1e-12)


def test_kernels_run_the_autoencoder():
    spec = CausalSpec(1, 2, (2, 3), 1.0)
    weights = {
        name: (0.5 * normal(i, *shape)).astype(np.float32)
        for i, (name, shape) in enumerate(causal_shapes(spec).items())
    }
    video = normal(0, 1, 5, 4, 8).astype(np.float32)
    latent, found = (encode_video(video, weights, spec, ops)[0] for ops in (operations, kernels))
    np.testing.assert_allclose(np.asarray(found), latent, atol=1e-4 * abs(latent).max())
    truth, found = (decode_video(latent, weights, spec, ops) for ops in (operations, kernels))
    np.testing.assert_allclose(np.asarray(found), truth, atol=1e-4 * abs(truth).max())


def test_kernels_run_the_denoiser():
    spec = video_dit_spec(CONFIG)
    held = {}
    for i, (name, shape) in enumerate(dit_shapes(spec).values()):
        held[name] = Tensor("float32", shape, (0.3 * normal(i, *shape)).astype(np.float32))
    weights, x = dit_weights(held, spec, np.float32), normal(0, 2, 2, 4, 4).astype(np.float32)
    truth, found = (video_dit(x, 300.0, 1, weights, spec, ops) for ops in (operations, kernels))
    np.testing.assert_allclose(np.asarray(found), truth, atol=1e-4 * abs(truth).max())


@pytest.mark.parametrize(
    ("read", "config", "said"),
    [
        (causal_spec, {"_class_name": "AutoencoderKL"}, "CausalAutoencoder"),
        (causal_spec, {"_class_name": "CausalAutoencoder", "channels": [16]}, "two numbers"),
        (causal_spec, {"_class_name": "CausalAutoencoder", "channels": [16, True]}, "two numbers"),
        (causal_spec, {"_class_name": "CausalAutoencoder", "scaling_factor": 0}, "scaling_factor"),
        (causal_spec, {"_class_name": "CausalAutoencoder", "kernels": 5}, "kernels"),
        (video_dit_spec, {"_class_name": "DiTTransformer2DModel"}, "VideoDiT"),
        (video_dit_spec, CONFIG | {"attention_head_dim": 4}, "not divided by 16"),
        (video_dit_spec, CONFIG | {"sample_frames": 0}, "sample_frames"),
    ],
)
def test_files_that_are_refused(read, config, said):
    with pytest.raises(CheckpointError, match=said):
        read(config)
