"""Cases from public fault reports: an operation, its settings, its inputs and the right answer."""

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Case", "load_case"]

FOLDER = Path(__file__).parents[3] / "shared" / "faults"


@dataclass(frozen=True)
class Case:
    settings: dict[str, Any]
    inputs: Any
    expected: Any
    tolerance: Any  # {"rtol", "atol"} or "exact"

    def assert_near(self, actual, wanted) -> None:
        """Demand agreement within the tolerance of the case."""
        np.testing.assert_allclose(np.asarray(actual, np.float64), wanted, **self.tolerance)


def load_case(name: str) -> Case:
    """Read a case, its values as arrays, bytes and floats."""
    arrays = {}
    if (FOLDER / f"{name}.npz").exists():
        with np.load(FOLDER / f"{name}.npz") as archive:
            arrays = dict(archive)

    def value(node):
        match node:
            case {"npz": key}:
                return arrays[key]
            case {"dtype": dtype, "value": listed}:
                return np.array(value(listed), dtype)
            case {"base64": text}:
                return base64.b64decode(text)
            case {"float": text}:
                return float(text)
            case dict():
                return {key: value(inner) for key, inner in node.items()}
            case list():
                return [value(inner) for inner in node]
        return node

    case = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return Case(case["settings"], value(case["inputs"]), value(case["expected"]), case["tolerance"])
