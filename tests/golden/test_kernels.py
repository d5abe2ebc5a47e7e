"""The executor's kernels on the CPU, judged by every case; those of CUDA have tests/equivalence, and .ci/run."""

import pytest

from golden.adapters import implementation
from golden.case import Case, read_cases
from golden.verify import Implementation, verify

KERNELS = [each for each in implementation("gpu", "cpu").candidates if each.kernel == "numba"]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda each: each.op)
def test_kernel_of_the_cpu_passes(kernel):
    cases: list[Case] = [case for case in read_cases() if case.op == kernel.op]
    outcomes = verify(cases, Implementation("cpu", (kernel,)))
    assert {o.case.id: o.reason for o in outcomes if o.status not in ("pass", "absent")} == {}
    assert any(outcome.status == "pass" for outcome in outcomes)
