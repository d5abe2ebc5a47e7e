"""The operations that language models are composed of, in one namespace: their ``ops``."""

from refimpl.basics.activation import gelu_erf, gelu_quick, gelu_tanh, relu, silu
from refimpl.basics.linear import linear
from refimpl.basics.norm import layer_norm, rms_norm
from refimpl.llm.attention import attention
from refimpl.llm.embedding import embedding
from refimpl.llm.kv_cache import cache_append
from refimpl.llm.mlp import gated_mlp, mlp
from refimpl.llm.moe import add_shared_expert, grouped_moe
from refimpl.llm.position import learned_position, rope
from refimpl.llm.position_bias import t5_bias
from refimpl.llm.router import (
    hash_route,
    sigmoid_group_top_k,
    softmax_top_k,
    sqrt_softplus_top_k,
    top_k_sigmoid,
    top_k_softmax,
)

__all__ = [
    "add_shared_expert", "attention", "cache_append", "embedding", "gated_mlp", "gelu_erf", "gelu_quick",
    "gelu_tanh", "grouped_moe", "hash_route", "layer_norm", "learned_position", "linear", "mlp", "relu", "rms_norm",
    "rope", "sigmoid_group_top_k", "silu", "softmax_top_k", "sqrt_softplus_top_k", "t5_bias", "top_k_sigmoid",
    "top_k_softmax",
]
