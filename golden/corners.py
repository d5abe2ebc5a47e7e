"""The corners where kernels go wrong, read off the arguments of a case: which it shows, which concern its operation.

An operation is concerned by what its arguments can hold: who takes ``q`` and ``k`` can have a query that sees no key,
who takes block tables can find them permuted. ``tests/golden/test_corners.py`` demands a case for each.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from golden.case import Case
from golden.values import Array

__all__ = ["CORNERS", "Corner", "concerned", "shown"]

Arguments = Mapping[str, Any]


class Corner(NamedTuple):
    name: str
    concerns: Callable[[Arguments], bool]
    shows: Callable[[Arguments], bool]


def _arrays(call: Arguments) -> dict[str, Array]:
    return {name: value for name, value in call.items() if isinstance(value, np.ndarray) and value.ndim}


def _floats(call: Arguments) -> dict[str, Array]:
    return {name: value for name, value in _arrays(call).items() if value.dtype.kind not in "iub"}


def _has(*names: str) -> Callable[[Arguments], bool]:
    return lambda call: all(name in call for name in names)


def _axes(call: Arguments) -> set[int]:
    return {size for value in _arrays(call).values() for size in value.shape}


def _has_size_1(call: Arguments) -> bool:
    return 1 in _axes(call)


def _is_past_a_tile(call: Arguments) -> bool:
    """Whether an axis, or all numbers of an array in a row, go one past a multiple of 16."""
    sizes = _axes(call) | {value.size for value in _arrays(call).values()}
    return any(size > 16 and size % 16 == 1 for size in sizes)


def _rows(call: Arguments) -> list[Array]:
    """Return the rows that a selection looks at."""
    chosen = [call[name] for name in ("logits", "probs", "scores") if name in call]
    return [row for x in chosen for row in np.asarray(x, np.float64).reshape(-1, x.shape[-1])]


def _has_ties(call: Arguments) -> bool:
    finite = [row[np.isfinite(row)] for row in _rows(call)]
    return any(len(np.unique(row)) < len(row) for row in finite)


def _largest(x: Array) -> float:
    wide = _wide(x)
    return float(np.abs(wide[np.isfinite(wide)]).max(initial=0))


def _is_large(call: Arguments) -> bool:
    return max(map(_largest, _floats(call).values()), default=0) >= 100


def _scores_are_large(call: Arguments) -> bool:
    return _largest(call["q"]) * _largest(call["k"]) >= 100


def _wide(x: Array) -> Array:
    return x.astype(np.float64)


def _lengths(call: Arguments) -> list[tuple[int, int]]:
    """Return T and S of each sequence."""
    if "context_lens" in call:
        queries = np.diff(call["cu_seqlens"]) if "cu_seqlens" in call else np.ones(len(call["context_lens"]), int)
        return [(int(T), int(S)) for T, S in zip(queries, call["context_lens"], strict=True)]
    return [(len(call["q"]), len(call["k"]))] if "k" in call else []


def _has_blind_row(call: Arguments) -> bool:
    mask = call.get("mask")
    hidden = mask is not None and not (mask if mask.dtype == bool else _wide(mask) > -np.inf).any(-1).all()
    return bool(hidden) or (call.get("causal", True) and any(T > S for T, S in _lengths(call)))


def _lengths_differ(call: Arguments) -> bool:
    return any(T != S for T, S in _lengths(call))


def _is_grouped(call: Arguments) -> bool:
    return bool(call["q"].shape[-2] > call.get("k", call.get("k_cache"))[..., :, :].shape[-2])


def _block_size(call: Arguments) -> int:
    return int(call["block_size"]) if "block_size" in call else int(call["k_cache"].shape[1])


def _last_block_is_partly_full(call: Arguments) -> bool:
    return any(S % _block_size(call) for _, S in _lengths(call))


def _blocks_are_permuted(call: Arguments) -> bool:
    tables = np.atleast_2d(call["block_tables"] if "block_tables" in call else call["block_table"])
    return any((np.diff(table[table >= 0]) < 0).any() for table in tables)


CORNERS = (
    Corner("size 1", lambda call: bool(_arrays(call)), _has_size_1),
    Corner("past a tile", lambda call: bool(_floats(call)), _is_past_a_tile),
    Corner("ties", lambda call: bool(_rows(call)), _has_ties),
    Corner("large", _has("logits"), _is_large),
    Corner("large", _has("q", "k"), _scores_are_large),
    Corner("blind row", lambda call: "q" in call and bool(_lengths(call)), _has_blind_row),
    Corner("T is not S", lambda call: "q" in call and bool(_lengths(call)), _lengths_differ),
    Corner("G > 1", lambda call: "q" in call and ("k" in call or "k_cache" in call), _is_grouped),
    Corner("partly full", _has("context_lens", "k_cache"), _last_block_is_partly_full),
    Corner("permuted", lambda call: "block_tables" in call or "block_table" in call, _blocks_are_permuted),
)
"""What every operation that it concerns must have a case of."""


def concerned(cases: Iterable[Case]) -> dict[str, set[str]]:
    """Return the corners that concern each operation, by name."""
    return _names(cases, lambda corner, call: corner.concerns(call))


def shown(cases: Iterable[Case]) -> dict[str, set[str]]:
    """Return the corners that the cases of each operation show, by name."""
    return _names(cases, lambda corner, call: corner.concerns(call) and corner.shows(call))


def _names(cases: Iterable[Case], holds: Callable[[Corner, Arguments], bool]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for case in cases:
        names = {corner.name for corner in CORNERS for call in case.calls if holds(corner, call)}
        found[case.op] = found.get(case.op, set()) | names
    return found
