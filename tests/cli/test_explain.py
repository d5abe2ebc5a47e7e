"""The formulas of --explain, against counts made by hand and by loops."""

import math

import numpy as np
import pytest

from gpu.explain import (
    Stored,
    attention_pairs,
    cache_bytes_per_token,
    cache_bytes_read,
    phase_parts,
    stored,
    total,
    weight_bytes,
    weight_bytes_read,
)
from gpu.machine import Machine
from refimpl.llm.quantize import Tensor
from refimpl.models.spec import ModelSpec, RopeSpec, weight_shapes


def _spec(tied: bool = True, windows: tuple[int | None, ...] = (None, 4)) -> ModelSpec:
    return ModelSpec("llama", 96, 32, 2, 4, 2, 8, 64, 128, "rms", 1e-5, "silu", RopeSpec(8), windows, tied)


def _weights(spec: ModelSpec, dtype: str | None = None) -> dict[str, Stored]:
    shapes = weight_shapes(spec).items()
    return stored({name: Tensor("float32", shape, np.zeros(shape, np.float32)) for name, shape in shapes}, dtype)


@pytest.mark.parametrize("window", [None, 1, 3, 50])
@pytest.mark.parametrize(("queries", "start"), [(1, 0), (1, 9), (7, 0), (7, 2), (7, 5)])
def test_pairs_are_those_a_loop_counts(queries: int, start: int, window: int | None) -> None:
    counted = sum(
        1 for q in range(start, start + queries) for k in range(q + 1) if window is None or q - k < window
    )
    assert attention_pairs(queries, start, window) == counted


@pytest.mark.parametrize(("queries", "start"), [(1, 0), (1, 9), (3, 9)])
def test_cache_is_read_inside_the_windows(queries: int, start: int) -> None:
    spec = _spec()
    seen = [
        {k for q in range(start, start + queries) for k in range(q + 1) if window is None or q - k < window}
        for window in spec.windows
    ]
    assert cache_bytes_read(spec, queries, start) == sum(map(len, seen)) * 2 * 2 * 8 * 4


def test_bytes_of_smollm2() -> None:
    spec = ModelSpec("llama", 49152, 576, 30, 9, 3, 64, 1536, 8192, "rms", 1e-5, "silu", None, (None,) * 30, True)
    assert cache_bytes_per_token(spec) == 46080


def test_a_tied_embedding_is_read_and_an_untied_one_looked_up() -> None:
    tied, untied = _weights(_spec()), _weights(_spec(tied=False))
    assert weight_bytes_read(tied) == weight_bytes(tied)
    assert weight_bytes_read(untied) == weight_bytes(untied) - 96 * 32 * 4 == weight_bytes_read(tied)


def test_converted_matrices_are_counted_converted() -> None:
    whole, half = _weights(_spec()), _weights(_spec(), "bfloat16")
    vectors = sum(w.nbytes for w in whole.values() if len(w.shape) == 1)
    assert weight_bytes(half) - vectors == (weight_bytes(whole) - vectors) // 2


def test_flops_of_a_step_are_two_a_weight_and_four_a_pair() -> None:
    spec = _spec()
    weights = _weights(spec)
    matrices = sum(math.prod(w.shape) for w in weights.values() if len(w.shape) == 2)
    whole, seconds = total(phase_parts(spec, weights, 1, 9), Machine(1e9, 1e12))
    assert whole.flops == 2 * matrices + 4 * 4 * 8 * (10 + 4)
    norms = sum(w.nbytes for w in weights.values() if len(w.shape) == 1)
    moved = weight_bytes_read(weights) - norms + cache_bytes_read(spec, 1, 9) + cache_bytes_per_token(spec)
    assert whole.bytes_moved == moved and seconds == pytest.approx(moved / 1e9)


def test_what_bounds_a_phase_turns_at_the_ridge() -> None:
    spec = _spec(windows=(None, None))
    weights, limits = _weights(spec), Machine(1e9, 8e9)
    part = {queries: phase_parts(spec, weights, queries, chunk=64)[0] for queries in (1, 64)}
    assert part[1].bound(limits) == "memory" and part[64].bound(limits) == "compute"
    assert part[64].seconds(limits) == part[64].flops / 8e9 and part[1].bytes_moved == part[64].bytes_moved
