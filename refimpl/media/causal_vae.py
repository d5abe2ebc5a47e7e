"""The autoencoder between videos and latents: causal in time, so that a video can be decoded while it is made.

The first frame has a latent frame of its own, each later latent frame stands for four frames. It is our own, and small;
Wan's and CogVideoX's are of the same kind. ``cache`` holds the states of the convolutions: an empty one begins a video.
"""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from refimpl.contract import Array, CheckpointError, Float, composed, host, require
from refimpl.models.config import check_keys, integer, number, word
from refimpl.models.tensor import Tensor
from refimpl.models.weights import take_tensors

__all__ = [
    "CausalSpec", "causal_shapes", "causal_spec", "causal_weights", "decode_video", "encode_video", "frames_of",
]

Weights = Mapping[str, Array]
Cache = MutableMapping[str, Any]
_SAME = ((1, 1), (1, 1))


@dataclass(frozen=True)
class CausalSpec:
    """All that the autoencoder is, beside its weights."""

    in_channels: int
    latent_channels: int
    channels: tuple[int, int]  # at half and at a quarter of the size
    scaling_factor: float
    factor: int = 4  # pixels to the side of a latent
    frame_factor: int = 4  # frames to a latent frame, but for the first


@host
def frames_of(spec: CausalSpec, latent_frames: int) -> int:
    """Return how many frames so many latent frames stand for.

    >>> frames_of(CausalSpec(1, 4, (16, 32), 1.0), 5)
    17
    """
    return 1 + (latent_frames - 1) * spec.frame_factor


@host
def causal_spec(config: Mapping[str, Any]) -> CausalSpec:
    """Read the config.json of a CausalAutoencoder.

    >>> causal_spec({"in_channels": 1, "latent_channels": 4, "channels": [16, 32]}).channels
    (16, 32)
    """
    check_keys(config, ("_class_name", "in_channels", "latent_channels", "channels", "scaling_factor"))
    word(config, "_class_name", ["CausalAutoencoder"], "CausalAutoencoder")
    channels = config.get("channels", [16, 32])
    fits = isinstance(channels, list) and len(channels) == 2
    if not (fits and all(type(c) is int and 0 < c <= 4096 for c in channels)):
        raise CheckpointError(f"config.json: channels are two numbers from 1 to 4096, not {channels!r}")
    scale = float(number(config, "scaling_factor", 1.0, least=1e-6, most=1e6))
    wide, deep = channels
    return CausalSpec(integer(config, "in_channels", 1), integer(config, "latent_channels", 4), (wide, deep), scale)


