"""One argument of a call that is as it should be, made odd: an operation and its twin refuse it both, in a sentence, or
take it both. No argument reaches NumPy or a kernel that would fail on it, or read beyond it.
"""

import importlib
import warnings
from typing import Any

import numpy as np
import pytest

from golden.case import read_cases
from gpu.registry import variants
from refimpl.contract import ContractError, UsageError
from tests.equivalence.strategies import reference

TAKES_MORE = {  # NumPy moves what kernels cannot hold
    "copy_blocks", "embedding", "paged_append", "patchify", "ring_append", "ring_read", "unpatchify",
    "upsample_nearest",
}  # fmt: skip
ROOMS = ("basics", "efficient", "llm")


def size(call: dict[str, Any]) -> int:
    return sum(x.size for x in call.values() if isinstance(x, np.ndarray))


def is_plain(call: dict[str, Any]) -> bool:
    arrays = [x for x in call.values() if isinstance(x, np.ndarray)]
    return all(x.size and x.dtype.name not in ("float64", "float16", "bfloat16") for x in arrays)


def of_most_arguments(call: dict[str, Any]) -> tuple[int, int]:
    return -sum(value is not None for value in call.values()), size(call)


CALLS: dict[str, dict[str, Any]] = {}
for op, call in sorted(((x.op, dict(x.calls[0])) for x in read_cases()), key=lambda each: of_most_arguments(each[1])):
    if op in {variant.op for variant in variants()} - {"cache_append"} and size(call) < 5000 and is_plain(call):
        CALLS.setdefault(op, call)  # cache_append takes a cache, not arrays


def odd_arrays(x: np.ndarray) -> dict[str, np.ndarray]:
    odd = {"a number": x.reshape(-1)[0], "flat": x.reshape(-1), "an axis more": x[None], "an axis less": x[0]}
    odd |= {f"no entry on axis {axis}": np.take(x, [], axis) for axis in range(x.ndim)}
    odd |= {f"an entry more on axis {axis}": np.concatenate([x, np.take(x, [0], axis)], axis) for axis in range(x.ndim)}
    with np.errstate(invalid="ignore"):
        odd |= {str(np.dtype(other)): x.astype(other) for other in (bool, np.float32, np.int64, np.uint64, np.uint8)}
    return {name: np.asarray(each) for name, each in odd.items()}


def odd(call: dict[str, Any]) -> Any:
    for name, value in call.items():
        if isinstance(value, np.ndarray) and value.ndim:
            yield from ((f"{name}: {how}", call | {name: x}) for how, x in odd_arrays(value).items())
        elif isinstance(value, int) and not isinstance(value, bool):
            for number in (value + 0.5, float("nan"), np.uint8(value % 256), np.int32(value % 2**31), np.array(value)):
                yield f"{name} = {number!r}", call | {name: number}


def outcome(function: Any, call: dict[str, Any]) -> str:
    """Return what comes of a call, whose arrays it may write into: a refusal, or the shapes of the results."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            results = function(**{name: np.copy(x) if isinstance(x, np.ndarray) else x for name, x in call.items()})
    except (ContractError, UsageError) as error:
        return "refused" if "\n" not in str(error) and len(str(error)) > 20 else f"no sentence: {error}"
    except Exception as error:  # whatever it is, it is what this law forbids
        return f"{type(error).__name__}: {error}"
    return str([np.shape(x) for x in (results if isinstance(results, tuple) else (results,))])


def twin_of(op: str) -> Any:
    module = reference(op).__module__.replace("refimpl", "gpu", 1)
    return getattr(importlib.import_module(module), op)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("op", CALLS)
def test_odd_arguments_are_refused_or_taken_by_both(op):
    for how, call in odd(CALLS[op]):
        given, wanted = outcome(twin_of(op), call), outcome(reference(op), call)
        assert wanted == "refused" or wanted.startswith("["), f"{how}: {wanted}"
        takes_more = op in TAKES_MORE and (given, wanted[:1]) == ("refused", "[")
        assert given == wanted or takes_more, f"{how}: the twin {given}, the reference {wanted}"
