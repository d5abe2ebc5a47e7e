"""The fault report on guidance: one sample's spread, not the batch's, and a spread of zero."""

import numpy as np
import pytest

from gpu import device
from gpu.media import operations as kernels
from refimpl.media import operations
from tests.outside.faults import load_case

CASE = load_case("cfg_rescale")
COND, UNCOND = CASE.inputs["cond"], CASE.inputs["uncond"]


@pytest.mark.parametrize("number", range(len(COND)))
@pytest.mark.parametrize("ops", (operations, kernels), ids=("reference", "kernels"))
def test_cfg_rescale(ops, number: int):
    with device.use("emulated"):
        guided = ops.guide(COND[number], UNCOND[number], CASE.inputs["guidance_scale"])
        found = ops.rescale_guidance(guided, COND[number], CASE.inputs["guidance_rescale"])
    CASE.assert_near(found, CASE.expected["out"][number])


def test_a_batch_of_three_holds_one_without_spread():
    assert any(np.ptp(UNCOND[n] + CASE.inputs["guidance_scale"] * (COND[n] - UNCOND[n])) == 0 for n in range(3))
