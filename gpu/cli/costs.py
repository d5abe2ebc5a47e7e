"""What a model is and what its phases cost, in words and tables: what both forms of --explain say."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu.cli.plot import draw_roofline
from gpu.executor.plan import CHUNK
from gpu.explain import expert_bytes, this_machine, weight_bytes
from gpu.machine import Machine
from refimpl.bottleneck.roofline import Cost, Device, bound, ridge, seconds
from refimpl.bottleneck.serving import (
    experts_reached,
    kv_bytes_per_token,
    kv_bytes_read,
    mixture_of,
    parameters,
    phase_costs,
)
from refimpl.contract import host
from refimpl.models.spec import LayerSpec, ModelSpec, MoeSpec, weight_shapes

__all__ = ["DTYPE", "describe", "draw", "explain_phase", "layer_kinds", "part_costs", "phases", "title"]

DTYPE = "float32"
"""Of the CPU executor's activations, cache and arithmetic."""


@host
def phases(
    model: Any, prompt: int, answer: int, kept: str = DTYPE, chunk: int | None = CHUNK
) -> dict[tuple[int, int], dict[str, Cost]]:
    """Return what the parts of prefill cost, and those of the last decode step, by (tokens, tokens before them).

    ``kept`` is the dtype of activations and cache; the weights are read once for every ``chunk`` of tokens.
    """
    return {phase: part_costs(model, *phase, kept, chunk) for phase in ((prompt, 0), (1, prompt + answer - 1))}


@host
def title(queries: int, start: int) -> str:
    """Name a phase.

    >>> title(5, 0), title(1, 7)
    ('prefill: 5 tokens', 'decode: 1 token after 7')
    """
    return f"decode: 1 token after {start}" if start else f"prefill: {queries} tokens"


@host
def part_costs(
    model: Any, queries: int, start: int = 0, kept: str = DTYPE, chunk: int | None = CHUNK
) -> dict[str, Cost]:
    """Return what the parts of a phase cost with the weights as they are held."""
    held = {name: weight.nbytes for name, weight in model.weights.items()}
    return phase_costs(model.spec, queries, start, weights=held, chunk=chunk, activations=kept, cache=kept)


@host
def layer_kinds(spec: ModelSpec) -> str:
    """Say what kinds of layers there are, and how many of each.

    >>> from refimpl.models.spec import AttentionSpec, MlpSpec
    >>> dense, sparse = MlpSpec(64, "silu"), MoeSpec(8, 2, 16, shared_size=32)
    >>> layers = LayerSpec(AttentionSpec(1, 1, 8), dense), *[LayerSpec(AttentionSpec(1, 1, 8, window=4), sparse)] * 2
    >>> layer_kinds(ModelSpec("", 9, 8, layers, 32))
    '1 with all keys, feed-forward 64; 2 with 4 keys, 2 of 8 experts of 16, one of 32 for all'
    """
    kinds = Counter(_words(layer) for layer in spec.layers)
    return "; ".join(f"{count} with {words}" for words, count in kinds.items())


def _words(layer: LayerSpec) -> str:
    most, network = layer.mixer.window or layer.mixer.chunk, layer.network
    keys = f"{most} keys" if most else "all keys"
    if not isinstance(network, MoeSpec):
        return f"{keys}, feed-forward {network.size}"
    shared = f", one of {network.shared_size} for all" if network.shared_size else ""
    return f"{keys}, {network.num_active} of {network.num_experts} experts of {network.size}{shared}"


