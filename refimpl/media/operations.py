"""The operations that denoisers and solvers are composed of, in one namespace: their ``ops``."""

from refimpl.basics.activation import gelu_erf, gelu_tanh, silu
from refimpl.basics.conv import conv2d, conv_transpose2d, upsample_nearest
from refimpl.basics.linear import linear
from refimpl.basics.norm import group_norm, layer_norm, rms_norm
from refimpl.llm.attention import attention
from refimpl.llm.embedding import embedding
from refimpl.llm.mlp import gated_mlp, mlp
from refimpl.llm.position import rope
from refimpl.media.guidance import guide, rescale_guidance
from refimpl.media.prediction import clip_x0, threshold_x0
from refimpl.media.step import guided_combination, linear_combination, scale_by_exp

__all__ = [
    "attention", "clip_x0", "conv2d", "conv_transpose2d", "embedding", "gated_mlp", "gelu_erf", "gelu_tanh",
    "group_norm", "guide", "guided_combination", "layer_norm", "linear", "linear_combination", "mlp",
    "rescale_guidance", "rms_norm", "rope", "scale_by_exp", "silu", "threshold_x0", "upsample_nearest",
]
