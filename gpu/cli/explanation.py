"""--explain: what the formulas of gpu/explain.py say about this model, this prompt and this machine."""

import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

from gpu.executor.cpu import memory_bytes
from gpu.executor.plan import CHUNK
from gpu.explain import (
    Part,
    cache_bytes_per_token,
    cache_bytes_read,
    fit_line,
    phase_parts,
    total,
    weight_bytes,
    weight_bytes_read,
)
from gpu.machine import Machine, resident_memory
from refimpl.contract import host

__all__ = ["explain_memory", "explain_phase", "explain_time", "explanation", "measure_decode"]


def _row(part: Part, limits: Machine, seconds: float) -> str:
    share = f"{part.flops / 1e9:9.3f} {part.bytes_moved / 1e6:9.2f} {part.intensity:9.1f}  {part.bound(limits):7}"
    return f"  {part.name:10} {part.shape:36} {share} {1e3 * seconds:9.3f}"


@host
def explain_phase(title: str, parts: Sequence[Part], limits: Machine) -> list[str]:
    """Return a table of a phase: every part with what bounds it, and the sum."""
    whole, seconds = total(parts, limits)
    head = f"  {'part':10} {'shapes':36} {'GFLOP':>9} {'MB':>9} {'FLOP/B':>9}  {'bound':7} {'ms least':>9}"
    rows = [_row(part, limits, part.seconds(limits)) for part in parts]
    return [title, head, *rows, _row(whole, limits, seconds)]


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
    return fit_line([(float(cache_bytes_read(model.spec, 1, n)), _decode_seconds(model, n)) for n in lengths])


@host
def explain_time(model: Any, context: int, limits: Machine, line: tuple[float, float]) -> str:
    """Return what a decode step takes after ``context`` tokens: predicted by the measured line, and at the least."""
    at_zero, slope = line
    speeds = f"weights at {weight_bytes_read(model.weights) / at_zero / 1e9:.1f} GB/s"
    speeds += f", cache at {1 / slope / 1e9:.1f} GB/s" if slope > 0 else ""
    predicted = at_zero + slope * cache_bytes_read(model.spec, 1, context)
    least = total(phase_parts(model.spec, model.weights, 1, context), limits)[1]
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
    terms = f"weights {weights / 1e6:.1f} + cache {cache / 1e6:.1f} ({cache_bytes_per_token(model.spec):,} B x {tokens}"
    rest = f"tokens, in pages) + activations {work / 1e6:.1f} + interpreter {interpreter / 1e6:.1f}"
    return f"memory: {terms} {rest} = {(weights + cache + work + interpreter) / 1e6:.0f} MB"


@host
def explanation(model: Any, prompt: int, answer: int, limits: Machine) -> list[str]:
    """Return the lines of --explain for a prompt and an answer of so many tokens."""
    spec, weights, end = model.spec, model.weights, prompt + answer
    formats = sorted({w.format for w in weights.values() if len(w.shape) == 2})
    heads = f"{spec.num_heads} query and {spec.num_kv_heads} key heads of {spec.head_dim}"
    peak = f"{limits.bytes_per_s / 1e9:.1f} GB/s, {limits.flops_per_s / 1e9:.0f} GFLOP/s in float32"
    line = measure_decode(model)
    held = memory_bytes(spec, {}, min(2064, model.context)) + weight_bytes(weights)
    return [
        f"model: {spec.family}, {spec.num_layers} layers of {spec.hidden_size}, {heads}, "
        f"feed-forward {spec.ffn_size}, vocabulary {spec.vocab_size}",
        f"weights: {sum(prod(w.shape) for w in weights.values()) / 1e6:.1f} M in {weight_bytes(weights) / 1e6:.1f} MB "
        f"({', '.join(formats)})",
        f"machine: {peak}; below {limits.ridge:.1f} FLOP a byte memory bounds, above it arithmetic",
        *explain_phase(f"prefill: {prompt} tokens", phase_parts(spec, weights, prompt, chunk=CHUNK), limits),
        *explain_phase(f"decode: 1 token after {end - 1}", phase_parts(spec, weights, 1, end - 1), limits),
        explain_memory(model, end, max(resident_memory() - held, 0)),
        explain_time(model, end - 1, limits, line),
    ]