@host
def causal_shapes(spec: CausalSpec) -> dict[str, tuple[int, ...]]:
    """Name every weight, with its shape.

    >>> causal_shapes(CausalSpec(1, 4, (16, 32), 1.0))["encoder.conv_in.weight"]
    (16, 4, 3, 3, 3)
    """
    (wide, deep), z, pixels = spec.channels, spec.latent_channels, 4 * spec.in_channels
    shapes = dict[str, tuple[int, ...]]()

    def conv(name: str, c: int, o: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (o, c, 3, 3, 3), (o,)

    def block(name: str, c: int) -> None:
        for i in (1, 2):
            shapes[f"{name}.norm{i}.weight"] = (c,)
            conv(f"{name}.conv{i}", c, c)

    sides = {
        "encoder": (("conv_in", pixels, wide), ("down1", wide, deep), ("down2", deep, deep), ("conv_out", deep, 2 * z)),
        "decoder": (("conv_in", z, deep), ("up1", deep, deep), ("up2", deep, wide), ("conv_out", wide, pixels)),
    }
    for side, convs in sides.items():
        for i, (name, c, o) in enumerate(convs):
            conv(f"{side}.{name}", c, o)
            if i < 3:
                block(f"{side}.block{i + 1}", o)
        shapes[f"{side}.norm_out.weight"] = (convs[-1][1],)
    return shapes


@host
def causal_weights(tensors: Mapping[str, Tensor], spec: CausalSpec, dtype: Any = np.float32) -> dict[str, Array]:
    """Take the weights of a file as arrays of a dtype, each checked against its shape."""
    shapes = {name: (name, shape) for name, shape in causal_shapes(spec).items()}
    taken = take_tensors(tensors, shapes, "CausalAutoencoder")
    return {name: tensor.read(dtype) for name, tensor in taken.items()}


def _conv(
    x: Array, weights: Weights, name: str, cache: Cache, ops: Any, stride: tuple[int, int, int] = (1, 1, 1)
) -> Array:
    w, b = weights[f"{name}.weight"], weights[f"{name}.bias"]
    y, cache[name] = ops.conv3d(x, w, b, cache.get(name), stride=stride, padding=_SAME)
    return y


def _normed(x: Array, weights: Weights, name: str, ops: Any) -> Array:
    """Divide each place of each frame by its root mean square over the channels, so that no frame sees another."""
    rows = x.reshape(len(x), -1).T.copy()
    return ops.silu(ops.rms_norm(rows, weights[f"{name}.weight"], 1e-6)).T.copy().reshape(x.shape)


def _block(x: Array, weights: Weights, name: str, cache: Cache, ops: Any) -> Array:
    h = _conv(_normed(x, weights, f"{name}.norm1", ops), weights, f"{name}.conv1", cache, ops)
    return x + _conv(_normed(h, weights, f"{name}.norm2", ops), weights, f"{name}.conv2", cache, ops)


def _twice_in_time(x: Array, cache: Cache, name: str) -> Array:
    """Repeat every frame, but the first of the video, which stands for itself."""
    twice = x.repeat(2, 1)
    begun, cache[name] = cache.get(name, False), True
    return twice if begun else twice[:, 1:].copy()


@composed
def encode_video(
    video: Float[Array, "C frames Y X"], weights: Weights, spec: CausalSpec, ops: Any, cache: Cache | None = None
) -> tuple[Float[Array, "channels latent_frames rows columns"], Float[Array, "channels latent_frames rows columns"]]:
    """Return mean and log-variance of a video's latent, or of its next frames; the log-variance is held in -30..20.

    Source: Yu et al., MAGVIT-v2, 2023; the kind of Wan's, 2025.
    """
    fits = video.ndim == 4 and len(video) == spec.in_channels and all(n % spec.factor == 0 < n for n in video.shape[2:])
    require(fits, "C1", f"a video is [{spec.in_channels} frames Y X], multiples of {spec.factor}, not {video.shape}")
    cache = {} if cache is None else cache
    C, frames, Y, X = video.shape
    x = video.reshape(C, frames, Y // 2, 2, X // 2, 2).transpose(0, 3, 5, 1, 2, 4)
    x = x.reshape(4 * C, frames, Y // 2, X // 2).copy()  # 2 x 2 pixels as channels
    x = _block(_conv(x, weights, "encoder.conv_in", cache, ops), weights, "encoder.block1", cache, ops)
    x = _block(_conv(x, weights, "encoder.down1", cache, ops, (2, 2, 2)), weights, "encoder.block2", cache, ops)
    x = _block(_conv(x, weights, "encoder.down2", cache, ops, (2, 1, 1)), weights, "encoder.block3", cache, ops)
    moments = _conv(_normed(x, weights, "encoder.norm_out", ops), weights, "encoder.conv_out", cache, ops)
    return moments[: spec.latent_channels], moments[spec.latent_channels :].clip(-30, 20)


@composed
def decode_video(
    latent: Float[Array, "channels latent_frames rows columns"], weights: Weights, spec: CausalSpec, ops: Any,
    cache: Cache | None = None,
) -> Float[Array, "C frames Y X"]:
    """Make a video of a latent, or the next frames of one; values lie about -1..1 and are not cut.

    Source: Yu et al., MAGVIT-v2, 2023.
    """
    fits = latent.ndim == 4 and len(latent) == spec.latent_channels and latent.size > 0
    require(fits, "C1", f"a latent is [{spec.latent_channels} latent_frames y x], not {latent.shape}")
    cache = {} if cache is None else cache
    x = _block(_conv(latent, weights, "decoder.conv_in", cache, ops), weights, "decoder.block1", cache, ops)
    x = _conv(_twice_in_time(x, cache, "decoder.twice1"), weights, "decoder.up1", cache, ops)
    x = _twice_in_time(_block(x, weights, "decoder.block2", cache, ops), cache, "decoder.twice2")
    (c, frames), sides = x.shape[:2], (2 * x.shape[2], 2 * x.shape[3])
    x = ops.upsample_nearest(x.reshape(c * frames, *x.shape[2:]), (2, 2)).reshape(c, frames, *sides)
    x = _block(_conv(x, weights, "decoder.up2", cache, ops), weights, "decoder.block3", cache, ops)
    x = _conv(_normed(x, weights, "decoder.norm_out", ops), weights, "decoder.conv_out", cache, ops)
    C, (frames, half_y, half_x) = len(x) // 4, x.shape[1:]
    pixels = x.reshape(C, 2, 2, frames, half_y, half_x).transpose(0, 3, 4, 1, 5, 2)
    return pixels.reshape(C, frames, 2 * half_y, 2 * half_x)
