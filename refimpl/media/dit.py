"""DiT: a transformer over the patches of a picture, told the noise level and the class.

Read is what diffusers calls DiTTransformer2DModel::

    spec = dit_spec(config)                     # of config.json
    weights = dit_weights(tensors, spec)        # of diffusion_pytorch_model.safetensors
    output = dit(x, timestep, label, weights, spec, ops)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from refimpl.contract import Array, CheckpointError, Float, composed, host, require
from refimpl.media.patch import grid_of, sincos_table_2d
from refimpl.models.config import check_keys, flag, integer, layer_count, number, word
from refimpl.models.tensor import Tensor
from refimpl.models.weights import take_tensors

__all__ = [
    "DiTSpec", "condition", "dit", "dit_block", "dit_shapes", "dit_spec", "dit_weights", "through_layers", "weights_of",
]

_ACTIVATIONS = {"gelu": "gelu_erf", "gelu-approximate": "gelu_tanh"}
_TIMESTEP_DIM = 256


@dataclass(frozen=True)
class DiTSpec:
    """All that a DiT is, beside its weights; the defaults are those of diffusers."""

    num_heads: int
    head_dim: int
    num_layers: int
    in_channels: int
    out_channels: int  # twice as many where the variance is learned too: it comes last
    patch_size: int
    sample_size: int  # side of the pictures that it was trained on
    num_classes: int  # label num_classes says that there is no class, for guidance
    activation: str = "gelu_tanh"
    attention_bias: bool = True
    mlp_eps: float = 1e-5  # of the norm before the MLP; the other norms have 1e-6

    @property
    def hidden_size(self) -> int:
        return self.num_heads * self.head_dim


@host
def dit_spec(config: Mapping[str, Any]) -> DiTSpec:
    """Read the config.json of a DiTTransformer2DModel.

    >>> dit_spec({"num_attention_heads": 4, "attention_head_dim": 8, "num_layers": 2, "sample_size": 8}).num_classes
    1000
    """
    known = (
        "_class_name", "_diffusers_version", "activation_fn", "attention_bias", "attention_head_dim", "dropout",
        "in_channels", "norm_elementwise_affine", "norm_eps", "norm_num_groups", "norm_type", "num_attention_heads",
        "num_embeds_ada_norm", "num_layers", "out_channels", "patch_size", "sample_size", "upcast_attention",
    )  # fmt: skip
    check_keys(config, known)
    word(config, "_class_name", ["DiTTransformer2DModel"], "DiTTransformer2DModel")
    word(config, "norm_type", ["ada_norm_zero"], "ada_norm_zero")
    if flag(config, "norm_elementwise_affine"):
        raise CheckpointError("config.json: norm_elementwise_affine = True is not supported; DiT's norms have no gain")
    channels, most = integer(config, "in_channels", 4), 2**16
    spec = DiTSpec(
        num_heads=integer(config, "num_attention_heads", 16, most=most),
        head_dim=integer(config, "attention_head_dim", 72, most=most),
        num_layers=layer_count({"num_layers": 28} | dict(config), "num_layers"), in_channels=channels,
        out_channels=integer(config, "out_channels", channels, most=most),
        patch_size=integer(config, "patch_size", 2, most=most),
        sample_size=integer(config, "sample_size", 32, most=most),
        num_classes=integer(config, "num_embeds_ada_norm", 1000),
        activation=_ACTIVATIONS[word(config, "activation_fn", _ACTIVATIONS, "gelu-approximate")],
        attention_bias=flag(config, "attention_bias", True),
        mlp_eps=float(number(config, "norm_eps", 1e-5, least=0, most=1)),
    )  # fmt: skip
    if spec.hidden_size % 4:
        heads = f"{spec.num_heads} heads of {spec.head_dim}"
        raise CheckpointError(f"config.json: {heads} are a width that 4 does not divide")
    if spec.sample_size < spec.patch_size:
        raise CheckpointError(f"config.json: patches of {spec.patch_size} in pictures of {spec.sample_size}")
    return spec


@host
def dit_shapes(spec: DiTSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name every weight, and say how a diffusers file names it, and its shape there.

    >>> dit_shapes(DiTSpec(4, 8, 1, 4, 8, 2, 8, 20))["layers.0.w_q"]
    ('transformer_blocks.0.attn1.to_q.weight', (32, 32))
    """
    d, p = spec.hidden_size, spec.patch_size
    parts = {
        "patch": ("pos_embed.proj", (d, spec.in_channels, p, p)), "final_modulation": ("proj_out_1", (2 * d, d)),
        "unpatch": ("proj_out_2", (p * p * spec.out_channels, d)),
    }  # fmt: skip
    shapes = dict[str, tuple[str, tuple[int, ...]]]()
    for i in range(spec.num_layers):
        theirs, embedder = f"transformer_blocks.{i}.", f"transformer_blocks.{i}.norm1.emb."
        shapes[f"layers.{i}.classes"] = (f"{embedder}class_embedder.embedding_table.weight", (spec.num_classes + 1, d))
        layer = {
            "timestep_up": (f"{embedder}timestep_embedder.linear_1", (d, _TIMESTEP_DIM)),
            "timestep_down": (f"{embedder}timestep_embedder.linear_2", (d, d)),
            "modulation": (f"{theirs}norm1.linear", (6 * d, d)),
            **{name: (f"{theirs}attn1.to_{name}", (d, d)) for name in "qkv"}, "o": (f"{theirs}attn1.to_out.0", (d, d)),
            "up": (f"{theirs}ff.net.0.proj", (4 * d, d)), "down": (f"{theirs}ff.net.2", (d, 4 * d)),
        }  # fmt: skip
        parts |= {f"layers.{i}.{name}": entry for name, entry in layer.items()}
    for name, (theirs, shape) in parts.items():
        prefix, _, short = name.rpartition(".")
        prefix = f"{prefix}." if prefix else ""
        shapes[f"{prefix}w_{short}"] = (f"{theirs}.weight", shape)
        if spec.attention_bias or short not in ("q", "k", "v"):
            shapes[f"{prefix}b_{short}"] = (f"{theirs}.bias", shape[:1])
    return shapes


