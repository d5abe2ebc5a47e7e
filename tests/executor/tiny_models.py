"""Small models of every shape that the executor knows, with random weights, and the reference's answer to them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from refimpl import operations
from refimpl.basics.gated import swiglu
from refimpl.blocks import FORMATS
from refimpl.llm.quantize import linear_int8
from refimpl.models.decoder import forward, new_caches, project_logits
from refimpl.models.spec import ModelSpec, RopeSpec, weight_shapes
from refimpl.models.tensor import Tensor

ALL_BIASES = ("b_q", "b_k", "b_v", "b_o", "b_up", "b_down")
LLAMA = ModelSpec(
    family="llama", vocab_size=70, hidden_size=36, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=10, ffn_size=50,
    max_positions=1024, norm="rms", norm_eps=1e-5, activation="silu", rope=RopeSpec(10), windows=(None, None),
    tied_embeddings=False,
)  # fmt: skip
BLOCKS = replace(LLAMA, hidden_size=64, ffn_size=96, head_dim=32, num_heads=2, num_kv_heads=1, rope=RopeSpec(32))
DYNAMIC = (("factor", 4.0), ("max_position_embeddings", 16))
SPECS = {
    "llama": LLAMA,
    "one head": replace(LLAMA, num_heads=1, num_kv_heads=1, head_dim=33, rope=RopeSpec(32)),
    "many queries": replace(LLAMA, num_heads=7, num_kv_heads=1, tied_embeddings=True),
    "windows": replace(LLAMA, windows=(None, 37)),
    "narrow window": replace(LLAMA, windows=(1, 2)),
    "interleaved, partial": replace(LLAMA, rope=RopeSpec(6, interleaved=True)),
    "partial": replace(LLAMA, rope=RopeSpec(4)),
    "dynamic": replace(LLAMA, rope=RopeSpec(10, scaling="dynamic", params=DYNAMIC)),
    "biases, normed heads": replace(LLAMA, biases=(*ALL_BIASES, "b_gate"), qk_norm=True, activation="gelu_tanh"),
    "gpt2": replace(
        LLAMA, family="gpt2", norm="layer", activation="gelu_erf", rope=None, gated=False, biases=ALL_BIASES,
        num_heads=3, num_kv_heads=3, head_dim=12,
    ),
    "relu": replace(LLAMA, activation="relu", gated=False),
    "quick": replace(LLAMA, activation="gelu_quick"),
}  # fmt: skip


def random_tensors(spec: ModelSpec, seed: int = 0, name: str = "float32") -> dict[str, Tensor]:
    """Return weights large enough that every part shows; matrices in the format ``name``."""
    random = np.random.default_rng(seed)
    tensors = {}
    for key, shape in weight_shapes(spec).items():
        if name in FORMATS and len(shape) == 2:
            form = FORMATS[name]
            data = random.integers(0, 256, (shape[0], shape[1] // form.elements, form.bytes), np.uint8)
            data[..., :2] = (0.02 + 0.01 * random.random((*data.shape[:2], 1))).astype(np.float16).view(np.uint8)
            if name == "q4_1":
                data[..., 2:4] = np.full((*data.shape[:2], 1), -0.2, np.float16).view(np.uint8)
            tensors[key] = Tensor(name, shape, data.reshape(shape[0], -1))
            continue
        values = random.standard_normal(shape) * (0.2 if "norm.gain" in key else 0.4) + ("norm.gain" in key)
        tensors[key] = Tensor("float32", shape, values.astype(np.float32))
    return tensors


def reference(spec: ModelSpec, tensors: dict[str, Tensor], ids: np.ndarray, dtype=np.float64) -> list[np.ndarray]:
    """Return the reference's hidden states and, last, its logits."""
    weights = {name: tensor.read().astype(dtype) for name, tensor in tensors.items()}
    states, _ = forward(np.asarray(ids), weights, spec, new_caches(spec, len(ids), dtype), operations)
    return [*states, project_logits(states[-1], weights, operations)]


def rounding_reference(spec: ModelSpec, tensors: dict[str, Tensor], ids: np.ndarray) -> np.ndarray:
    """Return the logits of the reference whose linear maps round their inputs to int8."""

    def linear(x, w, b=None):
        y = linear_int8(x, w.data, w.format)
        return y if b is None else y + b

    def gated_mlp(x, gate, up, down, *_, activation):
        assert activation == "silu"
        return linear(swiglu(linear(x, gate), linear(x, up)), down)

    def embedding(ids, table):
        return operations.embedding(ids, table.read())

    own = {"linear": linear, "gated_mlp": gated_mlp, "embedding": embedding}
    ops = SimpleNamespace(**vars(operations) | own)
    weights = {name: tensor if len(tensor.shape) == 2 else tensor.read() for name, tensor in tensors.items()}
    states, _ = forward(np.asarray(ids), weights, spec, new_caches(spec, len(ids), np.float32), ops)
    return project_logits(states[-1], weights, ops)


def distance(x: np.ndarray, truth: np.ndarray) -> float:
    """Return the error relative to the truth, over the whole array."""
    return float(np.linalg.norm(x - truth) / np.linalg.norm(truth))
