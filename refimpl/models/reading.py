"""What the configs of most decoders share, read into the parts of a ModelSpec; a family adds what is its own."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from refimpl.contract import CheckpointError, host
from refimpl.models.config import activation, flag, integer, layer_count, number, rope_spec, shown, token_ids
from refimpl.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec, RopeSpec

__all__ = [
    "FULL", "KEYS", "KINDS", "attention_spec", "context", "layer_kinds", "layer_numbers", "layers_of", "mlp_spec",
    "model_spec", "moe_spec", "ropes_by_kind", "windows",
]  # fmt: skip

KEYS = frozenset((
    "model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "intermediate_size", "max_position_embeddings", "original_max_position_embeddings", "rms_norm_eps",
    "hidden_act", "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "tie_word_embeddings",
    "bos_token_id", "eos_token_id",
))  # fmt: skip
"""The keys that nearly every decoder reads."""

KINDS = FULL, SLIDES = "full_attention", "sliding_attention"


@host
def attention_spec(
    config: Mapping[str, Any], *, head_dim: int | None = None, biases: str = "", theta: float = 10000.0,
    partial: float | None = None, **fields: Any,
) -> AttentionSpec:
    """Read heads and rotation; ``head_dim``, ``theta`` and ``partial`` are the family's where the config states none.

    ``biases`` are letters of q, k, v and o; ``fields`` set the rest, a ``rope`` that is given is not read.
    """
    heads, width = integer(config, "num_attention_heads"), integer(config, "hidden_size")
    kv_heads = integer(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise CheckpointError(f"config.json: {kv_heads} key/value heads do not divide {heads} query heads")
    if head_dim is None and config.get("head_dim") is None and width % heads:
        raise CheckpointError(f"config.json: {heads} heads do not divide hidden_size {width}, and head_dim is not set")
    head_dim = integer(config, "head_dim", head_dim or width // heads)
    rope = fields.pop("rope") if "rope" in fields else rope_spec(config, head_dim, theta, partial)
    return AttentionSpec(heads, kv_heads, head_dim, rope, biases=tuple(f"b_{letter}" for letter in biases), **fields)


@host
def mlp_spec(
    config: Mapping[str, Any], *, key: str = "hidden_act", default: str = "silu", size: str = "intermediate_size",
    biased: bool = False,
) -> MlpSpec:  # fmt: skip
    """Read a gated network."""
    biases = ("b_gate", "b_up", "b_down") if biased else ()
    return MlpSpec(integer(config, size), activation(config, key, default), biases=biases)


@host
def model_spec(
    config: Mapping[str, Any], family: str, layers: Iterable[LayerSpec], *, eps: float = 1e-6, tied: bool = False,
    **fields: Any,
) -> ModelSpec:
    """Read what stands around the layers; ``eps`` and ``tied`` are the family's where the config states none."""
    layers, bos = tuple(layers), token_ids(config.get("bos_token_id"))
    return ModelSpec(
        family=family, vocab_size=integer(config, "vocab_size"), hidden_size=integer(config, "hidden_size"),
        layers=layers, max_positions=context(config, [layer.mixer.rope for layer in layers]),
        norm_eps=float(number(config, "rms_norm_eps", eps, least=0, most=1)),
        tied_embeddings=flag(config, "tie_word_embeddings", tied), bos_id=bos[0] if bos else None,
        eos_ids=token_ids(config.get("eos_token_id")), **fields,
    )  # fmt: skip


@host
def layers_of(
    mixers: Iterable[AttentionSpec], network: MlpSpec | MoeSpec | Callable[[int], MlpSpec | MoeSpec],
    norms: str = "before",
) -> tuple[LayerSpec, ...]:
    """Make the layers of their mixers and a network, one for all or one by the layer's number."""
    return tuple(
        LayerSpec(mixer, network(number) if callable(network) else network, norms)
        for number, mixer in enumerate(mixers)
    )


@host
def layer_kinds(
    config: Mapping[str, Any], slides: Callable[[int], bool], kinds: tuple[str, str] = KINDS
) -> list[str]:
    """State the kind of every layer: what layer_types says, or the second kind where ``slides`` is true of its number.

    >>> layer_kinds({"num_hidden_layers": 2}, lambda number: number == 1)
    ['full_attention', 'sliding_attention']
    """
    count = layer_count(config)
    types = config.get("layer_types") or [kinds[slides(number)] for number in range(count)]
    if not isinstance(types, list) or len(types) != count or any(kind not in kinds for kind in types):
        raise CheckpointError(f"config.json: layer_types must hold {count} of {', '.join(kinds)}, not {shown(types)}")
    return types


