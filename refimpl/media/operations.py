"""The operations that denoisers and solvers are composed of, in one namespace: their ``ops``."""

from refimpl.basics.activation import gelu_erf, gelu_tanh, silu
from refimpl.basics.conv import conv2d, conv_transpose2d, upsample_nearest
from refimpl.basics.linear import linear
from refimpl.basics.norm import group_norm, layer_norm, rms_norm
from refimpl.llm.attention import attention
from refimpl.llm.embedding import embedding
from refimpl.llm.mlp import gated_mlp, mlp
from refimpl.llm.position import rope

__all__ = [
    "attention", "conv2d", "conv_transpose2d", "embedding", "gated_mlp", "gelu_erf", "gelu_tanh", "group_norm",
    "layer_norm", "linear", "mlp", "rms_norm", "rope", "silu", "upsample_nearest",
]
