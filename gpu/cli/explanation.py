"""--explain: what refimpl.bottleneck says about this model, this prompt and this machine."""

import statistics
import time
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from gpu.cli.plot import draw_roofline
from gpu.executor.cpu import memory_bytes
from gpu.executor.plan import CHUNK
from gpu.explain import fit_line, this_machine, weight_bytes, weight_bytes_read
from gpu.machine import Machine, resident_memory
from refimpl.bottleneck.roofline import Cost, Device, bound, ridge, seconds
from refimpl.bottleneck.serving import kv_bytes_per_token, kv_bytes_read, phase_costs, phase_seconds
from refimpl.contract import UsageError, host
from refimpl.models.spec import ModelSpec, weight_shapes

__all__ = [
    "draw", "explain_memory", "explain_phase", "explain_time", "explanation", "measure_decode", "phases", "title",
]

_DTYPE = "float32"  # of activations, cache and arithmetic


@host
def phases(model: Any, prompt: int, answer: int) -> dict[tuple[int, int], dict[str, Cost]]:
    """Return what the parts of prefill cost, and those of the last decode step, by (tokens, tokens before them)."""
    return {phase: _costs(model, *phase) for phase in ((prompt, 0), (1, prompt + answer - 1))}


@host
def title(queries: int, start: int) -> str:
    """Name a phase.

    >>> title(5, 0), title(1, 7)
    ('prefill: 5 tokens', 'decode: 1 token after 7')
    """
    return f"decode: 1 token after {start}" if start else f"prefill: {queries} tokens"


def _costs(model: Any, queries: int, start: int = 0) -> dict[str, Cost]:
    held = {name: weight.nbytes for name, weight in model.weights.items()}
    kept = {"activations": _DTYPE, "cache": _DTYPE}
    return phase_costs(model.spec, queries, start, weights=held, chunk=CHUNK, **kept)


def _shapes(spec: ModelSpec, queries: int, start: int) -> dict[str, str]:
    """Return the shapes of the parts in words."""
    known = weight_shapes(spec)
    layer = {name.removeprefix("layers.0."): known[name] for name in known if name.startswith("layers.0.")}
    words = {name: f"[{queries} {s[1]}] [{s[1]} {s[0]}] x {spec.num_layers}" for name, s in layer.items() if len(s) > 1}
    q, k = f"[{queries} {spec.num_heads} {spec.head_dim}]", f"[{start + queries} {spec.num_kv_heads} {spec.head_dim}]"
    head = f"[1 {spec.hidden_size}] [{spec.hidden_size} {spec.vocab_size}]"
    return words | {"attention": f"{q} {k} x {spec.num_layers}", "head": head, "total": ""}


@host
def explain_phase(spec: ModelSpec, phase: tuple[int, int], costs: Mapping[str, Cost], device: Device) -> list[str]:
    """Return a table of a phase: every part with what bounds it, and the sum."""
    shapes, times = _shapes(spec, *phase), {name: seconds(cost, device, _DTYPE) for name, cost in costs.items()}
    head = f"  {'part':10} {'shapes':36} {'GFLOP':>9} {'MB':>9} {'FLOP/B':>9}  {'bound':7} {'ms least':>9}"
    lines, whole = [title(*phase), head], sum(costs.values(), Cost(0, 0))
    for name, cost in [*costs.items(), ("total", whole)]:
        numbers = f"{cost.flops / 1e9:9.3f} {cost.bytes / 1e6:9.2f} {cost.intensity:9.1f}"
        time = times.get(name, sum(times.values()))
        lines.append(f"  {name:10} {shapes[name]:36} {numbers}  {bound(cost, device, _DTYPE):7} {1e3 * time:9.3f}")
    return lines


def _decode_seconds(model: Any, length: int) -> float:
    """Return the median seconds of a decode step after ``length`` tokens."""
    ids = [7 * i % model.spec.vocab_size for i in range(length)]
    repeats = min(15, model.context - length - 1)
    marks = [time.perf_counter() for _ in model.generate(ids, max_tokens=repeats + 1, ignore_eos=True)]
    return statistics.median(after - before for before, after in pairwise(marks))


