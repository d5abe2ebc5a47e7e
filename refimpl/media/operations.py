"""The operations that denoisers and solvers are composed of, in one namespace: their ``ops``."""

from refimpl.basics.activation import gelu_erf, gelu_tanh, silu
from refimpl.basics.conv import conv2d, conv_transpose2d, upsample_nearest
from refimpl.basics.linear import linear
from refimpl.basics.norm import group_norm, layer_norm, rms_norm
from refimpl.llm.attention import attention
from refimpl.llm.embedding import embedding
from refimpl.llm.mlp import gated_mlp, mlp
from refimpl.llm.position import learned_position, rope
from refimpl.media.adaln import adaln, gated_residual
from refimpl.media.conv3d import conv3d
from refimpl.media.guidance import guide, rescale_guidance
from refimpl.media.patch import patchify, unpatchify
from refimpl.media.prediction import clip_x0, threshold_x0
from refimpl.media.step import guided_combination, linear_combination, scale_by_exp
from refimpl.media.timestep import timestep_embedding

__all__ = [
    "adaln", "attention", "clip_x0", "conv2d", "conv3d", "conv_transpose2d", "embedding", "gated_mlp", "gated_residual",
    "gelu_erf", "gelu_tanh", "group_norm", "guide", "guided_combination", "layer_norm", "learned_position", "linear",
    "linear_combination", "mlp", "patchify", "rescale_guidance", "rms_norm", "rope", "scale_by_exp", "silu",
    "threshold_x0", "timestep_embedding", "unpatchify", "upsample_nearest",
]
