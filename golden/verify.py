"""Run the cases against an implementation."""

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from golden.case import Case
from golden.tolerance import Verdict, judge
from golden.values import Array

__all__ = ["Outcome", "run_case", "verify"]


@dataclass(frozen=True)
class Outcome:
    case: Case
    status: str  # pass, fail, error, missing
    ulps: float
    reason: str


def verify(cases: Iterable[Case], operations: Mapping[str, Callable[..., Any]]) -> list[Outcome]:
    """Judge an implementation, given as its operations by name, by every case."""
    return [run_case(case, operations.get(case.op)) for case in cases]


def run_case(case: Case, operation: Callable[..., Any] | None) -> Outcome:
    """Judge one operation by one case; what it raises is a verdict too."""
    if operation is None:
        return Outcome(case, "missing", 0.0, "no such operation")
    results: list[Any] = []
    try:
        for arguments in case.calls:
            own = copy.deepcopy(dict(arguments))  # a stranger may write into what is given
            result = operation(**own)
            results += copy.deepcopy(result if isinstance(result, tuple) else (result,))
            changed = [name for name in own if name not in case.writes and not _same(own[name], arguments[name])]
            if changed:
                return Outcome(case, "fail", math.inf, f"the input {changed[0]} is changed in place")
    except (Exception, SystemExit) as error:  # whatever a stranger's code raises is its answer to the case
        return Outcome(case, "error", 0.0, f"{type(error).__name__}: {error}".splitlines()[0])
    if len(results) != len(case.expected):
        return Outcome(case, "fail", 0.0, f"{len(results)} results, expected {len(case.expected)}")
    verdicts = [_judge(case, *each) for each in zip(results, case.expected, case.dtype, strict=True)]
    failed = [verdict for verdict in verdicts if not verdict.passed]
    worst = failed[0] if failed else max(verdicts, key=lambda verdict: verdict.ulps)
    return Outcome(case, "pass" if worst.passed else "fail", worst.ulps, worst.reason)


def _same(after: Any, before: Any) -> bool:
    if isinstance(before, np.ndarray):
        return (after.dtype, after.shape, after.tobytes()) == (before.dtype, before.shape, before.tobytes())
    return repr(after) == repr(before)  # NaN included


def _judge(case: Case, result: Any, truth: Array, dtype: str) -> Verdict:
    if isinstance(result, int | float):  # a bare number has Python's own width
        result = np.asarray(result, np.float64 if isinstance(result, float) else np.int64)
    try:
        result = np.asarray(result)
    except Exception as error:  # ragged, or an array of a library that does not give its numbers away
        return Verdict(False, math.inf, f"the result is no array: {error}".splitlines()[0])
    return judge(result, truth, dtype, exact=case.compare == "exact", terms=case.terms)
