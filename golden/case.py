"""A case: one operation, its inputs, what it must give, who says so, and the wrong implementation it rejects.

``vectors/NAME.json`` holds a list of cases, ``vectors/NAME.npz`` their larger arrays. The fields of a case in JSON:

    id        stable name, ``operation.corner``
    op        the operation, by the name it has in the reference
    corner    what this case is about, in a sentence
    source    who says so: hand, closed form, a paper, a library with its version
    inputs    arrays by parameter name          (see values.py)
    keywords  the other arguments, by name
    calls     optional: what each of several calls in a row changes of inputs and keywords; their results in a row
    expected  the results, in float64 (or as integers) on the inputs as they are stored
    dtype     the dtype of each result
    compare   "float", by the rule of tolerance.py, or "exact"
    terms     n of the tolerance: the terms of the longest sum behind a result, times the square of what amplifies it
    derive    optional: the second derivation that makes ``expected`` again (derive/)
    rejects   the planted wrong implementations that the case must reject (planted/)
    row, choice   optional: the row of the conventions that it pins, and the choice there
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from golden.values import Array, from_json

__all__ = ["Case", "read_cases", "read_file", "vector_files"]


@dataclass(frozen=True)
class Case:
    id: str
    op: str
    corner: str
    source: str
    calls: tuple[Mapping[str, Any], ...]  # each with all its arguments
    expected: tuple[Array, ...]
    dtype: tuple[str, ...]
    compare: str
    terms: int
    rejects: tuple[str, ...]
    derive: str | None = None
    row: int | None = None
    choice: str | None = None


def vector_files() -> list[Any]:
    """Return the JSON files of cases, by name."""
    folder = resources.files("golden") / "vectors"
    return sorted((path for path in folder.iterdir() if path.name.endswith(".json")), key=lambda path: path.name)


def read_file(path: Any) -> tuple[list[dict[str, Any]], dict[str, Array]]:
    """Read the raw cases of one file and the arrays beside it."""
    beside = path.parent / path.name.replace(".json", ".npz")
    arrays = {}
    if beside.is_file():
        with beside.open("rb") as file, np.load(file, allow_pickle=False) as held:
            arrays = {key: held[key] for key in held.files}
    return json.loads(path.read_text(encoding="utf-8")), arrays


@cache
def read_cases() -> tuple[Case, ...]:
    """Return every case, in the order of the files.

    >>> len({case.id for case in read_cases()}) == len(read_cases())
    True
    """
    cases = []
    for path in vector_files():
        raw, arrays = read_file(path)
        cases += [_read_case(item, arrays) for item in raw]
    return tuple(cases)


def _read_case(raw: Mapping[str, Any], arrays: Mapping[str, Array]) -> Case:
    base = raw.get("inputs", {}) | raw.get("keywords", {})
    spelled = [base | changed for changed in raw.get("calls", [{}])]
    calls = tuple({name: from_json(value, arrays) for name, value in call.items()} for call in spelled)
    return Case(
        id=raw["id"], op=raw["op"], corner=raw["corner"], source=raw["source"], calls=calls,
        expected=tuple(np.asarray(from_json(value, arrays)) for value in raw["expected"]),
        dtype=tuple(raw["dtype"]), compare=raw["compare"], terms=raw.get("terms", 1), rejects=tuple(raw["rejects"]),
        derive=raw.get("derive"), row=raw.get("row"), choice=raw.get("choice"),
    )  # fmt: skip
