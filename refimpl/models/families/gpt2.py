"""GPT-2: layer norms with biases, learned positions, a plain network, and matrices stored [in, out]."""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import CheckpointError, host
from refimpl.models.architecture import Architecture
from refimpl.models.config import activation, check_keys, flag, integer, layer_count, number, token_ids
from refimpl.models.reading import layers_of
from refimpl.models.spec import AttentionSpec, MlpSpec, ModelSpec
from refimpl.models.tensor import Tensor
from refimpl.models.weights import name_weights

__all__ = ["GGUF", "MODEL_TYPES", "spec", "weights"]

MODEL_TYPES = {"gpt2": frozenset((
    "model_type", "vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner", "activation_function",
    "layer_norm_epsilon", "scale_attn_weights", "tie_word_embeddings", "bos_token_id", "eos_token_id",
))}  # fmt: skip
_METADATA = {
    "block_count": "n_layer", "context_length": "n_positions", "embedding_length": "n_embd",
    "attention.head_count": "n_head", "feed_forward_length": "n_inner",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}  # fmt: skip
GGUF = {"gpt2": Architecture("gpt2", _METADATA, rotary=False)}

_TENSORS = {
    "transformer.wte.weight": "embedding",
    "transformer.wpe.weight": "position_embedding",
    "transformer.ln_f.weight": "final_norm.gain",
    "transformer.ln_f.bias": "final_norm.bias",
    "lm_head.weight": "lm_head",
} | {
    f"transformer.h.{{i}}.{module}.{kind}": " ".join(f"layers.{{i}}.{name}" for name in names.split())
    for module, weight, bias in (
        ("ln_1", "attention_norm.gain", "attention_norm.bias"),
        ("attn.c_attn", "w_q w_k w_v", "b_q b_k b_v"),
        ("attn.c_proj", "w_o", "b_o"),
        ("ln_2", "mlp_norm.gain", "mlp_norm.bias"),
        ("mlp.c_fc", "w_up", "b_up"),
        ("mlp.c_proj", "w_down", "b_down"),
    )
    for kind, names in (("weight", weight), ("bias", bias))
}


@host
def spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a config of this family."""
    check_keys(config, MODEL_TYPES["gpt2"])
    if not flag(config, "scale_attn_weights", True):
        raise CheckpointError("config.json: scale_attn_weights false is not supported")
    width, heads, layers = integer(config, "n_embd"), integer(config, "n_head"), layer_count(config, "n_layer")
    if width % heads:
        raise CheckpointError(f"config.json: {heads} heads do not divide n_embd {width}")
    bos = token_ids(config.get("bos_token_id"))
    mixer = AttentionSpec(heads, heads, width // heads, biases=("b_q", "b_k", "b_v", "b_o"))
    act = activation(config, "activation_function", "gelu_new")
    network = MlpSpec(integer(config, "n_inner", 4 * width), act, gated=False, biases=("b_up", "b_down"))
    return ModelSpec(
        family="gpt2", vocab_size=integer(config, "vocab_size"), hidden_size=width,
        layers=layers_of([mixer] * layers, network), max_positions=integer(config, "n_positions"), norm="layer",
        norm_eps=float(number(config, "layer_norm_epsilon", 1e-5, least=0, most=1)), learned_positions=True,
        tied_embeddings=flag(config, "tie_word_embeddings", True), bos_id=bos[0] if bos else None,
        eos_ids=token_ids(config.get("eos_token_id")),
    )  # fmt: skip


@host
def weights(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Name the tensors of a checkpoint of this family."""
    return name_weights(
        tensors, spec, _TENSORS, prefix="transformer.",
        transposed=("c_attn.weight", "c_proj.weight", "c_fc.weight"),
    )  # fmt: skip
