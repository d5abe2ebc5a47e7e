"""Models of usual shapes with random weights, every layer's the same: what counts here is how fast they are read."""

import ml_dtypes
import numpy as np

from refimpl.blocks import FORMATS
from refimpl.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec, RopeSpec, weight_shapes
from refimpl.models.tensor import Tensor

__all__ = ["random_model"]

_SIZES = {  # vocabulary, width, layers, heads, key/value heads, head width, and the network of a layer
    "tiny": (256, 256, 2, 4, 2, 64, MlpSpec(512, "silu")),
    "tiny mixture": (256, 256, 2, 4, 2, 64, MoeSpec(8, 2, 256)),
    "1B": (128256, 2048, 16, 32, 8, 64, MlpSpec(8192, "silu")),
    "8B": (128256, 4096, 32, 32, 8, 128, MlpSpec(14336, "silu")),
    "30B-A3B, 6 of 48 layers": (151936, 2048, 6, 32, 4, 128, MoeSpec(128, 8, 768)),
}


def random_model(size: str, format: str) -> tuple[ModelSpec, dict[str, Tensor]]:
    """Return a Llama of a size, or a mixture like Qwen3-MoE's, its matrices in bfloat16 or in a block format."""
    vocabulary, width, layers, heads, kv_heads, head, network = _SIZES[size]
    qk_norm = "head" if isinstance(network, MoeSpec) else "none"
    layer = LayerSpec(AttentionSpec(heads, kv_heads, head, RopeSpec(head), qk_norm=qk_norm), network)
    spec = ModelSpec("llama", vocabulary, width, (layer,) * layers, 8192, norm_eps=1e-5, tied_embeddings=True)
    made: dict[tuple[int, ...], Tensor] = {}
    for shape in weight_shapes(spec).values():
        if shape not in made:
            made[shape] = _matrix(shape, format) if len(shape) > 1 else Tensor("float32", shape, np.ones(shape, "f4"))
    return spec, {name: made[shape] for name, shape in weight_shapes(spec).items()}


def _matrix(shape: tuple[int, ...], format: str) -> Tensor:
    random = np.random.default_rng(0)
    if format == "bfloat16":
        data = random.standard_normal(shape, np.float32) / np.float32(shape[-1] ** 0.5)
        return Tensor(format, shape, data.astype(ml_dtypes.bfloat16))
    form = FORMATS[format]
    data = random.integers(0, 256, (*shape[:-1], shape[-1] // form.elements, form.bytes), np.uint8)
    data[..., 0:2] = np.array([0.1 / shape[-1] ** 0.5], np.float16).view(np.uint8)
    if format == "q4_1":
        data[..., 2:4] = np.array([-0.75 / shape[-1] ** 0.5], np.float16).view(np.uint8)
    return Tensor(format, shape, data.reshape(*shape[:-1], -1))