@host
def dit_weights(tensors: Mapping[str, Tensor], spec: DiTSpec, dtype: Any = np.float32) -> dict[str, Array]:
    """Take the weights of a diffusers file as arrays of a dtype, by our names, each checked against its shape."""
    taken = take_tensors(tensors, dit_shapes(spec), "DiT")
    weights = {name: tensor.read(dtype) for name, tensor in taken.items()}
    return weights | {"w_patch": weights["w_patch"].reshape(spec.hidden_size, -1)}  # a convolution, as a matrix


@host
def weights_of(weights: Mapping[str, Array], layer: int) -> dict[str, Array]:
    """Take the weights of one layer under their short names.

    >>> weights_of({"w_patch": 1, "layers.0.w_q": 2, "layers.1.w_q": 3}, 1)
    {'w_q': 3}
    """
    prefix = f"layers.{layer}."
    return {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}


@lru_cache(maxsize=8)
def _table(grid: tuple[int, int], spec: DiTSpec, dtype: Any) -> Array:
    table = sincos_table_2d(grid, spec.hidden_size, base_size=spec.sample_size // spec.patch_size, dtype=dtype)
    table.flags.writeable = False
    return table


@composed
def condition(timestep: float, label: int, weights: Mapping[str, Array], dtype: Any, ops: Any) -> Float[Array, "1 D"]:
    """Say to a layer how noisy the picture is and what it shows, in one vector.

    The timestep stays float32 or wider: bfloat16 has no 811.

    Math: silu(embedding(timestep) w_up^T + b_up) w_down^T + b_down + classes[label].
    Source: Peebles, Xie, DiT, 2022, section 3.2.
    """
    times = np.array([timestep], np.float64 if dtype == np.float64 else np.float32)
    waves = ops.timestep_embedding(times, _TIMESTEP_DIM, flip_sin_to_cos=True)
    hidden = ops.silu(ops.linear(waves, weights["w_timestep_up"], weights["b_timestep_up"]))
    told = ops.linear(hidden, weights["w_timestep_down"], weights["b_timestep_down"])
    return ops.learned_position(told, np.array([label]), weights["classes"])


@composed
def dit_block(
    x: Float[Array, "T D"], told: Float[Array, "1 D"], weights: Mapping[str, Array], spec: Any, ops: Any
) -> Float[Array, "T D"]:
    """Run the patches through one layer, whose norms and residuals follow the condition; every patch sees all.

    Math: h = x + gate attend(adaln(x)),  y = h + gate' mlp(adaln'(h)); shifts, scales and gates are a linear map of
        silu(told).
    Cost: 2 T flop a weight, and attention's own: bound by arithmetic.
    Source: Peebles, Xie, DiT, 2022: adaLN-zero.
    """
    (T, D), heads = x.shape, (len(x), spec.num_heads, spec.head_dim)
    modulation = ops.linear(ops.silu(told), weights["w_modulation"], weights["b_modulation"])
    shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = (modulation[0, i * D : (i + 1) * D] for i in range(6))
    normed = ops.adaln(x, shift, scale)
    q, k, v = (ops.linear(normed, weights[f"w_{n}"], weights.get(f"b_{n}")).reshape(heads) for n in "qkv")
    o = ops.attention(q, k, v, causal=False).reshape(T, D)
    x = ops.gated_residual(x, ops.linear(o, weights["w_o"], weights["b_o"]), gate)
    normed = ops.adaln(x, mlp_shift, mlp_scale, spec.mlp_eps)
    mlp = (weights[name] for name in ("w_up", "w_down", "b_up", "b_down"))
    return ops.gated_residual(x, ops.mlp(normed, *mlp, activation=spec.activation), mlp_gate)


@composed
def through_layers(
    tokens: Float[Array, "T D"], timestep: float, label: int, weights: Mapping[str, Array], spec: DiTSpec, ops: Any
) -> Float[Array, "T values"]:
    """Run patches that know where they stand through all layers, and to the values of each patch of the output.

    Source: Peebles, Xie, DiT, 2022.
    """
    told = [condition(timestep, label, weights_of(weights, i), tokens.dtype, ops) for i in range(spec.num_layers)]
    for i in range(spec.num_layers):
        tokens = dit_block(tokens, told[i], weights_of(weights, i), spec, ops)
    last = ops.linear(ops.silu(told[0]), weights["w_final_modulation"], weights["b_final_modulation"])[0]
    tokens = ops.adaln(tokens, last[: len(last) // 2], last[len(last) // 2 :])
    return ops.linear(tokens, weights["w_unpatch"], weights["b_unpatch"])


@composed
def dit(
    x: Float[Array, "C Y X"], timestep: float, label: int, weights: Mapping[str, Array], spec: DiTSpec, ops: Any
) -> Float[Array, "out_channels Y X"]:
    """Run a noisy picture through the network; what it says (noise, velocity ...) is as it was trained.

    A picture of another size than those of the training has as many patches more; its positions lie in the same range.

    Math: x = patches w_patch^T + b_patch + positions;  x = block_i(x) for every layer i;  adaln(x) w_unpatch^T +
        b_unpatch, put together again. The last modulation follows what the first layer is told.
    Cost: that of the layers, twice a step with guidance.
    Source: Peebles, Xie, DiT, 2022; names and order of the weights: diffusers, DiTTransformer2DModel.
    """
    p, classes = spec.patch_size, spec.num_classes
    fits = x.ndim == 3 and len(x) == spec.in_channels
    require(fits, "C1", f"a picture of {spec.in_channels} channels, [C Y X], not {tuple(x.shape)}")
    require(0 <= label <= classes, "C2", f"label {label} is not in 0..{classes}; {classes} says that there is no class")
    rows, columns = grid_of(x.shape, (p, p))
    tokens = ops.linear(ops.patchify(x, (p, p)), weights["w_patch"], weights["b_patch"])
    table = _table((rows, columns), spec, np.float64 if x.dtype == np.float64 else np.float32)
    tokens = ops.learned_position(tokens, np.arange(rows * columns), table)
    values = through_layers(tokens, timestep, label, weights, spec, ops)
    return ops.unpatchify(values, (rows, columns), (p, p), channels_last=True)
