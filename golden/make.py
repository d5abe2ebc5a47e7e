"""Make the vectors: store seeded inputs, and derive what is expected.

An author writes a case with ``{"normal": [2, 3], "seed": 1, "dtype": "float32"}`` for an input, names its derivation
in ``derive`` and leaves ``expected`` out. Made once, inputs stay; expectations must come out the same again to one
part in 1e13, whatever a machine's mathematics library rounds.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from golden.case import checksums, read_file
from golden.derive import DERIVATIONS
from golden.values import Array, dtype_named, from_json, to_json

__all__ = ["derive", "make_file", "make_index"]


def make_file(path: Path, *, write: bool) -> list[str]:
    """Return the ids of the cases of a file that are not as they would be made; write them as they would."""
    cases, arrays = read_file(path)
    stale = []
    for case in cases:
        before = json.dumps(case)
        _store_inputs(case, arrays)
        if "derive" in case:
            _store_expected(case, arrays)
        if json.dumps(case) != before:
            stale.append(case["id"])
    if write and stale:
        path.write_text(_text(cases), encoding="utf-8")
        if arrays:
            np.savez_compressed(path.with_suffix(".npz"), **arrays)
    return stale


def make_index(folder: Path, *, write: bool) -> list[str]:
    """Return the name of the index if it is not that of the vectors as they are; write it as it should be."""
    path, text = folder / "index.json", json.dumps(checksums(folder), indent=1) + "\n"
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return []
    if write:
        path.write_text(text, encoding="utf-8")
    return [path.name]


def derive(case: Mapping[str, Any], arrays: Mapping[str, Array]) -> list[Array]:
    """Return what the derivation of a case gives, call by call: floats in float64."""
    base = case.get("inputs", {}) | case.get("keywords", {})
    results: list[Array] = []
    for changed in case.get("calls", [{}]):
        given = {name: _wide(from_json(value, arrays)) for name, value in (base | changed).items()}
        result = DERIVATIONS[case["derive"]](**given)
        results += result if isinstance(result, tuple) else (result,)
    return results


def _wide(value: Any) -> Any:
    is_float = isinstance(value, np.ndarray) and value.dtype.kind not in "iub"
    return value.astype(np.float64) if is_float else value


def _store_inputs(case: dict[str, Any], arrays: dict[str, Array]) -> None:
    for name, value in case.get("inputs", {}).items():
        if "normal" in value:
            drawn = np.random.default_rng(value["seed"]).normal(size=value["normal"]) * value.get("scale", 1)
            array = drawn.astype(dtype_named(value["dtype"]))
            case["inputs"][name] = to_json(f"{case['id']}.{name}", array, arrays)


def _store_expected(case: dict[str, Any], arrays: dict[str, Array]) -> None:
    results = [np.asarray(result) for result in derive(case, arrays)]
    stored = [np.asarray(from_json(value, arrays)) for value in case.get("expected", [])]
    if len(stored) == len(results) and all(map(_close, stored, results)):
        return
    case["expected"] = [to_json(f"{case['id']}.{i}", result, arrays) for i, result in enumerate(results)]


def _close(stored: Array, result: Array) -> bool:
    if stored.shape != result.shape:
        return False
    return bool(np.allclose(stored, result, rtol=1e-13, atol=1e-14, equal_nan=True))


def _text(cases: list[dict[str, Any]]) -> str:
    """One field a line, so that a change of a case reads well in a diff."""
    blocks = [",\n ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in case.items()) for case in cases]
    return "[\n" + ",\n".join(f"{{{block}}}" for block in blocks) + "\n]\n"
