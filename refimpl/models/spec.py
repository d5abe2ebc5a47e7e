"""A model is data: a config becomes a ModelSpec, and every executor runs ModelSpecs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding, as the checkpoint's config states it (see llm/position.py)."""

    dim: int  # rotated leading dimensions of a head; less than head_dim is partial RoPE
    theta: float = 10000.0
    interleaved: bool = False
    scaling: str = "none"  # none, linear, dynamic, yarn, llama3, longrope
    params: tuple[tuple[str, float | bool | tuple[float, ...]], ...] = ()  # keywords of rope_frequencies


@dataclass(frozen=True)
class ModelSpec:
    """All that an executor needs to know about a decoder beside its weights.

    Weight names (matrices [out, in], as ``linear`` takes them; {i} is the layer):

        embedding [V D]   position_embedding [S D]   final_norm.gain   final_norm.bias   lm_head [V D]
        layers.{i}.attention_norm.gain  .bias   w_q [N*H D]  w_k [K*H D]  w_v [K*H D]  w_o [D N*H]   b_q b_k b_v b_o
        layers.{i}.q_norm.gain [H]   k_norm.gain [H]
        layers.{i}.mlp_norm.gain  .bias   w_gate [F D]  w_up [F D]  w_down [D F]   b_gate b_up b_down

    A name that is absent is not part of the model: no ``lm_head`` means that the embedding is tied,
    no ``w_gate`` a plain MLP, no bias none.
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    max_positions: int
    norm: str  # "rms" or "layer"
    norm_eps: float
    activation: str  # silu, gelu_erf, gelu_tanh, gelu_quick, relu; gated where w_gate exists
    rope: RopeSpec | None  # None: learned positions
    windows: tuple[int | None, ...]  # per layer: keys seen, self included; None: all
    tied_embeddings: bool
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
