"""python -m refimpl.models [NAME ...]: the families of models, as their files state them.

Of each: the model types and what is read of their config.json, the GGUF files that are understood, and what published
models of it are made of: of a family or model type that is named, all known here; else the smallest of each type.
"""

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isclose
from types import ModuleType
from typing import Any

from refimpl.bottleneck.serving import kv_bytes_per_token, kv_bytes_read, parameters
from refimpl.command import Parser, guard, run_program
from refimpl.contract import UsageError, host
from refimpl.interrupt import Brake
from refimpl.models.encoder_spec import EncoderSpec, StackSpec
from refimpl.models.families import families, read_spec
from refimpl.models.published import published
from refimpl.models.reading import KEYS
from refimpl.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec

__all__ = ["describe_family", "describe_layer", "describe_spec", "family_table", "main"]

_WIDTH = 120
_EMPTY = "nothing of their own"


@host
def describe_layer(layer: LayerSpec) -> str:
    """Say what a layer consists of: mixer, network, norms.

    >>> describe_layer(LayerSpec(AttentionSpec(8, 2, 64, window=512), MlpSpec(256, "silu")))
    'attention of 8 on 2 heads of 64, window 512, no rotation; gated silu 256; norms before'
    """
    mixer, network = layer.mixer, layer.network
    words = [f"attention of {mixer.num_heads} on {mixer.num_kv_heads} heads of {mixer.head_dim}", *_details(mixer)]
    return f"{', '.join(words)}; {_network(network)}; norms {layer.norms}"


def _details(mixer: AttentionSpec) -> Iterator[str]:
    yield from (f"{name} {value}" for name in ("window", "chunk") if (value := getattr(mixer, name)))
    if mixer.rope is None:
        yield "no rotation"
    else:
        part = "" if mixer.rope.dim == mixer.head_dim else f" of {mixer.rope.dim}"
        scaled = "" if mixer.rope.scaling == "none" else f" {mixer.rope.scaling}"
        yield f"rotary{scaled}{part} by {mixer.rope.theta:g}"
    yield from ([f"queries and keys normalised, {mixer.qk_norm}"] if mixer.qk_norm != "none" else [])
    if mixer.scale is not None and not isclose(mixer.scale, mixer.head_dim**-0.5):
        yield f"scale {mixer.scale:g}"
    yield from ([f"scores capped at {mixer.softcap:g}"] if mixer.softcap is not None else [])
    yield from (["queries that grow"] if mixer.temperature is not None else [])
    yield from (["sinks"] if mixer.sinks else [])
    yield from (["biases " + " ".join(mixer.biases)] if mixer.biases else [])


def _network(network: MlpSpec | MoeSpec) -> str:
    if isinstance(network, MlpSpec):
        return f"{'gated ' if network.gated else ''}{network.activation} {network.size}"
    shared = f" and one of {network.shared_size} for all" if network.shared_size else ""
    experts = f"{network.num_active} of {network.num_experts} experts by {network.router}"
    return f"{experts}, gated {network.activation} {network.size}{shared}"


@host
def describe_spec(spec: Any) -> list[str]:
    """Say what a model is made of: its kinds of layers, its cache and its limits."""
    if isinstance(spec, ModelSpec):
        kinds = Counter(describe_layer(layer) for layer in spec.layers)
        layers = [f"{count} x {words}" for words, count in kinds.items()]
        return [*layers, *_around(spec), _cache(spec), _limits(spec)]
    most = spec.max_positions or "any number of"
    whole = isinstance(spec, EncoderSpec)
    stacks = {"encoder": spec.stack} if whole else {"encoder": spec.encoder, "decoder": spec.decoder}
    return [*(f"{name}: {_stack(stack)}" for name, stack in stacks.items()), f"limits: {most} positions"]


def _around(spec: ModelSpec) -> list[str]:
    """Say what multiplies and caps around the layers, if anything does."""
    scales = {"embeddings": spec.embedding_scale, "what layers add": spec.residual_scale, "logits": spec.logit_scale}
    words = [f"{what} times {value:.4g}" for what, value in scales.items() if value != 1]
    words += [f"gains stored less {spec.gain_offset:g}"] if spec.gain_offset else []
    words += [f"logits capped at {spec.logit_softcap:g}"] if spec.logit_softcap is not None else []
    return [f"around: {', '.join(words)}"] if words else []