@host
def measure_decode(model: Any) -> tuple[float, float]:
    """Measure decode steps after a short and a long text; return seconds without cache, and for each byte of cache.

    Math: seconds(S) = weights read / B_w + cache read(S) / B_c: a line in the cache bytes, whose intercept and slope
    give the speeds B_w and B_c at which this executor reads the weights and the cache.
    """
    if model.context < 3:
        raise UsageError(f"a context of {model.context} leaves no decode step to measure: it takes 3 tokens")
    lengths = (1, max(1, min(2048, model.context - 16)))
    return fit_line([(float(kv_bytes_read(model.spec, 1, n, _DTYPE)), _decode_seconds(model, n)) for n in lengths])


@host
def explain_time(model: Any, context: int, device: Device, line: tuple[float, float]) -> str:
    """Return what a decode step takes after ``context`` tokens: predicted by the measured line, and at the least."""
    at_zero, slope = line
    speeds = f"weights at {weight_bytes_read(model.weights) / at_zero / 1e9:.1f} GB/s"
    speeds += f", cache at {1 / slope / 1e9:.1f} GB/s" if slope > 0 else ""
    predicted = at_zero + slope * kv_bytes_read(model.spec, 1, context, _DTYPE)
    least = phase_seconds(_costs(model, 1, context), device, _DTYPE)
    step = f"{1e3 * predicted:.2f} ms a token after {context} tokens ({1 / predicted:.0f} tok/s)"
    return f"time: this executor reads {speeds}: {step}; the machine's limit is {1e3 * least:.2f} ms"


@host
def explain_memory(model: Any, tokens: int, interpreter: int) -> str:
    """Return the memory formula with its numbers: weights + cache a token x tokens + activations + interpreter.

    The executor holds activations for a whole chunk of tokens and its cache in whole pages. What is left of the
    resident memory belongs to the interpreter: Python, Numba, the compiled kernels, the tokenizer.
    """
    weights, work = weight_bytes(model.weights), memory_bytes(model.spec, {}, 0)
    cache = memory_bytes(model.spec, {}, tokens) - work
    token = kv_bytes_per_token(model.spec, _DTYPE)
    terms = f"weights {weights / 1e6:.1f} + cache {cache / 1e6:.1f} ({token:,} B x {tokens}"
    rest = f"tokens, in pages) + activations {work / 1e6:.1f} + interpreter {interpreter / 1e6:.1f}"
    return f"memory: {terms} {rest} = {(weights + cache + work + interpreter) / 1e6:.0f} MB"


@host
def explanation(model: Any, prompt: int, answer: int, limits: Machine) -> list[str]:
    """Return the lines of --explain for a prompt and an answer of so many tokens."""
    spec, weights, end, device = model.spec, model.weights, prompt + answer, this_machine(limits)
    formats = sorted({w.format for w in weights.values() if len(w.shape) == 2})
    heads = f"{spec.num_heads} query and {spec.num_kv_heads} key heads of {spec.head_dim}"
    peak = f"{limits.bytes_per_s / 1e9:.1f} GB/s, {limits.flops_per_s / 1e9:.0f} GFLOP/s in {_DTYPE}"
    line = measure_decode(model)
    held = memory_bytes(spec, {}, min(2064, model.context)) + weight_bytes(weights)
    tables = [explain_phase(spec, phase, costs, device) for phase, costs in phases(model, prompt, answer).items()]
    return [
        f"model: {spec.family}, {spec.num_layers} layers of {spec.hidden_size}, {heads}, "
        f"feed-forward {spec.ffn_size}, vocabulary {spec.vocab_size}",
        f"weights: {sum(prod(w.shape) for w in weights.values()) / 1e6:.1f} M in {weight_bytes(weights) / 1e6:.1f} MB "
        f"({', '.join(formats)})",
        f"machine: {peak}; below {ridge(device, _DTYPE):.1f} FLOP a byte memory bounds, above it arithmetic",
        *(row for table in tables for row in table),
        explain_memory(model, end, max(resident_memory() - held, 0)),
        explain_time(model, end - 1, device, line),
    ]


@host
def draw(path: str, model: Any, prompt: int, answer: int, limits: Machine) -> None:
    """Draw what --explain says of the phases on this machine's roofline."""
    name = Path(model.source.path).stem or model.spec.family
    titled = {title(*phase): costs for phase, costs in phases(model, prompt, answer).items()}
    draw_roofline(path, f"{name} on this machine", this_machine(limits), titled, _DTYPE)
