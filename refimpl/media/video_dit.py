"""A DiT over a whole video: all patches of all latent frames in one sequence, with positions in three directions."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from refimpl.contract import Array, CheckpointError, Float, composed, host, require
from refimpl.media.dit import DiTSpec, dit_spec, through_layers
from refimpl.media.patch import grid_of, sincos_table_3d
from refimpl.models.config import integer

__all__ = ["VideoDiTSpec", "video_dit", "video_dit_spec"]


@dataclass(frozen=True)
class VideoDiTSpec(DiTSpec):
    """A DiT, and how many latent frames it was trained on. Its weights are those of a DiT, by the same names."""

    sample_frames: int = 1


@host
def video_dit_spec(config: Mapping[str, Any]) -> VideoDiTSpec:
    """Read the config.json of a VideoDiT: that of a DiT, and sample_frames.

    >>> video_dit_spec({"_class_name": "VideoDiT", "num_attention_heads": 4, "attention_head_dim": 16,
    ...                 "sample_frames": 5}).sample_frames
    5
    """
    if config.get("_class_name") != "VideoDiT":
        raise CheckpointError(f"config.json: _class_name is VideoDiT, not {config.get('_class_name')!r}")
    rest = {key: value for key, value in config.items() if key not in ("sample_frames", "_class_name")}
    spec = dit_spec(rest | {"_class_name": "DiTTransformer2DModel"})
    if spec.hidden_size % 16:
        raise CheckpointError(f"config.json: a width of {spec.hidden_size} is not divided by 16, among three axes")
    return VideoDiTSpec(**vars(spec), sample_frames=integer(config, "sample_frames", 1))


@lru_cache(maxsize=8)
def _table(grid: tuple[int, int, int], width: int, dtype: Any) -> Array:
    table = sincos_table_3d(grid, width, dtype=dtype)
    table.flags.writeable = False
    return table


@composed
def video_dit(
    x: Float[Array, "C frames Y X"], timestep: float, label: int, weights: Mapping[str, Array], spec: VideoDiTSpec,
    ops: Any,
) -> Float[Array, "out_channels frames Y X"]:
    """Run a noisy video through the network: every patch sees all others, of its frame, before and after.

    So the frames are made together; an error in one is not the ground on which the next is built.

    Math: as dit, over frames Y X / patch^2 patches, with positions of frame, row and column.
    Cost: that of the layers; attention's grows with the square of the frames.
    Source: Peebles, Xie, DiT, 2022; Yang et al., CogVideoX, 2024 (full attention over space and time).
    """
    (p, classes), is_video = (spec.patch_size, spec.num_classes), x.ndim == 4 and len(x) == spec.in_channels
    require(is_video, "C1", f"a video of {spec.in_channels} channels, [C frames Y X], not {tuple(x.shape)}")
    require(0 <= label <= classes, "C2", f"label {label} is not in 0..{classes}; {classes} says that there is no class")
    grid = grid_of(x.shape, (1, p, p))
    tokens = ops.linear(ops.patchify(x, (1, p, p)), weights["w_patch"], weights["b_patch"])
    table = _table(grid, spec.hidden_size, np.float64 if x.dtype == np.float64 else np.float32)
    tokens = ops.learned_position(tokens, np.arange(len(tokens)), table)
    values = through_layers(tokens, timestep, label, weights, spec, ops)
    return ops.unpatchify(values, grid, (1, p, p), channels_last=True)
