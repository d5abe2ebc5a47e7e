"""A model is data: a config becomes a ModelSpec, and every executor runs ModelSpecs.

A layer is a mixer, which carries information from token to token, and a network, which works on each token alone; the
norms stand before them, behind them, or both. Layers of one model may differ in all of this.
"""

from dataclasses import dataclass

from refimpl.contract import CheckpointError, host

__all__ = ["AttentionSpec", "LayerSpec", "MlpSpec", "ModelSpec", "MoeSpec", "RopeSpec", "weight_shapes"]


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding, as the checkpoint's config states it (see llm/rope_scaling.py)."""

    dim: int  # rotated leading dimensions of a head; less than head_dim is partial RoPE
    theta: float = 10000.0
    interleaved: bool = False
    scaling: str = "none"  # none, linear, dynamic, yarn, llama3, longrope
    params: tuple[tuple[str, int | float | bool | tuple[float, ...]], ...] = ()  # keywords of rope_frequencies


@dataclass(frozen=True)
class AttentionSpec:
    """A mixer: softmax attention over the keys and values of a cache."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeSpec | None = None  # None: this layer turns nothing
    window: int | None = None  # keys seen, self included; None: all
    chunk: int | None = None  # only keys of the query's own chunk of so many positions are seen (Llama 4)
    scale: float | None = None  # of scores; None: 1 / sqrt(head_dim)
    softcap: float | None = None  # of scores
    temperature: tuple[float, float] | None = None  # (f, a): queries grow by 1 + a log(1 + floor((position + 1) / f))
    sinks: bool = False  # a learned score for each query head, which takes a share and brings no value
    qk_norm: str = "none"  # before rotation, queries and keys are RMS-normalised: "head", each; "row", all together
    biases: tuple[str, ...] = ()  # of b_q b_k b_v b_o


@dataclass(frozen=True)
class MlpSpec:
    """A network: plain, or with one projection as the gate of another."""

    size: int
    activation: str  # silu, gelu_erf, gelu_tanh, gelu_quick, relu
    gated: bool = True
    biases: tuple[str, ...] = ()  # of b_gate b_up b_down


@dataclass(frozen=True)
class MoeSpec:
    """A network: a mixture of gated experts, a few for each token, and one that every token passes through."""

    num_experts: int
    num_active: int  # experts that the router gives a token
    size: int  # feed-forward width of an expert
    activation: str = "silu"  # silu, gelu_tanh, swiglu_clamped
    limit: float = 7.0  # of swiglu_clamped
    router: str = "softmax_top_k"  # the operation (see llm/router.py)
    routing: tuple[tuple[str, int | float | bool], ...] = ()  # keywords of that operation
    router_bias: bool = False  # of the router's logits
    correction: bool = False  # a bias that only chooses
    weight_inputs: bool = False  # what an expert reads is weighed, not what it gives (Llama 4)
    biases: bool = False  # of every expert
    shared_size: int = 0  # feed-forward width of the expert for all; 0: there is none
    shared_gate: bool = False  # a sigmoid weighs it


@dataclass(frozen=True)
class LayerSpec:
    """One layer. Further kinds of mixers (latent, linear, state space) are further classes beside AttentionSpec."""

    mixer: AttentionSpec
    network: MlpSpec | MoeSpec
    norms: str = "before"  # before, after, sandwich (both), or parallel: mixer and network read the same x


@dataclass(frozen=True)
class ModelSpec:
    """All that an executor needs to know about a decoder beside its weights, which ``weight_shapes`` names."""

    family: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    max_positions: int  # the context; a rotary model can be run beyond it, a learned table cannot
    norm: str = "rms"  # "rms" or "layer"
    norm_eps: float = 1e-6
    gain_offset: float = 0.0  # added to the gain of every norm; 1 where a file stores gain - 1
    learned_positions: bool = False
    tied_embeddings: bool = False
    head_bias: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # of what mixer and network add
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len({(m.num_heads, m.num_kv_heads, m.head_dim) for m in self.mixers}) != 1:
            raise CheckpointError(f"{self.family}: the layers' attention must have one number and width of heads")

    @property
    def mixers(self) -> tuple[AttentionSpec, ...]:
        return tuple(layer.mixer for layer in self.layers)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def num_heads(self) -> int:
        return self.layers[0].mixer.num_heads

    @property
    def num_kv_heads(self) -> int:
        return self.layers[0].mixer.num_kv_heads

    @property
    def head_dim(self) -> int:
        return self.layers[0].mixer.head_dim

    @property
    def ropes(self) -> tuple[RopeSpec, ...]:
        """The rotations that layers use, each once."""
        return tuple(dict.fromkeys(mixer.rope for mixer in self.mixers if mixer.rope is not None))


@host
def weight_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name every weight of a model and state its shape; matrices are [out, in], as ``linear`` takes them.

    A name that is absent is not part of the model: no ``lm_head`` means that the embedding is used twice.

    >>> layer = LayerSpec(AttentionSpec(4, 2, 2), MlpSpec(16, "silu"))
    >>> weight_shapes(ModelSpec("llama", 11, 8, (layer,), 32))["layers.0.w_k"]
    (4, 8)
    """
    d, v, parts = spec.hidden_size, spec.vocab_size, ("gain", "bias") if spec.norm == "layer" else ("gain",)
    shapes: dict[str, tuple[int, ...]] = {"embedding": (v, d)}
    shapes |= {"position_embedding": (spec.max_positions, d)} if spec.learned_positions else {}
    for i, layer in enumerate(spec.layers):
        before = () if layer.norms == "after" else ("attention_norm", "mlp_norm")
        after = ("attention_post_norm", "mlp_post_norm") if layer.norms in ("after", "sandwich") else ()
        own = {f"{norm}.{part}": (d,) for norm in before + after for part in parts} | _attention(layer.mixer, d)
        network = layer.network
        own |= _experts(network, d) if isinstance(network, MoeSpec) else _mlp(network, d)
        shapes |= {f"layers.{i}.{name}": shape for name, shape in own.items()}
    shapes |= {f"final_norm.{part}": (d,) for part in parts}
    shapes |= {} if spec.tied_embeddings else {"lm_head": (v, d)}
    return shapes | ({"lm_head.bias": (v,)} if spec.head_bias else {})


