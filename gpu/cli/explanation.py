"""--explain: what refimpl.bottleneck says about this model, this prompt and this machine."""

import statistics
import time
from collections.abc import Sequence
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
from refimpl.bottleneck.serving import Part, kv_bytes_per_token, kv_bytes_read, phase_parts, phase_seconds
from refimpl.contract import host

__all__ = ["draw", "explain_memory", "explain_phase", "explain_time", "explanation", "measure_decode", "phases"]

_DTYPE = "float32"  # of activations, cache and arithmetic


@host
def phases(model: Any, prompt: int, answer: int) -> dict[str, list[Part]]:
    """Return the parts of prefill, and those of the last decode step, by a title."""
    last = prompt + answer - 1
    return {f"prefill: {prompt} tokens": _parts(model, prompt), f"decode: 1 token after {last}": _parts(model, 1, last)}


def _parts(model: Any, queries: int, start: int = 0) -> list[Part]:
    held = {name: weight.nbytes for name, weight in model.weights.items()}
    kept = {"activations": _DTYPE, "cache": _DTYPE}
    return phase_parts(model.spec, queries, start, weights=held, chunk=CHUNK, **kept)


def _row(part: Part, device: Device, time: float) -> str:
    cost = part.cost
    share = f"{cost.flops / 1e9:9.3f} {cost.bytes / 1e6:9.2f} {cost.intensity:9.1f}  {bound(cost, device, _DTYPE):7}"
    return f"  {part.name:10} {part.shape:36} {share} {1e3 * time:9.3f}"


@host
def explain_phase(title: str, parts: Sequence[Part], device: Device) -> list[str]:
    """Return a table of a phase: every part with what bounds it, and the sum."""
    whole = Part("total", "", sum((part.cost for part in parts), Cost(0, 0)))
    head = f"  {'part':10} {'shapes':36} {'GFLOP':>9} {'MB':>9} {'FLOP/B':>9}  {'bound':7} {'ms least':>9}"
    rows = [_row(part, device, seconds(part.cost, device, _DTYPE)) for part in parts]
    return [title, head, *rows, _row(whole, device, phase_seconds(parts, device, _DTYPE))]


def _decode_seconds(model: Any, context: int, repeats: int = 15) -> float:
    """Return the median seconds of a decode step after ``context`` tokens."""
    ids = [7 * i % model.spec.vocab_size for i in range(context)]
    marks = [time.perf_counter() for _ in model.generate(ids, max_tokens=repeats + 1, ignore_eos=True)]
    return statistics.median(after - before for before, after in pairwise(marks))


@host
def measure_decode(model: Any) -> tuple[float, float]:
    """Measure decode steps after a short and a long text; return seconds without cache, and for each byte of cache.

    Math: seconds(S) = weights read / B_w + cache read(S) / B_c: a line in the cache bytes, whose intercept and slope
    give the speeds B_w and B_c at which this executor reads the weights and the cache.
    """
    lengths = (1, min(2048, model.context - 16))
    return fit_line([(float(kv_bytes_read(model.spec, 1, n, _DTYPE)), _decode_seconds(model, n)) for n in lengths])


@host
def explain_time(model: Any, context: int, device: Device, line: tuple[float, float]) -> str:
    """Return what a decode step takes after ``context`` tokens: predicted by the measured line, and at the least."""
    at_zero, slope = line
    speeds = f"weights at {weight_bytes_read(model.weights) / at_zero / 1e9:.1f} GB/s"
    speeds += f", cache at {1 / slope / 1e9:.1f} GB/s" if slope > 0 else ""
    predicted = at_zero + slope * kv_bytes_read(model.spec, 1, context, _DTYPE)
    least = phase_seconds(_parts(model, 1, context), device, _DTYPE)
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
    tables = [explain_phase(title, parts, device) for title, parts in phases(model, prompt, answer).items()]
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
    draw_roofline(path, f"{name} on this machine", this_machine(limits), phases(model, prompt, answer), _DTYPE)
