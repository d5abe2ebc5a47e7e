"""Are the kernels right on this device? By the cases of golden, and by the reference at sizes that users have."""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from gpu_bench import Bench, Gpu, Row

import refimpl
from golden.adapters import implementation
from golden.case import read_cases
from golden.tolerance import judge
from golden.verify import verify
from gpu import device
from gpu.registry import fused, variants
from gpu.report import ptx_hash
from refimpl.basics.linear import linear
from refimpl.llm.experts import grouped_linear
from refimpl.llm.quantize import dequantize

__all__ = ["equivalence", "golden_cases"]


def golden_cases(bench: Bench) -> Iterator[Row]:
    """Every kernel by the cases of outside sources, as ``python -m golden verify`` does it."""
    cases = read_cases() if isinstance(bench, Gpu) else read_cases()[::40]
    counts: dict[str, int] = {}
    for outcome in verify(cases, implementation("gpu", device.current())):
        counts[outcome.status] = counts.get(outcome.status, 0) + 1
        if outcome.status in ("fail", "error"):
            yield Row("golden", outcome.case.id, outcome.ulps, "ulp", f"WRONG: {outcome.kernel} {outcome.reason}")
    for status, count in counts.items():
        yield Row("golden", status, count, "cases")


def equivalence(bench: Bench) -> Iterator[Row]:
    """Every variant by the reference, at sizes that users have: at most twice the reference's own error and 4 ulp."""
    chosen = (*variants(), *fused())
    for variant in chosen if isinstance(bench, Gpu) else chosen[:: len(chosen) // 3]:
        arguments, op = variant.workload(), _reference(variant.op)
        with device.recording() as launches:
            results = _results(variant.call(**arguments))
        ran = {launch.kernel.name: ptx_hash(launch.kernel) for launch in launches}
        truths, plain = _results(op(**_wide(arguments))), _results(op(**arguments))
        for number, (result, truth, own) in enumerate(zip(results, truths, plain, strict=True)):
            verdict = judge(result, truth, str(result.dtype), source_error=_distance(own, truth))
            note = f"WRONG: {verdict.reason}" if not verdict.passed else ""
            yield Row("equivalence", f"{variant.op} [{variant.name}] {number}", verdict.ulps, "ulp", note, ran)


def _reference(name: str) -> Callable[..., Any]:
    if name == "linear_blocks":
        return lambda x, blocks, format: linear(x, dequantize(blocks, format))
    if name == "grouped_blocks":
        return lambda x, blocks, format, offsets: grouped_linear(x, _dequantize_stack(blocks, format), offsets)
    rooms = [importlib.import_module(f"refimpl.{room}") for room, _ in refimpl.CONTENTS]
    return next(vars(room)[name] for room in rooms if getattr(vars(room).get(name), "role", None) == "op")


def _dequantize_stack(blocks: np.ndarray, format: str) -> np.ndarray:
    """Return the matrices of experts."""
    return np.stack([dequantize(matrix, format) for matrix in blocks])


def _results(given: Any) -> list[Any]:
    """Return what an operation gave as NumPy arrays, a data class by its fields."""
    if is_dataclass(given):
        given = tuple(getattr(given, each.name) for each in fields(given))
    return [np.asarray(device.to_host(x)) for x in (given if isinstance(given, tuple) else (given,))]


def _distance(own: np.ndarray, truth: np.ndarray) -> float:
    """Return the largest error of what is finite, relative to the largest number of its row."""
    own, truth = np.atleast_1d(own.astype(np.float64)), np.atleast_1d(truth.astype(np.float64))
    finite = np.isfinite(own) & np.isfinite(truth)
    error, size = (np.where(finite, x, 0) for x in (own - truth, truth))
    scale = np.abs(size).max(-1, keepdims=True, initial=0)
    return float((np.abs(error) / np.where(scale > 0, scale, 1)).max(initial=0))


def _wide(arguments: dict[str, Any]) -> dict[str, Any]:
    floats = ("float32", "float16", "bfloat16")
    is_float = {name: str(getattr(x, "dtype", "")) in floats for name, x in arguments.items()}
    return {name: x.astype(np.float64) if is_float[name] else x for name, x in arguments.items()}