def _attention(mixer: AttentionSpec, d: int) -> dict[str, tuple[int, ...]]:
    n, k, h = mixer.num_heads, mixer.num_kv_heads, mixer.head_dim
    shapes: dict[str, tuple[int, ...]] = {"w_q": (n * h, d), "w_k": (k * h, d), "w_v": (k * h, d), "w_o": (d, n * h)}
    shapes |= {name: shapes["w" + name[1:]][:1] for name in mixer.biases}
    normed = {"none": {}, "head": {"q": h, "k": h}, "row": {"q": n * h, "k": k * h}}[mixer.qk_norm]
    shapes |= {f"{letter}_norm.gain": (width,) for letter, width in normed.items()}
    return shapes | ({"sinks": (n,)} if mixer.sinks else {})


def _mlp(network: MlpSpec, d: int) -> dict[str, tuple[int, ...]]:
    f = network.size
    shapes: dict[str, tuple[int, ...]] = {"w_gate": (f, d)} if network.gated else {}
    shapes |= {"w_up": (f, d), "w_down": (d, f)}
    return shapes | {name: shapes["w" + name[1:]][:1] for name in network.biases}


def _experts(moe: MoeSpec, d: int) -> dict[str, tuple[int, ...]]:
    """Name the router, the experts' matrices, stacked, and those of the shared expert."""
    e, f, s = moe.num_experts, moe.size, moe.shared_size
    shapes: dict[str, tuple[int, ...]] = {"router": (e, d)}
    shapes |= {"router.bias": (e,)} if moe.router_bias else {}
    shapes |= {"router.correction": (e,)} if moe.correction else {}
    stacks = {"gate": (e, f, d), "up": (e, f, d), "down": (e, d, f)}
    shapes |= {f"experts.w_{name}": shape for name, shape in stacks.items()}
    shapes |= {f"experts.b_{name}": shape[:2] for name, shape in stacks.items() if moe.biases}
    shapes |= {"shared.w_gate": (s, d), "shared.w_up": (s, d), "shared.w_down": (d, s)} if s else {}
    return shapes | ({"shared.w_share": (1, d)} if moe.shared_gate else {})
