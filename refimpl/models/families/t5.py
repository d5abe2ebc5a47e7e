"""T5, T5 v1.1 and UMT5: RMS norms first, no biases, scores by distance; an encoder with or without its decoder."""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import CheckpointError, host
from refimpl.models.config import check_keys, flag, integer, layer_count, number, token_ids, word
from refimpl.models.encoder_spec import EncoderDecoderSpec, EncoderSpec, StackSpec
from refimpl.models.encoder_weights import take_modules
from refimpl.models.spec import MlpSpec
from refimpl.models.tensor import Tensor

__all__ = ["MODEL_TYPES", "spec", "weights"]

MODEL_TYPES = dict.fromkeys(("t5", "umt5"), frozenset((
    "model_type", "vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads",
    "relative_attention_num_buckets", "relative_attention_max_distance", "layer_norm_epsilon", "feed_forward_proj",
    "tie_word_embeddings", "scale_decoder_outputs", "decoder_start_token_id", "eos_token_id", "n_positions",
    "is_encoder_decoder", "dense_act_fn", "is_gated_act", "scalable_attention",
)))  # fmt: skip

_NETWORKS = {"relu": ("relu", False), "gated-gelu": ("gelu_tanh", True), "gated-silu": ("silu", True)}


def _stack(config: Mapping[str, Any], layers: int, **fields: Any) -> StackSpec:
    newer, most = config["model_type"] == "umt5", 2**16
    network = _NETWORKS[word(config, "feed_forward_proj", _NETWORKS, "gated-gelu" if newer else "relu")]
    buckets = integer(config, "relative_attention_num_buckets", 32, most=most)
    distance = integer(config, "relative_attention_max_distance", 128)
    if buckets < 4 or buckets % 2 or distance <= buckets // 2:
        raise CheckpointError(f"config.json: {buckets} buckets, an even number from 4, for distances up to {distance}")
    return StackSpec(
        layers, integer(config, "num_heads", most=most), integer(config, "d_kv", most=most),
        MlpSpec(integer(config, "d_ff"), *network), norm="rms", norm_first=True, embedding_norm=False, biases=False,
        norm_eps=float(number(config, "layer_norm_epsilon", 1e-6, least=0, most=1)), scale=1.0, own_buckets=newer,
        buckets=buckets, max_distance=distance, **fields,
    )  # fmt: skip


@host
def spec(config: Mapping[str, Any]) -> EncoderSpec | EncoderDecoderSpec:
    """Read a config of this family; ``architectures`` says whether there is a decoder."""
    check_keys(config, MODEL_TYPES["t5"])
    sizes, layers = (integer(config, "vocab_size"), integer(config, "d_model")), layer_count(config, "num_layers")
    if "EncoderModel" in str(config.get("architectures")):
        return EncoderSpec("t5", *sizes, _stack(config, layers), None)
    own = integer(config, "num_decoder_layers", layers, most=4096)
    scaled = flag(config, "scale_decoder_outputs", flag(config, "tie_word_embeddings", True))
    return EncoderDecoderSpec(
        "t5", *sizes, _stack(config, layers), _stack(config, own, causal=True, crosses=True),
        max_positions=integer(config, "n_positions", 512), source_positions=None,
        logit_scale=sizes[1]**-0.5 if scaled else 1.0, tied_embeddings=scaled,
        start_ids=(integer(config, "decoder_start_token_id", 0, least=0, most=sizes[0] - 1),),
        eos_ids=token_ids(config.get("eos_token_id", 1)),
    )  # fmt: skip


def _modules(side: str, ours: str, last: int, gated: bool) -> dict[str, str]:
    parts = {f"0.SelfAttention.{name}": name for name in "qkvo"}
    parts |= {"0.SelfAttention.relative_attention_bias": "distance_bias", "0.layer_norm": "attention_norm"}
    parts |= {f"1.EncDecAttention.{name}": f"cross.{name}" for name in "qkvo"} | {"1.layer_norm": "cross_norm"}
    feed = {"wi_0": "gate", "wi_1": "up", "wo": "down"} if gated else {"wi": "up", "wo": "down"}
    parts |= {f"{last}.DenseReluDense.{theirs}": name for theirs, name in feed.items()}
    parts[f"{last}.layer_norm"] = "mlp_norm"
    layers = {f"block.{{i}}.layer.{theirs}": f"layers.{{i}}.{name}" for theirs, name in parts.items()}
    return {f"{side}.{theirs}": ours + name for theirs, name in (layers | {"final_layer_norm": "final_norm"}).items()}


@host
def weights(tensors: Mapping[str, Tensor], spec: EncoderSpec | EncoderDecoderSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this family; the embedding may stand there several times."""
    copies = ["decoder.embed_tokens.weight", "encoder.embed_tokens.weight"]
    shared = "shared" if "shared.weight" in tensors else copies.pop().removesuffix(".weight")
    if isinstance(spec, EncoderSpec):
        modules = {shared: "embedding"} | _modules("encoder", "", 1, spec.stack.network.gated)
        return take_modules(tensors, spec, modules, ignored=(*copies, "decoder.", "lm_head.weight"))
    gated, modules = spec.encoder.network.gated, {shared: "embedding", "lm_head": "lm_head"}
    modules |= _modules("encoder", "encoder.", 1, gated) | _modules("decoder", "decoder.", 2, gated)
    return take_modules(tensors, spec, modules, ignored=(*copies, *["lm_head.weight"] * spec.tied_embeddings))
