"""The kernels under the names that refimpl.media.operations gives the specification: ``ops`` on a GPU or emulated."""

from gpu.basics.activation import gelu_erf, gelu_tanh, silu
from gpu.basics.conv import conv2d, conv_transpose2d, upsample_nearest
from gpu.basics.linear import linear
from gpu.basics.norm import group_norm, layer_norm, rms_norm
from gpu.llm.attention import attention
from gpu.llm.embedding import embedding
from gpu.llm.mlp import gated_mlp, mlp
from gpu.llm.position import rope

__all__ = [
    "attention", "conv2d", "conv_transpose2d", "embedding", "gated_mlp", "gelu_erf", "gelu_tanh", "group_norm",
    "layer_norm", "linear", "mlp", "rms_norm", "rope", "silu", "upsample_nearest",
]
