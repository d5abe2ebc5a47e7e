"""Encoders and encoder-decoders as data: stacks of layers that are all alike, and what reads them."""

from dataclasses import dataclass
from typing import TypeAlias

from refimpl.contract import host
from refimpl.models.spec import MlpSpec

__all__ = [
    "HEADS", "EncoderDecoderSpec", "EncoderSpec", "Shapes", "StackSpec", "encoder_decoder_shapes", "encoder_shapes",
]

Shapes: TypeAlias = dict[str, tuple[int, ...]]

HEADS = ("mask", "lm_head", "pool", "project", "classify", "next")
"""How the names of a head's weights begin. A checkpoint has the heads that it was saved with, each whole."""


@dataclass(frozen=True)
class StackSpec:
    """Layers behind one another, with what stands before the first and behind the last."""

    num_layers: int
    num_heads: int
    head_dim: int
    network: MlpSpec
    norm: str = "layer"  # "layer" or "rms"
    norm_eps: float = 1e-12
    norm_first: bool = False  # before each part and behind the last layer (CLIP, T5); else behind each sum (BERT, BART)
    embedding_norm: bool = True
    biases: bool = True  # of attention's matrices
    scale: float | None = None  # of scores; None: 1 / sqrt(head_dim); T5 has 1
    causal: bool = False
    crosses: bool = False  # every layer also reads what an encoder made
    positions: int = 0  # rows of the learned table; 0: there is none
    position_offset: int = 0  # the row of the first token
    buckets: int = 0  # of distances, each with a learned bias (T5); 0: there is none
    max_distance: int = 128  # from which on all distances are one bucket
    own_buckets: bool = False  # every layer has a table of its own (UMT5); else all share the first layer's


@dataclass(frozen=True)
class EncoderSpec:
    """An encoder with the heads that its family has, beside its weights, which ``encoder_shapes`` names."""

    family: str
    vocab_size: int
    hidden_size: int
    stack: StackSpec
    max_positions: int | None  # tokens of a text; None: as many as there are
    embedding_scale: float = 1.0
    token_types: int = 0
    pad_id: int = 0
    skips_padding: bool = False  # padding has no position (RoBERTa)
    pools: str = "first"  # which token stands for the text: "first", the first "end", or that of the "largest" id
    end_id: int | None = None
    pool_activation: str | None = "tanh"  # of the pooler, "tanh" or "relu"; None: it is the token itself (CLIP)
    projection_size: int = 0
    num_labels: int = 0
    head_activation: str = "gelu_erf"  # of the head that names masked tokens
    tied_embeddings: bool = True


@dataclass(frozen=True)
class EncoderDecoderSpec:
    """An encoder and a decoder that reads it, beside their weights, which ``encoder_decoder_shapes`` names."""

    family: str
    vocab_size: int
    hidden_size: int
    encoder: StackSpec
    decoder: StackSpec
    max_positions: int  # of an answer
    source_positions: int | None  # of a text; None: as many as there are
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    head_bias: bool = False
    tied_embeddings: bool = True
    start_ids: tuple[int, ...] = (0,)  # with which every answer begins
    eos_ids: tuple[int, ...] = ()


@host
def encoder_shapes(spec: EncoderSpec) -> Shapes:
    """Name every weight that an encoder of this family can have, and state its shape.

    >>> stack = StackSpec(1, 2, 4, MlpSpec(16, "gelu_erf", False))
    >>> encoder_shapes(EncoderSpec("bert", 11, 8, stack, 32))["layers.0.w_q"]
    (8, 8)
    """
    d, v = spec.hidden_size, spec.vocab_size
    shapes: Shapes = {"embedding": (v, d), **_stack(spec.stack, d)}
    shapes |= {"token_type_embedding": (spec.token_types, d)} if spec.token_types else {}
    shapes |= {"mask.w_map": (d, d), "mask.b_map": (d,), **_norm("mask.norm", spec.stack, d), "mask.lm_head.bias": (v,)}
    shapes |= {} if spec.tied_embeddings else {"mask.lm_head": (v, d)}
    maps = {"pool": d, "next": 2, "classify": spec.num_labels}
    shapes |= {f"{head}.w_map": (width, d) for head, width in maps.items()}
    shapes |= {f"{head}.b_map": (width,) for head, width in maps.items()}
    return shapes | ({"project.w_map": (spec.projection_size, d)} if spec.projection_size else {})


@host
def encoder_decoder_shapes(spec: EncoderDecoderSpec) -> Shapes:
    """Name every weight of an encoder-decoder, and state its shape."""
    d, v = spec.hidden_size, spec.vocab_size
    shapes: Shapes = {"embedding": (v, d)}
    for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        shapes |= {f"{name}.{weight}": shape for weight, shape in _stack(stack, d).items()}
    shapes |= {} if spec.tied_embeddings else {"lm_head": (v, d)}
    return shapes | ({"lm_head.bias": (1, v)} if spec.head_bias else {})


def _norm(name: str, spec: StackSpec, d: int) -> Shapes:
    return {f"{name}.{part}": (d,) for part in (("gain", "bias") if spec.norm == "layer" else ("gain",))}


def _stack(spec: StackSpec, d: int) -> Shapes:
    wide, f, network = spec.num_heads * spec.head_dim, spec.network.size, spec.network
    attention: Shapes = {"w_q": (wide, d), "w_k": (wide, d), "w_v": (wide, d), "w_o": (d, wide)}
    attention |= {f"b_{name}": attention[f"w_{name}"][:1] for name in "qkvo" if spec.biases}
    layer = attention | _norm("attention_norm", spec, d) | _norm("mlp_norm", spec, d)
    if spec.crosses:
        layer |= {f"cross.{name}": shape for name, shape in attention.items()} | _norm("cross_norm", spec, d)
    layer |= {"w_up": (f, d), "w_down": (d, f)} | ({"w_gate": (f, d)} if network.gated else {})
    layer |= {name: layer["w" + name[1:]][:1] for name in network.biases}
    table: Shapes = {"distance_bias": (spec.buckets, spec.num_heads)} if spec.buckets else {}
    shapes = {
        f"layers.{i}.{name}": shape
        for i in range(spec.num_layers)
        for name, shape in (layer | (table if i == 0 or spec.own_buckets else {})).items()
    }
    shapes |= {"position_embedding": (spec.positions, d)} if spec.positions else {}
    shapes |= _norm("embedding_norm", spec, d) if spec.embedding_norm else {}
    return shapes | (_norm("final_norm", spec, d) if spec.norm_first else {})
