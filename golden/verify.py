"""Run the cases against an implementation.

An implementation is a list of candidates. It may have several for one operation, its kernels, and each is judged
alone. Where one does not offer what a case asks for, it raises NotOffered, and the case does not count.
"""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from golden.case import Case
from golden.planted import PLANTED
from golden.tolerance import Verdict, judge
from golden.values import Array

__all__ = ["Candidate", "Deviation", "Implementation", "NotOffered", "Outcome", "judge_results", "run_case", "verify"]


class NotOffered(Exception):
    """What a case asks for is not offered: a dtype, a keyword, a shape. Whoever offers it can still be wrong."""


@dataclass(frozen=True)
class Candidate:
    op: str
    call: Callable[..., Any]
    kernel: str = ""  # which of several computes


@dataclass(frozen=True)
class Deviation:
    """A row of the conventions in which an implementation is known to choose otherwise, and where that shows."""

    row: int
    choice: str
    shows: Callable[..., bool]  # with the arguments of a call
    planted: str | None = None  # the planted fault that gives what the implementation then gives; None: not to the bit


@dataclass(frozen=True)
class Implementation:
    """Who is judged."""

    name: str
    candidates: tuple[Candidate, ...]
    deviations: tuple[Deviation, ...] = ()
    partial: bool = False  # a library of its own making: what it lacks is no failure


@dataclass(frozen=True)
class Outcome:
    case: Case
    status: str  # pass, fail, error, missing, explained: another choice of a convention, absent: not offered
    ulps: float
    reason: str
    kernel: str = ""
    row: int | None = None  # of the convention that explains it


def verify(cases: Iterable[Case], implementation: Implementation) -> list[Outcome]:
    """Judge an implementation by every case, each of its kernels alone."""
    by_op: dict[str, list[Candidate]] = {}
    for candidate in implementation.candidates:
        by_op.setdefault(candidate.op, []).append(candidate)
    outcomes = []
    for case in cases:
        if case.op not in by_op:
            outcomes.append(Outcome(case, "missing", 0.0, "no such operation"))
        for candidate in by_op.get(case.op, []):
            outcome = replace(run_case(case, candidate.call), kernel=candidate.kernel)
            outcomes.append(_explain(outcome, candidate, implementation.deviations))
    return outcomes


def _explain(outcome: Outcome, candidate: Candidate, deviations: Iterable[Deviation]) -> Outcome:
    """A wrong answer that is what another choice of a convention gives."""
    if outcome.status not in ("fail", "error"):
        return outcome
    for deviation in deviations:
        case = outcome.case
        if any(deviation.shows(**arguments) for arguments in case.calls) and _gives(case, candidate, deviation.planted):
            reason = f"convention {deviation.row}, {deviation.choice}"
            return replace(outcome, status="explained", reason=reason, row=deviation.row)
    return outcome


def _gives(case: Case, candidate: Candidate, planted: str | None) -> bool:
    """Whether a candidate gives what a planted fault gives in float64."""
    if planted is None:
        return True
    fault: Any = PLANTED[planted]
    results: list[Array] = []
    with np.errstate(all="ignore"):
        for arguments in case.calls:
            result = fault(**{name: _wide(value) for name, value in arguments.items()})
            results += result if isinstance(result, tuple) else (result,)
    other = replace(case, expected=tuple(np.asarray(result) for result in results))
    return run_case(other, candidate.call).status == "pass"


def _wide(value: Any) -> Any:
    is_float = isinstance(value, np.ndarray) and value.dtype.kind not in "iub"
    return value.astype(np.float64) if is_float else value


def run_case(case: Case, operation: Callable[..., Any]) -> Outcome:
    """Judge one operation by one case; what it raises is a verdict too."""
    results: list[Any] = []
    try:
        for arguments in case.calls:
            own = copy.deepcopy(dict(arguments))  # a stranger may write into what is given
            result = operation(**own)
            results += copy.deepcopy(result if isinstance(result, tuple) else (result,))
            changed = [name for name in own if name not in case.writes and not _same(own[name], arguments[name])]
            if changed:
                return Outcome(case, "fail", math.inf, f"the input {changed[0]} is changed in place")
    except NotOffered as error:
        return Outcome(case, "absent", 0.0, str(error))
    except (Exception, SystemExit) as error:  # whatever a stranger's code raises is its answer to the case
        return Outcome(case, "error", 0.0, f"{type(error).__name__}: {error}".splitlines()[0])
    return judge_results(case, results)


def judge_results(case: Case, results: list[Any]) -> Outcome:
    """Judge what an operation gave, call by call in a row."""
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
    except (Exception, SystemExit) as error:  # ragged, or what does not give its numbers away
        return Verdict(False, math.inf, f"the result is no array: {error}".splitlines()[0])
    return judge(result, truth, dtype, exact=case.compare == "exact", terms=case.terms)