@host
def windows(
    config: Mapping[str, Any], mixer: AttentionSpec, slides: Callable[[int], bool], default: int | None = None
) -> list[AttentionSpec]:
    """Return a layer's mixer for each layer: with the window sliding_window where it slides."""
    given = config.get("sliding_window") or None if config.get("layer_types") else config.get("sliding_window", default)
    size = None if given is None else integer(config, "sliding_window", default)
    kinds = layer_kinds(config, lambda number: size is not None and slides(number))
    if SLIDES in kinds and size is None:
        raise CheckpointError(f"config.json: layer_types holds {SLIDES}, but sliding_window is not set")
    return [replace(mixer, window=size if kind == SLIDES else None) for kind in kinds]


@host
def ropes_by_kind(
    config: Mapping[str, Any], mixers: Iterable[AttentionSpec], full: float, sliding: float, key: str | None = None
) -> list[AttentionSpec]:
    """Give layers their rotation: those with a window have one of their own.

    rope_parameters may hold one entry for each kind. In the classic spelling rope_scaling concerns the layers with
    full attention, and those that slide have their theta under ``key``. ``full`` and ``sliding`` are the thetas of the
    family.
    """
    mixers = list(mixers)
    ropes = {
        FULL: _rope_of_kind(config, mixers[0].head_dim, FULL, full, "rope_theta"),
        SLIDES: _rope_of_kind(config, mixers[0].head_dim, SLIDES, sliding, key),
    }
    return [replace(mixer, rope=ropes[FULL if mixer.window is None else SLIDES]) for mixer in mixers]


def _rope_of_kind(config: Mapping[str, Any], head_dim: int, kind: str, theta: float, key: str | None) -> RopeSpec:
    nested = config.get("rope_parameters")
    if isinstance(nested, dict) and {FULL, SLIDES} & nested.keys():
        own = {"rope_parameters": nested.get(kind), "rope_theta": None, "rope_scaling": None}
        return rope_spec({**config, **own}, head_dim, theta)
    if kind == SLIDES:
        return rope_spec({"rope_theta": config.get(key or "")}, head_dim, theta)
    return rope_spec(config, head_dim, theta)


@host
def context(config: Mapping[str, Any], ropes: Iterable[RopeSpec | None]) -> int:
    """State the number of positions: a scaling that stretches the trained length as the model runs adds to it."""
    length = trained = integer(config, "max_position_embeddings")
    for rope in ropes:
        params: dict[str, Any] = dict(rope.params) if rope else {}
        if rope and rope.scaling == "dynamic":
            length = max(length, int(trained * params["factor"]))
        if rope and rope.scaling == "yarn":
            length = max(length, int(params["original_max_position_embeddings"] * params["factor"]))
    return integer({"the context that factor makes": length}, "the context that factor makes")


@host
def moe_spec(
    config: Mapping[str, Any], experts: tuple[str, int], active: tuple[str, int], size: int, **fields: Any
) -> MoeSpec:
    """Read a mixture: ``experts`` and ``active`` are a key and the family's number where the config states none."""
    count = integer(config, *experts, most=4096)
    chosen, act = integer(config, *active, most=count), fields.pop("activation", None)
    act = act or activation(config, "hidden_act", "silu")
    if act not in ("silu", "gelu_tanh", "swiglu_clamped"):
        raise CheckpointError(f"config.json: experts have hidden_act silu or gelu_pytorch_tanh, not {act}")
    return MoeSpec(count, chosen, size, act, **fields)


@host
def layer_numbers(config: Mapping[str, Any], key: str, default: Iterable[int] = ()) -> set[int]:
    """Read a list of numbers of layers."""
    numbers = config.get(key)
    if numbers is not None and (not isinstance(numbers, list) or any(type(number) is not int for number in numbers)):
        raise CheckpointError(f"config.json: {key} must list numbers of layers, not {shown(numbers)}")
    return set(default if numbers is None else numbers)
