"""Small models of every shape that the executor knows, with random weights, and the reference's answer to them."""

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np

from refimpl import operations
from refimpl.basics.gated import swiglu
from refimpl.blocks import FORMATS
from refimpl.llm.quantize import linear_int8
from refimpl.models.decoder import forward, new_caches, project_logits
from refimpl.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec, RopeSpec, weight_shapes
from refimpl.models.tensor import Tensor

ALL_BIASES = ("b_q", "b_k", "b_v", "b_o", "b_up", "b_down")
_LAYER = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 10, "rope": RopeSpec(10), "size": 50, "activation": "silu"}
_MODEL = {"family": "llama", "vocab_size": 70, "hidden_size": 36, "max_positions": 1024, "norm_eps": 1e-5}


def decoder(*layers: dict[str, Any], **settings: Any) -> ModelSpec:
    """Return a spec by the fields of all its parts, Llama's where they are not given.

    ``layers`` are what each layer has of its own; without them there are two alike. A layer with ``num_experts`` is a
    mixture; ``biases`` are those of attention and network together.
    """
    names = {field.name for field in fields(ModelSpec)}
    common = _LAYER | {name: value for name, value in settings.items() if name not in names}
    made = tuple(_layer(**common | own) for own in layers or ({}, {}))
    return ModelSpec(layers=made, **_MODEL | {name: value for name, value in settings.items() if name in names})


def _layer(norms: str = "before", biases: tuple[str, ...] | bool = (), **settings: Any) -> LayerSpec:
    def take(kind: Any) -> dict[str, Any]:
        return {field.name: settings[field.name] for field in fields(kind) if field.name in settings}

    heads = tuple(name for name in biases or () if name in ALL_BIASES[:4]) if biases is not True else ALL_BIASES[:4]
    mixer = AttentionSpec(**take(AttentionSpec), biases=heads)
    if settings.get("num_experts"):
        return LayerSpec(mixer, MoeSpec(**take(MoeSpec), biases=biases is True), norms)
    return LayerSpec(mixer, MlpSpec(**take(MlpSpec), biases=tuple(name for name in biases if name not in heads)), norms)


LLAMA = decoder()
BLOCKS = decoder(hidden_size=64, size=96, head_dim=32, num_heads=2, num_kv_heads=1, rope=RopeSpec(32))
DYNAMIC = (("factor", 4.0), ("max_position_embeddings", 16))
MIXTURE = {"num_experts": 5, "num_active": 2, "size": 34}
BLOCK_EXPERTS = decoder(
    {}, {"num_experts": 0}, hidden_size=64, head_dim=32, num_heads=2, num_kv_heads=1, rope=RopeSpec(32), size=96,
    num_experts=6, num_active=2, shared_size=32, router_bias=True,
)  # fmt: skip
SPECS = {
    "llama": LLAMA,
    "one head": decoder(num_heads=1, num_kv_heads=1, head_dim=33, rope=RopeSpec(32)),
    "many queries": decoder(num_heads=7, num_kv_heads=1, tied_embeddings=True),
    "windows": decoder({}, {"window": 37}),
    "narrow window": decoder({"window": 1}, {"window": 2}),
    "chunks": decoder({"chunk": 33, "temperature": (16.0, 0.3)}, {"rope": None, "temperature": (8.0, 0.1)}),
    "interleaved, partial": decoder(rope=RopeSpec(6, interleaved=True)),
    "partial": decoder(rope=RopeSpec(4)),
    "dynamic": decoder(rope=RopeSpec(10, scaling="dynamic", params=DYNAMIC)),
    "biases, normed heads": decoder(biases=(*ALL_BIASES, "b_gate"), qk_norm="head", activation="gelu_tanh"),
    "gpt2": decoder(
        family="gpt2", norm="layer", activation="gelu_erf", rope=None, learned_positions=True, gated=False,
        biases=ALL_BIASES, num_heads=3, num_kv_heads=3, head_dim=12,
    ),
    "relu": decoder(activation="relu", gated=False),
    "quick": decoder(activation="gelu_quick"),
    "gemma": decoder(
        {"window": 37}, {"rope": RopeSpec(10, 1e6, scaling="linear", params=(("factor", 8.0),)), "size": 41},
        norms="sandwich", gain_offset=1.0, embedding_scale=6.0, activation="gelu_tanh", qk_norm="head", scale=0.2,
        softcap=5.0, logit_softcap=3.0, tied_embeddings=True,
    ),
    "olmo": decoder(norms="after", qk_norm="row"),
    "granite": decoder(embedding_scale=3.0, residual_scale=0.22, scale=0.05, logit_scale=0.125, head_bias=True),
    "no positions": decoder({}, {"rope": None}),
    "parallel": decoder(norms="parallel", norm="layer", biases=ALL_BIASES, gated=False, activation="gelu_erf"),
    "gpt_oss": decoder(
        {"window": 37}, {}, biases=True, sinks=True, router="top_k_softmax", router_bias=True,
        activation="swiglu_clamped", limit=1.5, **MIXTURE,
    ),
    "qwen moe": decoder(
        {}, MIXTURE | {"num_experts": 0, "size": 50}, routing=(("renormalise", False),), shared_size=21,
        shared_gate=True, **MIXTURE,
    ),
    "glm moe": decoder(
        {"num_experts": 0}, {}, router="sigmoid_group_top_k", correction=True, num_experts=12, num_active=3, size=17,
        routing=(("groups", 4), ("top_groups", 2), ("scale", 2.5), ("renormalise", True)), shared_size=23,
    ),
    "parallel moe": decoder(norms="parallel", activation="gelu_tanh", shared_size=9, **MIXTURE),
    "sandwiched moe": decoder(norms="sandwich", router="top_k_sigmoid", weight_inputs=True, **MIXTURE),
}  # fmt: skip


