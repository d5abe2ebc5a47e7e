"""The operations that a decoder is composed of, in one namespace: what a ``@composed`` function takes as ``ops``."""

from refimpl.basics.linear import linear
from refimpl.basics.norm import layer_norm, rms_norm
from refimpl.llm.attention import attention
from refimpl.llm.embedding import embedding
from refimpl.llm.kv_cache import cache_append
from refimpl.llm.mlp import gated_mlp, mlp
from refimpl.llm.position import learned_position, rope

__all__ = [
    "attention", "cache_append", "embedding", "gated_mlp", "layer_norm", "learned_position", "linear", "mlp",
    "rms_norm", "rope",
]
