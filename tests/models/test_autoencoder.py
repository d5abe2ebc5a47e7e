"""AutoencoderKL and the blocks it is made of: what they keep whatever their weights, tiles, and what is refused."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu import device
from gpu.media import operations as kernels
from refimpl.contract import CheckpointError, ContractError, UsageError
from refimpl.media import operations
from refimpl.media.unet import attention_block, downsample, resnet_block, upsample
from refimpl.media.vae import (
    AutoencoderSpec,
    autoencoder_shapes,
    autoencoder_spec,
    autoencoder_weights,
    decode,
    decode_tiled,
    encode,
)
from refimpl.models.tensor import Tensor
from tests.laws.strategies import assert_near, normal, seeds

SPEC = AutoencoderSpec(3, 3, 2, (4, 8), 1, 2)
CONFIG = {
    "_class_name": "AutoencoderKL", "block_out_channels": [4, 8], "latent_channels": 2, "norm_num_groups": 2,
    "down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2,
}  # fmt: skip
SEEN = 12  # latents that a pixel of SPEC sees to a side: 1 + 2 * 4 at the latent's size, .5 + 2 + .5 at twice it


def tensors(spec: AutoencoderSpec, seed: int = 0) -> dict[str, Tensor]:
    held = {}
    for i, (name, shape) in enumerate(autoencoder_shapes(spec).items()):
        values = 0.3 * normal(seed + i, *shape) + name.endswith(("norm1.weight", "norm2.weight", "norm_out.weight"))
        held[name] = Tensor(values.dtype.name, shape, values)
    return held


def weights(spec: AutoencoderSpec = SPEC, seed: int = 0, dtype: Any = np.float64) -> dict[str, np.ndarray]:
    return autoencoder_weights(tensors(spec, seed), spec, dtype)


def _frozen(x: np.ndarray, gain: np.ndarray, bias: np.ndarray, **_: Any) -> np.ndarray:
    """The norm of statistics that all tiles share: mean 0, variance 1."""
    return x * gain[:, None, None] + bias[:, None, None]


LOCAL = SimpleNamespace(**{name: getattr(operations, name) for name in operations.__all__} | {"group_norm": _frozen})


@given(seeds, st.sampled_from([(2, 2), (4, 6), (8, 2)]))
def test_pictures_become_latents_and_latents_pictures(seed, size):
    mean, logvar = encode(normal(seed, 3, *size), weights(), SPEC, operations)
    assert mean.shape == logvar.shape == (2, size[0] // 2, size[1] // 2)
    image = decode(mean, weights(), SPEC, operations)
    assert image.shape == (3, *size) and np.isfinite(image).all() and image.dtype == np.float64


def test_a_log_variance_is_held():
    held = weights() | {"quant_conv.bias": np.array([100.0, -100, 100, -100])}
    mean, logvar = encode(normal(0, 3, 4, 4), held, SPEC, operations)
    assert (logvar[0] == 20).all() and (logvar[1] == -30).all() and abs(mean).min() > 30


@settings(max_examples=10)
@given(seeds, st.integers(20, 45), st.integers(20, 45), st.integers(SEEN, 15))
def test_tiles_of_a_local_decoder_are_the_whole_away_from_seams(seed, height, width, overlap):
    spec, tile = replace(SPEC, mid_attention=False), 20
    latent, held = normal(seed, 2, height, width), weights(spec, seed % 7)
    whole = decode(latent, held, spec, LOCAL)
    tiled = decode_tiled(latent, held, spec, LOCAL, tile=tile, overlap=overlap)
    away = np.ones(whole.shape[1:], bool)
    for axis, size in enumerate((height, width)):
        start = 0
        while start + tile < size:  # the next tile begins before this one ends: the stretch between is the seam
            following = min(start + tile - overlap, size - tile)
            away[(slice(None),) * axis + (slice(2 * following, 2 * (start + tile)),)] = False
            start = following
    assert away.any() and tiled.shape == whole.shape
    assert abs(tiled - whole)[:, away].max() < 1e-10 * abs(whole).max()


def test_less_overlap_than_a_pixel_sees_shows():
    spec, latent = replace(SPEC, mid_attention=False), normal(1, 2, 20, 30)
    whole = decode(latent, weights(spec), spec, LOCAL)
    tiled = decode_tiled(latent, weights(spec), spec, LOCAL, tile=20, overlap=2)
    assert abs(tiled - whole)[:, :, 34:36].max() > 1e-3 * abs(whole).max()  # beside the seam 36..40
    assert abs(tiled - whole)[:, :, : 2 * (20 - SEEN)].max() < 1e-10 * abs(whole).max()


@given(seeds, st.integers(1, 9), st.integers(1, 9))
def test_a_tile_as_large_as_the_latent_is_the_whole(seed, height, width):
    latent = normal(seed, 2, height, width)
    tiled = decode_tiled(latent, weights(), SPEC, operations, tile=9, overlap=3)
    assert np.array_equal(tiled, decode(latent, weights(), SPEC, operations))


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 9), st.data())
def test_fading_weights_sum_to_one(height, width, tile, data):
    """A decoder that gives one colour gives it at the seams too."""
    overlap = data.draw(st.integers(0, tile - 1))
    ops = SimpleNamespace(**vars(LOCAL) | {"conv2d": lambda x, w, b, **_: np.full((len(b), *x.shape[1:]), 0.7)})
    tiled = decode_tiled(np.zeros((2, height, width)), weights(), SPEC, ops, tile=tile, overlap=overlap)
    assert tiled.shape == (3, 2 * height, 2 * width) and (tiled == 0.7).all()


def test_tiles_with_norms_and_attention_of_their_own_differ_by_little():
    """Where the statistics of tiles are near those of the whole: noise, in this case."""
    spec = replace(SPEC, channels=(8, 8))
    latent, held = normal(3, 2, 40, 56), weights(spec)
    whole = decode(latent, held, spec, operations)
    tiled = decode_tiled(latent, held, spec, operations, tile=32, overlap=12)
    assert 1e-6 < np.linalg.norm(tiled - whole) / np.linalg.norm(whole) < 0.15


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_kernels_give_what_the_specification_gives(dtype):
    image, latent = normal(5, 3, 4, 8).astype(dtype), normal(6, 2, 3, 5).astype(dtype)
    held = weights(dtype=dtype)
    wide = {name: weight.astype(np.float64) for name, weight in held.items()}
    with device.use("emulated"):
        found = *encode(image, held, SPEC, kernels), decode_tiled(latent, held, SPEC, kernels, tile=4, overlap=2)
    latent, image = latent.astype(np.float64), image.astype(np.float64)
    truth = *encode(image, wide, SPEC, operations), decode_tiled(latent, wide, SPEC, operations, tile=4, overlap=2)
    for y, wanted in zip(found, truth, strict=True):
        error = np.linalg.norm(y.astype(np.float64) - wanted) / np.linalg.norm(wanted)
        assert y.dtype == dtype and error < 60 * float(ml_dtypes.finfo(dtype).eps)


def _block(seed: int, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {name.replace("__", "."): normal(seed + i, *shape) for i, (name, shape) in enumerate(shapes.items())}


@given(seeds)
def test_a_residual_block_without_its_second_convolution_passes_on(seed):
    block = _block(
        seed, norm1__weight=(4,), norm1__bias=(4,), conv1__weight=(6, 4, 3, 3), conv1__bias=(6,), norm2__weight=(6,),
        norm2__bias=(6,), conv_shortcut__weight=(6, 4, 1, 1), conv_shortcut__bias=(6,),
    )  # fmt: skip
    block |= {"conv2.weight": np.zeros((6, 6, 3, 3)), "conv2.bias": np.zeros(6)}
    x, w = normal(seed + 20, 4, 5, 3), block["conv_shortcut.weight"][:, :, 0, 0]
    shortcut = np.einsum("oc,cyx->oyx", w, x) + block["conv_shortcut.bias"][:, None, None]
    assert_near(resnet_block(x, block, 2, operations), shortcut, terms=10)


@given(seeds)
def test_attention_over_places_ignores_their_order(seed):
    names = [f"{part}__{kind}" for part in ("to_q", "to_k", "to_v", "to_out__0") for kind in ("weight", "bias")]
    shapes = {name: (4, 4) if name.endswith("weight") else (4,) for name in names}
    block = _block(seed, group_norm__weight=(4,), group_norm__bias=(4,), **shapes)
    x, order = normal(seed + 20, 4, 3, 4), np.random.default_rng(seed).permutation(12)
    y = attention_block(x, block, 2, operations)
    moved = attention_block(x.reshape(4, -1)[:, order].reshape(x.shape), block, 2, operations)
    assert_near(moved.reshape(4, -1), y.reshape(4, -1)[:, order], terms=2000)


def test_half_the_size_has_its_zeros_behind():
    x, sides = np.arange(16.0).reshape(1, 4, 4), {"conv.bias": np.zeros(1), "conv.weight": np.zeros((1, 1, 3, 3))}
    for place, wanted in (((0, 0), x[0, ::2, ::2]), ((2, 2), [[10, 0], [0, 0]]), ((0, 2), [[2, 0], [10, 0]])):
        picked = sides["conv.weight"].copy()
        picked[0, 0, *place] = 1
        assert np.array_equal(downsample(x, sides | {"conv.weight": picked}, operations)[0], wanted)


def test_twice_the_size_repeats_and_convolves():
    one = np.zeros((1, 1, 3, 3))
    one[0, 0, 1, 1] = 1
    y = upsample(np.array([[[1.0, 2.0]]]), {"conv.weight": one, "conv.bias": np.zeros(1)}, operations)
    assert y.tolist() == [[[1, 1, 2, 2], [1, 1, 2, 2]]]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda w: encode(normal(0, 3, 5, 4), w, SPEC, operations), r"C1: a picture is \[3 Y X\], multiples of 2"),
        (lambda w: encode(normal(0, 1, 4, 4), w, SPEC, operations), r"C1: a picture is \[3 Y X\], multiples of 2"),
        (lambda w: decode(normal(0, 3, 4, 4), w, SPEC, operations), r"C1: a latent is \[2 y x\], not \(3, 4, 4\)"),
        (lambda w: decode(normal(0, 2, 0, 4), w, SPEC, operations), r"C1: a latent is \[2 y x\], not \(2, 0, 4\)"),
    ],
)
def test_what_does_not_fit_is_named(call, says):
    with pytest.raises(ContractError, match=f"^{says}"):
        call(weights())


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("tile", "overlap"), [(4, 4), (0, 0), (4, -1), (4.0, 1), (4, None)])
def test_tiles_that_are_none_are_refused(tile, overlap):
    with pytest.raises(UsageError):
        decode_tiled(normal(0, 2, 8, 8), weights(), SPEC, operations, tile=tile, overlap=overlap)


def test_a_config_is_read_with_the_defaults_of_diffusers():
    assert autoencoder_spec(CONFIG) == SPEC
    assert autoencoder_spec({}) == AutoencoderSpec(3, 3, 4, (64,), 1, 32)
    assert autoencoder_spec(CONFIG | {"shift_factor": None}).shift_factor == 0
    assert autoencoder_spec(CONFIG | {"shift_factor": 0.0609}).shift_factor == 0.0609


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"_class_name": "AutoencoderTiny"}, "_class_name must be one of AutoencoderKL"),
        ({"block_out_channels": []}, "block_out_channels are positive integers"),
        ({"block_out_channels": [4, True]}, "block_out_channels are positive integers"),
        ({"up_block_types": ["UpBlock2D"] * 2}, "up_block_types are 2 times UpDecoderBlock2D"),
        ({"down_block_types": 3}, "down_block_types are 2 times DownEncoderBlock2D, not 3"),
        ({"act_fn": "gelu"}, "act_fn other than silu"),
        ({"latents_mean": [1.0]}, "act_fn other than silu, latents_mean"),
        ({"norm_num_groups": 3}, "3 groups do not divide the channels"),
        ({"scaling_factor": 0}, "scaling_factor must be"),
        ({"shift_factor": "much"}, "shift_factor must be"),
        ({"layers_per_block": 0}, "layers_per_block must be"),
        ({"time_compression": 4}, "key 'time_compression' = 4 is not supported"),
    ],
)
def test_a_config_of_another_model_is_refused(change, says):
    with pytest.raises(CheckpointError, match=f"^config.json: {says}"):
        autoencoder_spec(CONFIG | change)


def test_weights_are_checked_by_name_and_shape():
    held = tensors(SPEC)
    for changed, says in (
        ({n: t for n, t in held.items() if n != "quant_conv.bias"}, "tensor quant_conv.bias is missing; expected [4]"),
        (held | {"quant_conv.bias": held["post_quant_conv.bias"]}, "tensor quant_conv.bias: expected [4], found [2]"),
    ):
        with pytest.raises(CheckpointError) as error:
            autoencoder_weights(changed, SPEC)
        assert str(error.value) == says