def _stack(stack: StackSpec) -> str:
    how = f"{stack.buckets} buckets of distances" if stack.buckets else "learned positions"
    crosses = ", attention to the encoder" if stack.crosses else ""
    order = "before" if stack.norm_first else "after"
    heads = f"{stack.num_layers} x attention of {stack.num_heads} heads of {stack.head_dim}{crosses}"
    return f"{heads}; {_network(stack.network)}; {stack.norm} norms {order}; {how}"


def _cache(spec: ModelSpec) -> str:
    least, whole = (kv_bytes_read(spec, 1, length - 1) for length in (1, spec.max_positions))
    token = kv_bytes_per_token(spec)
    windows = "" if whole == least * spec.max_positions else ", windows keep what they see"
    return f"cache: {token:,} B a token in float16, {whole / 1e6:,.1f} MB for all{windows}"


def _limits(spec: ModelSpec) -> str:
    total, active = parameters(spec)
    met = f", {active / 1e6:,.1f} M met by a token" if active < total else ""
    kind = "learned positions" if spec.learned_positions else "positions"
    return f"limits: {spec.max_positions} {kind}, vocabulary {spec.vocab_size}, {total / 1e6:,.1f} M parameters{met}"


@host
def describe_family(name: str, family: ModuleType, every: bool = False) -> list[str]:
    """Return the lines of a family: what its file says of itself, and published models of it."""
    what = " ".join((family.__doc__ or "").split("\n\n")[0].split())
    lines = _wrapped(f"{name}: ", what)
    types: Mapping[str, frozenset[str]] = family.MODEL_TYPES
    for kind, keys in types.items():
        own = sorted(keys - KEYS if keys >= KEYS else keys - {"model_type"})
        lines += _wrapped(f"  {kind}: ", ", ".join(own) or _EMPTY)
    lines += [f"  GGUF: {', '.join(family.GGUF)}"] if getattr(family, "GGUF", None) else []
    for model, spec in _models(types, every):
        lines += [f"  {model}", *(row for text in describe_spec(spec) for row in _wrapped("    ", text))]
    return lines


def _models(types: Iterable[str], every: bool) -> list[tuple[str, Any]]:
    """Return the published models of some types by name: all, or the smallest of each type."""
    chosen: list[tuple[str, Any]] = []
    for kind in types:
        configs = {name: c for name, c in (published() | published("encoders")).items() if c["model_type"] == kind}
        models = [(name, read_spec(config)) for name, config in configs.items()]
        least = sorted(models, key=lambda model: model[1].hidden_size * getattr(model[1], "num_layers", 1))
        chosen += models if every else least[:1]
    return chosen


def _wrapped(start: str, text: str) -> list[str]:
    return textwrap.wrap(start + text, _WIDTH, subsequent_indent="      ", break_on_hyphens=False)


@host
def family_table(names: Sequence[str] = ()) -> list[str]:
    """Return the lines of the table, of all families or of those named."""
    known = families()
    chosen = {name: known[name] for name in known if not names or {name, *known[name].MODEL_TYPES} & set(names)}
    unknown = [name for name in names if not any(name in {key, *known[key].MODEL_TYPES} for key in known)]
    if unknown:
        raise UsageError(f"there is no family or model type {unknown[0]!r}; families are {', '.join(known)}")
    head = _wrapped("", "read of every decoder: " + ", ".join(sorted(KEYS - {"model_type"})))
    told = (describe_family(name, family, bool(names)) for name, family in chosen.items())
    return [*head, *(line for lines in told for line in ["", *lines])]


@host
def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; return the exit code, never raise."""

    def work(_: Brake) -> int:
        parser = Parser(prog="python -m refimpl.models", description=(__doc__ or "").split(": ", 1)[1])
        parser.add_argument("names", nargs="*", metavar="NAME", help="a family or a model type (default: all)")
        print("\n".join(family_table(parser.parse_args(argv).names)))
        return 0

    return guard("refimpl.models", work)


if __name__ == "__main__":
    run_program(main)
