"""Timestep embedding: one thread a pair of sine and cosine."""

from typing import Any

import numpy as np

from gpu import device
from gpu.grid import blocks_for
from gpu.media.denoiser_kernels import THREADS, timestep_kernel
from gpu.number import named
from gpu.registry import Variant
from refimpl.contract import Array, Float, kernel, op, require, whole
from refimpl.media.timestep import timestep_frequencies

__all__ = ["VARIANTS", "timestep_embedding", "timestep_embedding_into"]


@op
def timestep_embedding(
    timesteps: Float[Array, " T"], dim: int, *, flip_sin_to_cos: bool = False, downscale_freq_shift: float = 1.0,
    scale: float = 1.0, max_period: float = 10000.0,
) -> Float[Array, "T dim"]:
    """One thread a pair, blocks of 256. Frequencies come from the host in float64, and angles are float64."""
    dim = whole("dim", dim)
    good = dim >= 2 and dim // 2 > downscale_freq_shift and max_period > 0
    require(good, "C1", f"dim {dim}, its half not above {downscale_freq_shift}, or a max_period of {max_period}")
    require(timesteps.ndim == 1, "C2", f"timesteps are a row, got the shape {timesteps.shape}")
    w = timestep_frequencies(dim, downscale_freq_shift, scale, max_period)
    out = device.empty((len(timesteps), dim), timesteps.dtype)
    timestep_embedding_into(out, device.array(timesteps), device.array(w), flip_sin_to_cos=flip_sin_to_cos)
    return out


@kernel
def timestep_embedding_into(
    out: Float[Array, "T dim"], timesteps: Float[Array, " T"], frequencies: Float[Array, " pairs"], *,
    flip_sin_to_cos: bool = False,
) -> None:
    """Write the embedding of the timesteps into ``out``; the frequencies, dim / 2 of them, are float64."""
    made = timestep_kernel(named(timesteps), bool(flip_sin_to_cos))
    blocks = blocks_for(timesteps.size * frequencies.size, THREADS)
    device.launch(made, blocks, THREADS, out, timesteps, frequencies)


def _workload() -> dict[str, Any]:
    return {"timesteps": np.linspace(0, 999, 64, dtype=np.float32), "dim": 256, "flip_sin_to_cos": True}


VARIANTS = (Variant("numba", "timestep_embedding", timestep_embedding, lambda *_, **__: True, _workload),)
