"""Kernels compute in float32: no instruction of float64 stands in the PTX of any, but where a docstring says why."""

import contextlib
import copy
import importlib
import re

import pytest

from golden.adapters import implementation
from golden.case import read_cases
from golden.verify import Candidate, NotOffered
from gpu import device
from gpu.registry import variants


def says_why(op: str) -> bool:
    """Whether a twin, or the module it stands in, speaks of float64."""
    call = next(variant.call for variant in variants(op))
    module = importlib.import_module(call.__module__)
    return "float64" in f"{module.__doc__} {call.__doc__}".lower()


KERNELS = [each for each in implementation("gpu", "emulated").candidates if each.kernel]


@pytest.mark.parametrize(
    "kernel", [each for each in KERNELS if not says_why(each.op)], ids=lambda each: f"{each.op}-{each.kernel}"
)
def test_no_float64(kernel: Candidate):
    seen: set[str] = set()  # dtypes: one case of each
    with device.checks(orders=1, races=False), device.recording() as launches:
        for case in read_cases():
            names = " ".join(sorted({str(getattr(value, "dtype", "")) for value in case.calls[0].values()}))
            if case.op == kernel.op and names not in seen:
                with contextlib.suppress(NotOffered):
                    kernel.call(**copy.deepcopy(dict(case.calls[0])))
                    seen.add(names)
    used = {launch.kernel for launch in launches}
    assert used and [each.name for each in used if re.search(r"\.f64\b", each.ptx())] == []


def test_few_say_why():
    assert {each.op for each in KERNELS if says_why(each.op)} <= {
        "temperature", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "top_p",
        "suppress_tokens", "force_tokens", "no_repeat_ngram", "bad_words", "sequence_bias", "exponential_decay",
        "typical", "epsilon_cutoff", "eta_cutoff", "top_n_sigma", "top_h", "draw_race", "exponential",
        "accepted_length", "timestep_embedding",
    }  # fmt: skip