def _shapes(spec: ModelSpec, queries: int, start: int, chunk: int | None) -> dict[str, str]:
    """Return the shapes of the parts in words, and how many layers have them."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for name, shape in weight_shapes(spec).items():
        if name.startswith("layers.") and len(shape) > 1:
            moe = mixture_of(spec, name)
            reached = f" {experts_reached(moe, min(queries, chunk or queries)):.3g} of {moe.num_experts}"
            rows = f"[{queries * moe.num_active} {shape[-1]}] [{shape[-1]} {shape[-2]}]"
            found[name.split(".", 2)[2]][rows + (reached if len(shape) > 2 else "")] += 1
    for layer in spec.layers:
        alone, most = replace(spec, layers=(layer,)), layer.mixer.window or layer.mixer.chunk
        keys = kv_bytes_read(alone, queries, start) // kv_bytes_per_token(alone)
        rows = f"[{queries} {spec.num_heads} {spec.head_dim}] [{keys} {spec.num_kv_heads} {spec.head_dim}]"
        found[f"attention {most}" if most else "attention"][rows] += 1
    words = {part: ", ".join(f"{rows} x {n}" for rows, n in kinds.items()) for part, kinds in found.items()}
    return words | {"head": f"[1 {spec.hidden_size}] [{spec.hidden_size} {spec.vocab_size}]", "total": ""}


@host
def explain_phase(
    spec: ModelSpec, phase: tuple[int, int], costs: Mapping[str, Cost], device: Device, dtype: str = DTYPE,
    chunk: int | None = CHUNK,
) -> list[str]:  # fmt: skip
    """Return a table of a phase: every part with what bounds it, and the sum."""
    shapes, times = _shapes(spec, *phase, chunk), {name: seconds(cost, device, dtype) for name, cost in costs.items()}
    parts = costs | {"total": sum(costs.values(), Cost(0, 0))}
    part, shape = (max(map(len, words)) for words in (parts, (shapes[name] for name in parts)))
    head = f"{'GFLOP':>9} {'MB':>9} {'FLOP/B':>9}  {'bound':7} {'ms least':>9}"
    lines = [title(*phase), f"  {'part':{part}} {'shapes':{shape}} {head}"]
    for name, cost in parts.items():
        numbers = f"{cost.flops / 1e9:9.3f} {cost.bytes / 1e6:9.2f} {cost.intensity:9.1f}"
        least = 1e3 * times.get(name, sum(times.values()))
        lines.append(f"  {name:{part}} {shapes[name]:{shape}} {numbers}  {bound(cost, device, dtype):7} {least:9.3f}")
    return lines


@host
def describe(model: Any, limits: Machine, prompt: int) -> list[str]:
    """Return what the model is: its layers, parameters and experts; and what the machine can do."""
    spec, weights, device = model.spec, model.weights, this_machine(limits)
    total, active = parameters(spec)
    heads = f"{spec.num_heads} query and {spec.num_kv_heads} key heads of {spec.head_dim}"
    table = 0 if spec.tied_embeddings else spec.vocab_size * spec.hidden_size
    beside = f" ({(active - table) / 1e6:.1f} M beside the table of inputs)" if table else ""
    met = "" if active == total else f", {active / 1e6:.1f} M of which a token meets{beside},"
    formats = ", ".join(sorted({weight.format for weight in weights.values() if len(weight.shape) > 1}))
    peak = f"{limits.bytes_per_s / 1e9:.1f} GB/s, {limits.flops_per_s / 1e9:.0f} GFLOP/s in {DTYPE}"
    return [
        f"model: {spec.family}, {spec.num_layers} layers of {spec.hidden_size}, {heads}, vocabulary {spec.vocab_size}",
        f"layers: {layer_kinds(spec)}",
        f"weights: {total / 1e6:.1f} M{met} in {weight_bytes(weights) / 1e6:.1f} MB ({formats})",
        *_experts(model, prompt),
        f"machine: {peak}; below {ridge(device, DTYPE):.1f} FLOP a byte memory bounds, above it arithmetic",
    ]


def _experts(model: Any, prompt: int) -> list[str]:
    """Say of a mixture how many experts a phase reaches, and the bytes of them that it reads."""
    whole, together = expert_bytes(model.weights) / 1e6, min(prompt, CHUNK)
    moe = next((layer.network for layer in model.spec.layers if isinstance(layer.network, MoeSpec)), None)
    if moe is None:
        return []
    step, most = (experts_reached(moe, tokens) / moe.num_experts for tokens in (1, together))
    return [
        f"experts: {whole:.1f} MB, of which a decode step reads {step * whole:.1f} MB, {moe.num_active} in a layer; "
        f"{together} tokens of a prompt reach {most * moe.num_experts:.1f} of {moe.num_experts}: {most * whole:.1f} MB"
    ]


@host
def draw(path: str, model: Any, prompt: int, answer: int, limits: Machine) -> None:
    """Draw what --explain says of the phases on this machine's roofline."""
    known = Path(model.source.path)
    name = known.name if known.suffix != ".gguf" else known.stem
    titled = {title(*phase): costs for phase, costs in phases(model, prompt, answer).items()}
    draw_roofline(path, f"{name} on this machine", this_machine(limits), titled, DTYPE)
