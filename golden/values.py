"""Arrays in JSON: how a case's inputs and expectations are written down and read back.

    3, 0.5, true, "yarn", null           itself; a list is a tuple
    {"float": "-inf"}                    inf, -inf or nan
    {"dtype": "float32", "value": [..]}  an array, its numbers in full
    {"npz": KEY, "dtype": ..}            an array of the file's .npz; bfloat16 stands there as its uint16 bits
    {"npz": KEY, "rows": [a, b]}         its rows a to b - 1
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

__all__ = ["Array", "dtype_named", "from_json", "to_json"]

Array: TypeAlias = Any

_INLINE = 16  # the most elements that are written into the JSON file


def dtype_named(name: str) -> np.dtype[Any]:
    """Return the dtype of a name, bfloat16 included.

    >>> dtype_named("bfloat16").itemsize
    2
    """
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def from_json(value: Any, arrays: Mapping[str, Array]) -> Any:
    """Read one value.

    >>> from_json({"dtype": "float16", "value": [1, {"float": "-inf"}]}, {})
    array([  1., -inf], dtype=float16)
    """
    if isinstance(value, list):
        return tuple(from_json(item, arrays) for item in value)
    if not isinstance(value, dict):
        return value
    if "float" in value:
        return float(value["float"])
    if "value" in value:
        return np.array(from_json(value["value"], {}), dtype_named(value["dtype"]))
    array = arrays[value["npz"]]
    if "dtype" in value and value["dtype"] == "bfloat16":
        array = array.view(ml_dtypes.bfloat16)
    return array[slice(*value["rows"])] if "rows" in value else array


def to_json(key: str, array: Array, arrays: dict[str, Array]) -> dict[str, Any]:
    """Write one array down: in full where it is small, else into ``arrays`` under ``key``.

    >>> to_json("x", np.array([1.0, np.inf]), {})
    {'dtype': 'float64', 'value': [1.0, {'float': 'inf'}]}
    """
    array, name = np.asarray(array), np.asarray(array).dtype.name
    if array.size <= _INLINE:
        return {"dtype": name, "value": _spell(array.astype(np.float64) if name == "bfloat16" else array)}
    arrays[key] = array.view(np.uint16) if name == "bfloat16" else array
    return {"npz": key, "dtype": name}


def _spell(array: Array) -> Any:
    if array.ndim:
        return [_spell(item) for item in array]
    number = array.item()
    return {"float": str(number)} if isinstance(number, float) and not np.isfinite(number) else number
