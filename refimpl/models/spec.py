"""A model is data: a config becomes a ModelSpec, and every executor runs ModelSpecs."""

from dataclasses import dataclass

from refimpl.contract import host

__all__ = ["ModelSpec", "RopeSpec", "weight_shapes"]


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding, as the checkpoint's config states it (see llm/position.py)."""

    dim: int  # rotated leading dimensions of a head; less than head_dim is partial RoPE
    theta: float = 10000.0
    interleaved: bool = False
    scaling: str = "none"  # none, linear, dynamic, yarn, llama3, longrope
    params: tuple[tuple[str, int | float | bool | tuple[float, ...]], ...] = ()  # keywords of rope_frequencies


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


@host
def weight_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name every weight of a model and state its shape; matrices are [out, in], as ``linear`` takes them.

    A name that is absent is not part of the model: no ``lm_head`` means that the embedding is used twice.

    >>> from refimpl.models.spec import ModelSpec, weight_shapes
    >>> tiny = ModelSpec("llama", 11, 8, 1, 4, 2, 2, 16, 32, "rms", 1e-5, "silu", None, (None,), True)
    >>> weight_shapes(tiny)["layers.0.w_k"]
    (4, 8)
    """
    d, f, norms = spec.hidden_size, spec.ffn_size, ("gain", "bias") if spec.norm == "layer" else ("gain",)
    rows = {"q": spec.num_heads * spec.head_dim, "k": spec.num_kv_heads * spec.head_dim, "up": f, "o": d, "down": d}
    rows |= {"v": rows["k"], "gate": f}
    layer: dict[str, tuple[int, ...]] = {}
    layer |= {f"{norm}.{part}": (d,) for norm in ("attention_norm", "mlp_norm") for part in norms}
    layer |= {"w_q": (rows["q"], d), "w_k": (rows["k"], d), "w_v": (rows["v"], d), "w_o": (d, rows["q"])}
    layer |= {"w_up": (f, d), "w_down": (d, f)} | ({"w_gate": (f, d)} if spec.gated else {})
    layer |= {bias: (rows[bias.removeprefix("b_")],) for bias in spec.biases}
    layer |= {f"{norm}.gain": (spec.head_dim,) for norm in ("q_norm", "k_norm") if spec.qk_norm}
    shapes: dict[str, tuple[int, ...]] = {"embedding": (spec.vocab_size, d)}
    shapes |= {} if spec.rope else {"position_embedding": (spec.max_positions, d)}
    shapes |= {f"layers.{i}.{name}": shape for i in range(spec.num_layers) for name, shape in layer.items()}
    shapes |= {f"final_norm.{part}": (d,) for part in norms}
    return shapes if spec.tied_embeddings else shapes | {"lm_head": (spec.vocab_size, d)}
