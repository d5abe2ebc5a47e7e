"""A model is data: a config becomes a ModelSpec, and every executor runs ModelSpecs."""

from dataclasses import dataclass

from refimpl.contract import UsageError, host

__all__ = ["ModelSpec", "MoeSpec", "RopeSpec", "require_dense", "weight_shapes"]


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding, as the checkpoint's config states it (see llm/rope_scaling.py)."""

    dim: int  # rotated leading dimensions of a head; less than head_dim is partial RoPE
    theta: float = 10000.0
    interleaved: bool = False
    scaling: str = "none"  # none, linear, dynamic, yarn, llama3, longrope
    params: tuple[tuple[str, int | float | bool | tuple[float, ...]], ...] = ()  # keywords of rope_frequencies


@dataclass(frozen=True)
class MoeSpec:
    """A mixture of experts in place of the feed-forward network: a token goes to a few experts, and to those shared."""

    num_experts: int
    num_active: int  # experts that the router gives a token
    expert_size: int  # feed-forward width of an expert
    num_shared: int = 0  # experts that every token goes to
    shared_size: int = 0  # feed-forward width of each of these
    dense_layers: tuple[int, ...] = ()  # layers that have a plain network of the spec's ffn_size


@dataclass(frozen=True)
class ModelSpec:
    """All that an executor needs to know about a decoder beside its weights, which ``weight_shapes`` names."""

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    max_positions: int  # the context; a rotary model can be run beyond it, a learned table cannot
    norm: str  # "rms" or "layer"
    norm_eps: float
    activation: str  # silu, gelu_erf, gelu_tanh, gelu_quick, relu
    rope: RopeSpec | None  # None: learned positions
    windows: tuple[int | None, ...]  # per layer: keys seen, self included; None: all
    tied_embeddings: bool
    gated: bool = True  # activation(gate) * up, against a plain feed-forward network
    qk_norm: bool = False  # queries and keys are RMS-normalised per head, before they are rotated
    biases: tuple[str, ...] = ()  # of b_q b_k b_v b_o b_gate b_up b_down, those that every layer has
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    moe: MoeSpec | None = None


@host
def require_dense(spec: ModelSpec) -> None:
    """Refuse a mixture of experts: its costs are counted, but no executor runs it yet."""
    if spec.moe is not None:
        raise UsageError(f"{spec.family} has {spec.moe.num_experts} experts: mixtures of experts cannot be run yet")


@host
def weight_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name every weight of a model and state its shape; matrices are [out, in], as ``linear`` takes them.

    A name that is absent is not part of the model: no ``lm_head`` means that the embedding is used twice.

    >>> from refimpl.models.spec import ModelSpec, weight_shapes
    >>> tiny = ModelSpec("llama", 11, 8, 1, 4, 2, 2, 16, 32, "rms", 1e-5, "silu", None, (None,), True)
    >>> weight_shapes(tiny)["layers.0.w_k"]
    (4, 8)
    """
    d, moe, norms = spec.hidden_size, spec.moe, ("gain", "bias") if spec.norm == "layer" else ("gain",)
    shapes: dict[str, tuple[int, ...]] = {"embedding": (spec.vocab_size, d)}
    shapes |= {} if spec.rope else {"position_embedding": (spec.max_positions, d)}
    for i in range(spec.num_layers):
        layer = _layer_shapes(spec, norms, None if moe is None or i in moe.dense_layers else moe)
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    shapes |= {f"final_norm.{part}": (d,) for part in norms}
    return shapes if spec.tied_embeddings else shapes | {"lm_head": (spec.vocab_size, d)}


def _layer_shapes(spec: ModelSpec, norms: tuple[str, ...], moe: MoeSpec | None) -> dict[str, tuple[int, ...]]:
    d, f = spec.hidden_size, spec.ffn_size
    rows = {"q": spec.num_heads * spec.head_dim, "k": spec.num_kv_heads * spec.head_dim, "o": d}
    rows |= {"v": rows["k"]} | ({"up": f, "gate": f, "down": d} if moe is None else {})
    layer: dict[str, tuple[int, ...]] = {}
    layer |= {f"{norm}.{part}": (d,) for norm in ("attention_norm", "mlp_norm") for part in norms}
    layer |= {"w_q": (rows["q"], d), "w_k": (rows["k"], d), "w_v": (rows["v"], d), "w_o": (d, rows["q"])}
    if moe is None:
        layer |= {"w_up": (f, d), "w_down": (d, f)} | ({"w_gate": (f, d)} if spec.gated else {})
    else:
        layer |= _expert_shapes(spec, moe)
    layer |= {f"b_{part}": (rows[part],) for part in (b.removeprefix("b_") for b in spec.biases) if part in rows}
    return layer | {f"{norm}.gain": (spec.head_dim,) for norm in ("q_norm", "k_norm") if spec.qk_norm}


def _expert_shapes(spec: ModelSpec, moe: MoeSpec) -> dict[str, tuple[int, ...]]:
    """Name the router, the experts' matrices, stacked, and those of the shared experts, side by side."""
    d, kinds = spec.hidden_size, ("w_gate", "w_up") if spec.gated else ("w_up",)
    e, f, shared = moe.num_experts, moe.expert_size, moe.num_shared * moe.shared_size
    shapes: dict[str, tuple[int, ...]] = {"router": (e, d)}
    shapes |= {f"experts.{kind}": (e, f, d) for kind in kinds} | {"experts.w_down": (e, d, f)}
    if shared:
        shapes |= {f"shared.{kind}": (shared, d) for kind in kinds} | {"shared.w_down": (d, shared)}
    return shapes
