"""The kernels under the names that refimpl.media.operations gives the specification: ``ops`` on a GPU or emulated."""

from gpu.basics.activation import gelu_erf, gelu_tanh, silu
from gpu.basics.conv import conv2d, conv_transpose2d, upsample_nearest
from gpu.basics.linear import linear
from gpu.basics.norm import group_norm, layer_norm, rms_norm
from gpu.llm.attention import attention
from gpu.llm.embedding import embedding
from gpu.llm.mlp import gated_mlp, mlp
from gpu.llm.position import learned_position, rope
from gpu.media.adaln import adaln, gated_residual
from gpu.media.conv3d import conv3d
from gpu.media.guidance import guide, rescale_guidance
from gpu.media.patch import patchify, unpatchify
from gpu.media.prediction import clip_x0, threshold_x0
from gpu.media.step import guided_combination, linear_combination, scale_by_exp
from gpu.media.timestep import timestep_embedding

__all__ = [
    "adaln", "attention", "clip_x0", "conv2d", "conv3d", "conv_transpose2d", "embedding", "gated_mlp", "gated_residual",
    "gelu_erf", "gelu_tanh", "group_norm", "guide", "guided_combination", "layer_norm", "learned_position", "linear",
    "linear_combination", "mlp", "patchify", "rescale_guidance", "rms_norm", "rope", "scale_by_exp", "silu",
    "threshold_x0", "timestep_embedding", "unpatchify", "upsample_nearest",
]
