"""Cases for those who do not use Python: export them to a folder, and judge the results that are put beside them.

``cases.json`` names every array by a file of its own: raw, little-endian, C order, bfloat16 as its 16 bits. An
implementation reads the inputs of case ID and call C (0 where there is one call), and writes result R of the case as
``ID/result.R.bin`` in the dtype and shape that ``cases.json`` states. Results of several calls follow one another.
"""

import json
import math
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from golden import SPECIFICATION
from golden.case import Case
from golden.values import Array, dtype_named
from golden.verify import Outcome, judge_results

__all__ = ["export", "judge_folder"]

_INDEX = "cases.json"


def export(cases: Iterable[Case], folder: Path) -> int:
    """Write cases to a new or empty folder; return how many."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is there and is not an empty folder; nothing is written over")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        described = [_export(case, folder) for case in cases]
        index = {"specification": SPECIFICATION, "layout": (__doc__ or "").strip(), "cases": described}
        (folder / _INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    except BaseException:  # half an export would be judged as a whole one
        for written in folder.iterdir():
            shutil.rmtree(written) if written.is_dir() else written.unlink()
        raise
    return len(described)


def _export(case: Case, folder: Path) -> dict[str, Any]:
    (folder / case.id).mkdir()
    calls = [
        {name: _spell(value, f"{case.id}/{number}.{name}.bin", folder) for name, value in call.items()}
        for number, call in enumerate(case.calls)
    ]
    results = [
        {"file": f"{case.id}/result.{number}.bin", "dtype": dtype, "shape": list(truth.shape)}
        for number, (truth, dtype) in enumerate(zip(case.expected, case.dtype, strict=True))
    ]
    fields = {"id": case.id, "op": case.op, "corner": case.corner, "source": case.source}
    pinned = {"row": case.row, "choice": case.choice} if case.row else {}
    return fields | pinned | {"calls": calls, "results": results}


def _spell(value: Any, name: str, folder: Path) -> Any:
    """An array as its file; anything else as JSON has it, infinity and NaN by name."""
    if isinstance(value, np.ndarray):
        (folder / name).write_bytes(_bits(value).tobytes())
        return {"file": name, "dtype": value.dtype.name, "shape": list(value.shape)}
    if isinstance(value, tuple):
        return [_spell(item, name, folder) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _spell(item, name, folder) for key, item in value.items()}
    return {"float": str(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _bits(array: Array) -> Array:
    plain = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
    return np.ascontiguousarray(plain).astype(plain.dtype.newbyteorder("<"), copy=False)


def judge_folder(cases: Iterable[Case], folder: Path) -> list[Outcome]:
    """Judge the results in an exported folder; a case without any is missing."""
    try:
        if not (folder / _INDEX).is_file():  # nor a device or a pipe, which may never end
            raise ValueError("there is no such file")
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        exported, version = {case["id"] for case in index["cases"]}, index["specification"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{folder} holds no exported cases: {_INDEX} cannot be read: {error}") from error
    if version != SPECIFICATION:
        raise ValueError(f"{folder} was exported by specification {version}, this is {SPECIFICATION}: export it again")
    return [_judge(case, folder) for case in cases if case.id in exported]


def _judge(case: Case, folder: Path) -> Outcome:
    results: list[Array] = []
    for number, (truth, dtype) in enumerate(zip(case.expected, case.dtype, strict=True)):
        path, stored = folder / case.id / f"result.{number}.bin", dtype_named(dtype)
        if not path.is_file():
            reason = f"no {path.name}"
            return Outcome(case, "error", math.inf, reason) if results else Outcome(case, "missing", 0.0, reason)
        size, wanted = path.stat().st_size, truth.size * stored.itemsize
        if size != wanted:  # known before it is read: it may be larger than memory
            shape = f"{dtype} of shape {list(truth.shape)}"
            return Outcome(case, "error", math.inf, f"{path.name} has {size} bytes, expected {wanted}: {shape}")
        data = np.frombuffer(path.read_bytes(), stored.newbyteorder("<"))
        results.append(data.astype(stored).reshape(truth.shape))
    return judge_results(case, results)
