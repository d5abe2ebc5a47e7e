"""The fault report on routing within groups: closed groups at 0, and weights from the biased score."""

import numpy as np
import pytest

from gpu import device
from gpu.llm import router as kernels
from refimpl.llm.router import sigmoid_group_top_k
from tests.outside.faults import load_case

CASE = load_case("moe_grouped_negative_bias")


def emulated(*arguments, **keywords):
    with device.use("emulated"):
        return kernels.sigmoid_group_top_k(*arguments, **keywords)


@pytest.mark.parametrize("router", [sigmoid_group_top_k, emulated])
@pytest.mark.parametrize("token", range(3))
def test_moe_grouped_negative_bias(router, token: int):
    logits, bias = CASE.inputs["logits"][token : token + 1], CASE.inputs["bias_per_token"][token]
    settings = {"groups": CASE.settings["groups"], "top_groups": CASE.settings["top_groups"]}
    ids, weights = router(logits, CASE.settings["top_k"], bias, **settings, scale=CASE.settings["scale"])
    assert sorted(ids[0].tolist()) == CASE.expected["ids"][token].tolist()
    by_id = np.zeros(logits.shape[1])
    by_id[ids[0]] = weights[0]
    CASE.assert_near(by_id, CASE.expected["weights_by_id"][token])
