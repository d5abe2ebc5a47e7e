"""The autoencoder between pictures and latents: a denoiser works on a small latent, which the decoder makes a picture.

Read is what diffusers calls AutoencoderKL::

    spec = autoencoder_spec(config)                     # of config.json
    weights = autoencoder_weights(tensors, spec)        # of diffusion_pytorch_model.safetensors, by their names there
    image = decode(latent, weights, spec, ops)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from refimpl.contract import Array, CheckpointError, Float, UsageError, composed, host, require, whole
from refimpl.media.unet import attention_block, convolve, downsample, resnet_block, upsample
from refimpl.models.config import check_keys, flag, integer, number, word
from refimpl.models.tensor import Tensor
from refimpl.models.weights import take_tensors

__all__ = [
    "AutoencoderSpec", "autoencoder_shapes", "autoencoder_spec", "autoencoder_weights", "decode", "decode_tiled",
    "encode",
]  # fmt: skip

Weights = Mapping[str, Array]


@dataclass(frozen=True)
class AutoencoderSpec:
    """All that an autoencoder is, beside its weights."""

    in_channels: int
    out_channels: int
    latent_channels: int
    channels: tuple[int, ...]  # of each level, the largest picture first
    layers_per_block: int
    groups: int
    mid_attention: bool = True
    quant_conv: bool = True
    post_quant_conv: bool = True
    scaling_factor: float = 0.18215
    shift_factor: float = 0.0

    @property
    def factor(self) -> int:
        """How many pixels a latent has to a side."""
        return int(2 ** (len(self.channels) - 1))


@host
def autoencoder_spec(config: Mapping[str, Any]) -> AutoencoderSpec:
    """Read the config.json of an AutoencoderKL.

    >>> autoencoder_spec({"block_out_channels": [64, 128]}).factor
    2
    """
    known = (
        "_class_name", "_diffusers_version", "_name_or_path", "act_fn", "block_out_channels", "down_block_types",
        "force_upcast", "in_channels", "latent_channels", "latents_mean", "latents_std", "layers_per_block",
        "mid_block_add_attention", "norm_num_groups", "out_channels", "sample_size", "scaling_factor", "shift_factor",
        "up_block_types", "use_post_quant_conv", "use_quant_conv",
    )  # fmt: skip
    check_keys(config, known)
    word(config, "_class_name", ["AutoencoderKL"], "AutoencoderKL")
    channels = config.get("block_out_channels", [64])
    if not (isinstance(channels, list) and channels and all(type(c) is int and c > 0 for c in channels)):
        raise CheckpointError(f"config.json: block_out_channels are positive integers, not {channels!r}")
    for key, kind in (("down_block_types", "DownEncoderBlock2D"), ("up_block_types", "UpDecoderBlock2D")):
        if config.get(key, [kind] * len(channels)) != [kind] * len(channels):
            raise CheckpointError(f"config.json: {key} are {len(channels)} times {kind}, not {config[key]}")
    if config.get("act_fn", "silu") != "silu" or config.get("latents_mean") or config.get("latents_std"):
        raise CheckpointError("config.json: act_fn other than silu, latents_mean and latents_std are not supported")
    spec = AutoencoderSpec(
        in_channels=integer(config, "in_channels", 3), out_channels=integer(config, "out_channels", 3),
        latent_channels=integer(config, "latent_channels", 4), channels=tuple(channels),
        layers_per_block=integer(config, "layers_per_block", 1), groups=integer(config, "norm_num_groups", 32),
        mid_attention=flag(config, "mid_block_add_attention", True), quant_conv=flag(config, "use_quant_conv", True),
        post_quant_conv=flag(config, "use_post_quant_conv", True),
        scaling_factor=float(number(config, "scaling_factor", 0.18215, least=1e-6, most=1e6)),
        shift_factor=float(number(config, "shift_factor", 0.0, least=-1e6, most=1e6)),
    )  # fmt: skip
    if any(c % spec.groups for c in channels):
        raise CheckpointError(f"config.json: {spec.groups} groups do not divide the channels {channels}")
    return spec


@host
def autoencoder_shapes(spec: AutoencoderSpec) -> dict[str, tuple[int, ...]]:
    """Name every weight as diffusers does, with its shape.

    >>> autoencoder_shapes(AutoencoderSpec(3, 3, 4, (32,), 1, 32))["encoder.conv_in.weight"]
    (32, 3, 3, 3)
    """
    shapes = dict[str, tuple[int, ...]]()

    def conv(name: str, c: int, o: int, side: int = 3) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (o, c, side, side), (o,)

    def norm(name: str, c: int) -> None:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (c,)

    def resnet(name: str, c: int, o: int) -> None:
        norm(f"{name}.norm1", c)
        conv(f"{name}.conv1", c, o)
        norm(f"{name}.norm2", o)
        conv(f"{name}.conv2", o, o)
        if c != o:
            conv(f"{name}.conv_shortcut", c, o, 1)

    def tower(name: str, levels: tuple[int, ...], blocks: str, layers: int, between: str, first: int) -> None:
        for i, o in enumerate(levels):
            c = levels[i - 1] if i else first
            for j in range(layers):
                resnet(f"{name}.{blocks}.{i}.resnets.{j}", c if j == 0 else o, o)
            if i < len(levels) - 1:
                conv(f"{name}.{blocks}.{i}.{between}.0.conv", o, o)

    first, last, z = spec.channels[0], spec.channels[-1], spec.latent_channels
    sides = (("encoder", spec.in_channels, first, last, 2 * z), ("decoder", z, last, first, spec.out_channels))
    for name, read, begin, end, written in sides:
        conv(f"{name}.conv_in", read, begin)
        for i in (0, 1):
            resnet(f"{name}.mid_block.resnets.{i}", last, last)
        if spec.mid_attention:
            norm(f"{name}.mid_block.attentions.0.group_norm", last)
            for part in ("to_q", "to_k", "to_v", "to_out.0"):
                shapes[f"{name}.mid_block.attentions.0.{part}.weight"] = (last, last)
                shapes[f"{name}.mid_block.attentions.0.{part}.bias"] = (last,)
        norm(f"{name}.conv_norm_out", end)
        conv(f"{name}.conv_out", end, written)
    tower("encoder", spec.channels, "down_blocks", spec.layers_per_block, "downsamplers", first)
    tower("decoder", spec.channels[::-1], "up_blocks", spec.layers_per_block + 1, "upsamplers", last)
    for name, here, width in (("quant_conv", spec.quant_conv, 2 * z), ("post_quant_conv", spec.post_quant_conv, z)):
        if here:
            conv(name, width, width, 1)
    return shapes


@host
def autoencoder_weights(
    tensors: Mapping[str, Tensor], spec: AutoencoderSpec, dtype: Any = np.float32
) -> dict[str, Array]:
    """Take the weights of a diffusers file as arrays of a dtype, each checked against its shape."""
    shapes = {name: (name, shape) for name, shape in autoencoder_shapes(spec).items()}
    return {name: tensor.read(dtype) for name, tensor in take_tensors(tensors, shapes, "AutoencoderKL").items()}


def _of(weights: Weights, prefix: str) -> Weights:
    return {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}


def _middle(x: Array, weights: Weights, spec: AutoencoderSpec, ops: Any) -> Array:
    x = resnet_block(x, _of(weights, "mid_block.resnets.0."), spec.groups, ops)
    if spec.mid_attention:
        x = attention_block(x, _of(weights, "mid_block.attentions.0."), spec.groups, ops)
    return resnet_block(x, _of(weights, "mid_block.resnets.1."), spec.groups, ops)


def _out(x: Array, weights: Weights, spec: AutoencoderSpec, ops: Any) -> Array:
    gain, bias = weights["conv_norm_out.weight"], weights["conv_norm_out.bias"]
    x = ops.silu(ops.group_norm(x, gain, bias, groups=spec.groups, eps=1e-6))
    return convolve(x, weights, "conv_out", ops)


@composed
def encode(
    image: Float[Array, "C Y X"], weights: Weights, spec: AutoencoderSpec, ops: Any
) -> tuple[Float[Array, "latent_channels rows columns"], Float[Array, "latent_channels rows columns"]]:
    """Return mean and log-variance of a picture's latent; the log-variance is held in -30..20.

    The latent that denoisers know is (mean - shift_factor) scaling_factor.

    Source: Rombach et al., Latent diffusion, 2022; Kingma, Welling, Auto-encoding variational Bayes, 2013.
    """
    fits = image.ndim == 3 and len(image) == spec.in_channels and all(n % spec.factor == 0 < n for n in image.shape[1:])
    says = f"a picture is [{spec.in_channels} Y X], multiples of {spec.factor}, not {tuple(image.shape)}"
    require(fits, "C1", says)
    w = _of(weights, "encoder.")
    x = convolve(image, w, "conv_in", ops)
    for i in range(len(spec.channels)):
        for j in range(spec.layers_per_block):
            x = resnet_block(x, _of(w, f"down_blocks.{i}.resnets.{j}."), spec.groups, ops)
        if i < len(spec.channels) - 1:
            x = downsample(x, _of(w, f"down_blocks.{i}.downsamplers.0."), ops)
    moments = _out(_middle(x, w, spec, ops), w, spec, ops)
    if spec.quant_conv:
        moments = convolve(moments, weights, "quant_conv", ops)
    return moments[: spec.latent_channels], moments[spec.latent_channels :].clip(-30, 20).astype(moments.dtype)


@composed
def decode(
    latent: Float[Array, "latent_channels rows columns"], weights: Weights, spec: AutoencoderSpec, ops: Any
) -> Float[Array, "C Y X"]:
    """Make a picture of a latent, as ``encode`` gives its mean; values lie about -1..1 and are not cut.

    Source: Rombach et al., Latent diffusion, 2022.
    """
    fits = latent.ndim == 3 and len(latent) == spec.latent_channels and latent.size > 0
    require(fits, "C1", f"a latent is [{spec.latent_channels} y x], not {tuple(latent.shape)}")
    w = _of(weights, "decoder.")
    x = convolve(latent, weights, "post_quant_conv", ops) if spec.post_quant_conv else latent
    x = _middle(convolve(x, w, "conv_in", ops), w, spec, ops)
    for i in range(len(spec.channels)):
        for j in range(spec.layers_per_block + 1):
            x = resnet_block(x, _of(w, f"up_blocks.{i}.resnets.{j}."), spec.groups, ops)
        if i < len(spec.channels) - 1:
            x = upsample(x, _of(w, f"up_blocks.{i}.upsamplers.0."), ops)
    return _out(x, w, spec, ops)


@composed
def decode_tiled(
    latent: Float[Array, "latent_channels rows columns"], weights: Weights, spec: AutoencoderSpec, ops: Any, *,
    tile: int = 64, overlap: int = 16,
) -> Float[Array, "C Y X"]:
    """Decode in tiles that overlap, and fade each into the next: a large picture in the memory of a small one.

    Away from what tiles share, local layers give what ``decode`` gives, once the overlap is as wide as one pixel sees
    to a side. Statistics of norms and the attention in the middle are each tile's own, so it differs a little.

    Source: Hugging Face's diffusers, ``enable_vae_tiling``.
    """
    tile, overlap = whole("tile", tile), whole("overlap", overlap)
    if not 0 <= overlap < tile:
        raise UsageError(f"tiles of {tile} overlap by 0 to {tile - 1}, not by {overlap}")
    require(latent.ndim == 3, "C1", f"a latent is [{spec.latent_channels} y x], not {tuple(latent.shape)}")
    starts_y, starts_x = (_starts(size, tile, overlap) for size in latent.shape[1:])
    rows = [[decode(latent[:, y:, x:][:, :tile, :tile], weights, spec, ops) for x in starts_x] for y in starts_y]
    places_y, places_x = ([start * spec.factor for start in starts] for starts in (starts_y, starts_x))
    return _joined([_joined(row, places_x, 2) for row in rows], places_y, 1)


def _starts(size: int, tile: int, overlap: int) -> list[int]:
    later = range(tile - overlap, size - overlap, tile - overlap)
    return [0, *(min(at, size - tile) for at in later)] if size > tile else [0]


def _joined(tiles: list[Array], places: list[int], axis: int) -> Array:
    """Put tiles side by side; where two lie over each other, the weight passes from one to the other."""
    joined = tiles[0]
    for tile, place in zip(tiles[1:], places[1:], strict=True):
        joined, tile = np.moveaxis(joined, axis, 0), np.moveaxis(tile, axis, 0)
        shared = len(joined) - place
        ramp = (np.arange(1, shared + 1, like=joined) / (shared + 1)).astype(joined.dtype).reshape(-1, 1, 1)
        blended = joined[place:] + (tile[:shared] - joined[place:]) * ramp
        joined = np.moveaxis(np.concatenate([joined[:place], blended, tile[shared:]]), 0, axis)
    return joined
