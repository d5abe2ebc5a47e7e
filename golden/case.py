"""A case: one operation, its inputs, what it must give, who says so, and the wrong implementation it rejects.

``vectors/NAME.json`` holds a list of cases, ``vectors/NAME.npz`` their larger arrays, and ``vectors/index.json`` the
SHA-256 of every file, so that no case is lost or damaged without a word. The fields of a case in JSON:

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
    writes    optional: the inputs that the operation may change in place; all others stay as they are
    rejects   the planted wrong implementations that the case must reject (planted/)
    row, choice   optional: the row of the conventions that it pins, and the choice there
"""

import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from golden.values import Array, from_json

__all__ = ["Case", "checksums", "read_cases", "read_file", "vector_files"]


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
    writes: tuple[str, ...] = ()


_FOLDER = resources.files("golden") / "vectors"
_INDEX = "index.json"


def _files(folder: Any, ending: str) -> list[Any]:
    try:
        named = [path for path in folder.iterdir() if path.name.endswith(ending) and path.name != _INDEX]
    except OSError as error:
        raise ValueError(f"the vectors in {folder} cannot be read: {error.strerror}") from error
    return sorted(named, key=lambda path: path.name)


def vector_files() -> list[Any]:
    """Return the JSON files of cases, by name."""
    return _files(_FOLDER, ".json")


def checksums(folder: Any) -> dict[str, str]:
    """Return the SHA-256 of every file of vectors, by name."""
    files = [*_files(folder, ".json"), *_files(folder, ".npz")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _check(folder: Any) -> None:
    """Refuse vectors that are not those of the index."""
    try:
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"the index of the vectors, {folder / _INDEX}, cannot be read: {error}") from error
    found = checksums(folder)
    if not isinstance(index, dict) or index != found:
        known = index if isinstance(index, dict) else {}
        wrong = sorted(name for name in known.keys() | found.keys() if known.get(name) != found.get(name))
        names = ", ".join(wrong) or _INDEX
        raise ValueError(f"vectors are damaged or missing: {names}; whoever changed a case runs python -m golden make")


def read_file(path: Any) -> tuple[list[dict[str, Any]], dict[str, Array]]:
    """Read the raw cases of one file and the arrays beside it."""
    beside = path.parent / path.name.replace(".json", ".npz")
    arrays = {}
    try:
        if beside.is_file():
            with beside.open("rb") as file, np.load(file, allow_pickle=False) as held:
                arrays = {key: held[key] for key in held.files}
        cases = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path.name} or its .npz cannot be read: {error}") from error
    if not isinstance(cases, list) or not cases or not all(isinstance(case, dict) for case in cases):
        raise ValueError(f"{path.name} must be a list of cases")
    return cases, arrays


@cache
def read_cases() -> tuple[Case, ...]:
    """Return every case, in the order of the files.

    >>> len({case.id for case in read_cases()}) == len(read_cases())
    True
    """
    _check(_FOLDER)
    cases = []
    for path in vector_files():
        raw, arrays = read_file(path)
        cases += [_read_case(item, arrays) for item in raw]
    return tuple(cases)


def _sealed(value: Any) -> Any:
    """Let nobody write into the arrays of a case: who tries shall hear it, and not spoil what comes after."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    return value


def _read_case(raw: Mapping[str, Any], arrays: Mapping[str, Array]) -> Case:
    base = raw.get("inputs", {}) | raw.get("keywords", {})
    spelled = [base | changed for changed in raw.get("calls", [{}])]
    calls = tuple({name: _sealed(from_json(value, arrays)) for name, value in call.items()} for call in spelled)
    return Case(
        id=raw["id"], op=raw["op"], corner=raw["corner"], source=raw["source"], calls=calls,
        expected=tuple(np.asarray(from_json(value, arrays)) for value in raw["expected"]),
        dtype=tuple(raw["dtype"]), compare=raw["compare"], terms=raw.get("terms", 1), rejects=tuple(raw["rejects"]),
        derive=raw.get("derive"), row=raw.get("row"), choice=raw.get("choice"),
        writes=tuple(raw.get("writes", ())),
    )  # fmt: skip
