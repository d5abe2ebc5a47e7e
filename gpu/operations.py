"""The kernels under the names that refimpl.operations gives the specification: ``ops`` on a GPU or emulated."""

from gpu.basics.activation import gelu_erf, gelu_quick, gelu_tanh, relu, silu
from gpu.basics.linear import linear
from gpu.basics.norm import layer_norm, rms_norm
from gpu.llm.attention import attention
from gpu.llm.embedding import embedding
from gpu.llm.kv_cache import cache_append
from gpu.llm.mlp import gated_mlp, mlp
from gpu.llm.moe import add_shared_expert, grouped_moe
from gpu.llm.position import learned_position, rope
from gpu.llm.position_bias import t5_bias
from gpu.llm.router import (
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
