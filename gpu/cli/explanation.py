"""--explain: what refimpl.bottleneck says about this model, this prompt and this machine."""

import statistics
import time
from itertools import pairwise
from typing import Any

from gpu.cli.costs import DTYPE, describe, explain_phase, part_costs, phases
from gpu.executor.cpu import memory_bytes
from gpu.explain import fit_line, this_machine, weight_bytes, weight_bytes_read
from gpu.machine import Machine, resident_memory
from refimpl.bottleneck.roofline import Device
from refimpl.bottleneck.serving import kv_bytes_per_token, kv_bytes_read, phase_seconds
from refimpl.contract import UsageError, host

__all__ = ["explain_memory", "explain_time", "explanation", "measure_decode"]


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
    return fit_line([(float(kv_bytes_read(model.spec, 1, n, DTYPE)), _decode_seconds(model, n)) for n in lengths])


@host
def explain_time(model: Any, context: int, device: Device, line: tuple[float, float]) -> str:
    """Return what a decode step takes after ``context`` tokens: predicted by the measured line, and at the least."""
    at_zero, slope = line
    speeds = f"weights at {weight_bytes_read(model.weights, model.spec) / at_zero / 1e9:.1f} GB/s"
    speeds += f", cache at {1 / slope / 1e9:.1f} GB/s" if slope > 0 else ""
    predicted = at_zero + slope * kv_bytes_read(model.spec, 1, context, DTYPE)
    least = phase_seconds(part_costs(model, 1, context), device, DTYPE)
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
    token = kv_bytes_per_token(model.spec, DTYPE)
    terms = f"weights {weights / 1e6:.1f} + cache {cache / 1e6:.1f} ({token:,} B x {tokens}"
    rest = f"tokens, in pages) + activations {work / 1e6:.1f} + interpreter {interpreter / 1e6:.1f}"
    return f"memory: {terms} {rest} = {(weights + cache + work + interpreter) / 1e6:.0f} MB"


@host
def explanation(model: Any, prompt: int, answer: int, limits: Machine) -> list[str]:
    """Return the lines of --explain for a prompt and an answer of so many tokens."""
    spec, weights, end, device = model.spec, model.weights, prompt + answer, this_machine(limits)
    line = measure_decode(model)
    held = memory_bytes(spec, {}, min(2064, model.context)) + weight_bytes(weights)
    tables = [explain_phase(spec, phase, costs, device) for phase, costs in phases(model, prompt, answer).items()]
    return [
        *describe(model, limits, prompt),
        *(row for table in tables for row in table),
        explain_memory(model, end, max(resident_memory() - held, 0)),
        explain_time(model, end - 1, device, line),
    ]