def random_tensors(spec: ModelSpec, seed: int = 0, name: str = "float32") -> dict[str, Tensor]:
    """Return weights large enough that every part shows; matrices in the format ``name``."""
    random = np.random.default_rng(seed)
    tensors = {}
    for key, shape in weight_shapes(spec).items():
        if name in FORMATS and len(shape) > 1:
            form = FORMATS[name]
            blocks = *shape[:-1], shape[-1] // form.elements
            data = random.integers(0, 256, (*blocks, form.bytes), np.uint8)
            if name == "mxfp4":
                data[..., 0] = 127 - random.integers(3, 6, blocks)
            else:
                data[..., :2] = (0.02 + 0.01 * random.random((*blocks, 1))).astype(np.float16).view(np.uint8)
            if name == "q4_1":
                data[..., 2:4] = np.full((*blocks, 1), -0.2, np.float16).view(np.uint8)
            tensors[key] = Tensor(name, shape, data.reshape(*shape[:-1], -1))
            continue
        values = random.standard_normal(shape) * (0.2 if "norm.gain" in key else 0.4) + ("norm.gain" in key)
        tensors[key] = Tensor("float32", shape, values.astype(np.float32))
    return tensors


def reference(spec: ModelSpec, tensors: dict[str, Tensor], ids: np.ndarray, dtype=np.float64) -> list[np.ndarray]:
    """Return the reference's hidden states and, last, its logits."""
    weights = {name: tensor.read().astype(dtype) for name, tensor in tensors.items()}
    states, _ = forward(np.asarray(ids), weights, spec, new_caches(spec, len(ids), dtype), operations)
    return [*states, project_logits(states[-1], weights, spec, operations)]


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

    def grouped_moe(x, ids, shares, *stacks, activation, limit, weight_inputs):
        assert not weight_inputs and stacks[3:] == (None,) * 3
        y = np.zeros_like(x)
        for t, a in np.ndindex(ids.shape):
            expert = (each.part(int(ids[t, a])) for each in stacks[:3])
            y[t] += shares[t, a] * gated_mlp(x[t : t + 1], *expert, activation=activation)[0]
        return y

    def add_shared_expert(y, x, gate, up, down, share=None, *, activation):
        assert share is None
        return y + gated_mlp(x, gate, up, down, activation=activation)

    own = {
        "linear": linear, "gated_mlp": gated_mlp, "embedding": embedding, "grouped_moe": grouped_moe,
        "add_shared_expert": add_shared_expert,
    }  # fmt: skip
    ops = SimpleNamespace(**vars(operations) | own)
    weights = {name: tensor if len(tensor.shape) > 1 else tensor.read() for name, tensor in tensors.items()}
    states, _ = forward(np.asarray(ids), weights, spec, new_caches(spec, len(ids), np.float32), ops)
    return project_logits(states[-1], weights, spec, ops)


def distance(x: np.ndarray, truth: np.ndarray) -> float:
    """Return the error relative to the truth, over the whole array."""
    return float(np.linalg.norm(x - truth) / np.linalg.norm(truth))
