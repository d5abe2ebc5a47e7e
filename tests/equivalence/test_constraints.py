"""A twin refuses what its operation refuses, by the same labels, and what its kernels do not compute with."""

import importlib

import numpy as np
import pytest

from gpu.registry import variants
from refimpl.contract import ContractError
from tests.equivalence.strategies import reference
from tests.laws.test_constraints import BROKEN

TWINS = {variant.op for variant in variants()}
ROWS = [row for row in BROKEN if row[0].__name__ in TWINS]


def twin_of(function):
    return getattr(importlib.import_module(function.__module__.replace("refimpl", "gpu", 1)), function.__name__)


@pytest.mark.parametrize(
    ("function", "label", "arguments", "keywords"), ROWS, ids=[f"{row[0].__name__}-{row[1]}" for row in ROWS]
)
def test_refused_by_label(function, label, arguments, keywords):
    with pytest.raises(ContractError, match=f"^{label}: "):
        twin_of(function)(*arguments, **keywords)


SHAPES = {
    **dict.fromkeys(("softmax", "logsumexp", "log_softmax"), ((2, 3),)),
    **dict.fromkeys(("relu", "silu", "gelu_erf", "gelu_tanh", "gelu_quick"), ((3,),)),
    **dict.fromkeys(("swiglu", "geglu"), ((3,), (3,))),
    **dict.fromkeys(("layer_norm", "rms_norm"), ((2, 3), (3,))),
    "linear": ((2, 3), (4, 3)), "rope": ((2, 1, 4), (2, 2), (2, 2)),
    "mlp": ((2, 3), (4, 3), (3, 4)), "gated_mlp": ((2, 3), (4, 3), (4, 3), (3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("op", SHAPES)
def test_float64_is_refused_by_name(op):
    with pytest.raises(ContractError, match=r"^kernels take float32, bfloat16 and float16, not float64$"):
        twin_of(reference(op))(*map(np.ones, SHAPES[op]))
