"""Every kernel of sigmoid, softplus, the clamped gate and the norms beyond rows gives what the reference gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.tolerance import judge
from golden.values import dtype_named
from gpu import device
from gpu.basics.gated import gated_into, swiglu_clamped
from gpu.basics.norm import (
    add_rms_norm,
    add_rms_norm_into,
    gated_rms_norm,
    gated_rms_norm_into,
    group_norm,
    l2_norm,
    l2_norm_into,
    rms_norm,
)
from gpu.llm.mlp import gated_mlp
from gpu.registry import variants
from refimpl.basics import gated
from refimpl.contract import ContractError
from refimpl.llm import mlp
from tests.equivalence.strategies import (
    assert_equivalent,
    dtypes,
    each_kernel,
    examples,
    numbers,
    reference,
    seeds,
    specials,
    widths,
)
from tests.laws.test_norms import BROKEN

counts = st.sampled_from((1, 2, 3, 9))
groupings = st.sampled_from(((1, 1), (1, 5), (3, 2), (2, 1)))  # groups, channels of each


@each_kernel("sigmoid", "softplus")
@examples
@given(seeds, counts, widths, dtypes, st.sampled_from((1.0, 8.0, 1e4)), specials)
def test_sigmoid_and_softplus(kernel, seed, T, D, dtype, scale, special):
    x = (scale * numbers(seed, T, D, special=special)).astype(dtype_named(dtype))
    x[:, 0] = np.abs(x[:, 0])  # the lower tail is judged at the scale of its row
    assert_equivalent(kernel, {"x": x}, dtype, terms=4)


@each_kernel("sigmoid", "softplus")
def test_the_lower_tail_keeps_its_relative_accuracy(kernel):
    x = np.float32([[-80], [-30], [-9], [0], [9], [30], [90]])  # each in a row of its own
    truth = reference(kernel.op)(x.astype(np.float64))
    verdict = judge(kernel.call(x), truth, "float32", terms=400)  # exp amplifies the rounding of 80
    assert verdict.passed, verdict.reason


@each_kernel("swiglu_clamped")
@examples
@given(seeds, counts, widths, dtypes, dtypes, specials, st.sampled_from(((1.702, 7.0), (0.5, 1.5), (1, 3))))
def test_swiglu_clamped(kernel, seed, T, D, dtype, up_dtype, special, constants):
    gate, up = 4 * numbers(seed, T, D, special=special), 4 * numbers(seed + 1, T, D)
    gate[:, 0], up[:, 0] = np.abs(gate[:, 0]) + 1, np.abs(up[:, 0])
    arguments = {"gate": gate.astype(dtype_named(dtype)), "up": up.astype(dtype_named(up_dtype))}
    arguments |= dict(zip(("alpha", "limit"), constants, strict=True))
    assert_equivalent(kernel, arguments, dtype, terms=16)


def test_gated_into_clamps_in_place():
    gate, up = np.abs(9 * numbers(1, 3, 301)), 9 * numbers(2, 3, 301)
    truth = gated.swiglu_clamped(gate.astype(np.float64), up.astype(np.float64), limit=3.0)
    gated_into(gate, gate, up, "swiglu_clamped", limit=3.0)
    assert judge(gate, truth, "float32", terms=16).passed


@examples
@given(seeds, counts, dtypes, st.sampled_from((7.0, 1.5)), st.booleans())
def test_gated_mlp_takes_the_clamped_gate(seed, T, dtype, limit, is_biased):
    shapes = {"w_gate": (33, 5), "w_up": (33, 5), "w_down": (5, 33), "b_gate": (33,), "b_up": (33,), "b_down": (5,)}
    weights = {name: numbers(seed + i, *shape, dtype=dtype) for i, (name, shape) in enumerate(shapes.items())}
    arguments = {"x": 3 * numbers(seed, T, 5, dtype=dtype)}
    arguments["x"] = arguments["x"].astype(dtype_named(dtype))
    arguments |= {name: w for name, w in weights.items() if is_biased or name.startswith("w_")}
    wide = {name: x.astype(np.float64) for name, x in arguments.items()}
    clamped = {"activation": "swiglu_clamped", "limit": limit}
    truth = mlp.gated_mlp(**wide, **clamped)
    gate = wide["x"] @ wide["w_gate"].T + wide.get("b_gate", 0)
    up = wide["x"] @ wide["w_up"].T + wide.get("b_up", 0)
    parts = np.abs(gated.swiglu_clamped(gate, up, limit=limit)) @ np.abs(wide["w_down"]).T
    amplification = float((parts.max(-1) / np.abs(truth).max(-1)).max()) ** 2
    verdict = judge(gated_mlp(**arguments, **clamped), truth, dtype, terms=round(64 * amplification))
    assert verdict.passed, verdict.reason


@each_kernel("group_norm")
@examples
@given(seeds, groupings, st.sampled_from(((), (1,), (33,), (5, 7), (2, 3, 4))), dtypes, dtypes, st.booleans(), specials)
def test_group_norm(kernel, seed, grouping, places, dtype, gain_dtype, is_plain, special):
    groups, each = grouping
    C = groups * each
    x = numbers(seed, C, *places, special=special) + (300 if seed % 3 == 0 else 0)
    arguments = {"x": x.astype(dtype_named(dtype)), "gain": numbers(seed + 1, C, dtype=gain_dtype), "groups": groups}
    arguments |= {"eps": 0.1} if is_plain else {"bias": numbers(seed + 2, C, dtype=gain_dtype), "eps": 1e-2}
    assert_equivalent(kernel, arguments, dtype, terms=8 * x.size // groups, axis=0)


@each_kernel("l2_norm")
@examples
@given(seeds, counts, widths, dtypes, st.sampled_from((1e-6, 0.5, 100.0)), st.booleans(), specials)
def test_l2_norm(kernel, seed, T, D, dtype, eps, eps_is_floor, special):
    arguments = {"x": numbers(seed, T, D, dtype=dtype, special=special), "eps": eps, "eps_is_floor": eps_is_floor}
    assert_equivalent(kernel, arguments, dtype, terms=D)


@each_kernel("gated_rms_norm")
@examples
@given(seeds, counts, widths, dtypes, dtypes, st.booleans(), st.sampled_from(("silu", "sigmoid")), specials)
def test_gated_rms_norm(kernel, seed, T, D, dtype, gate_dtype, norm_before_gate, activation, special):
    arguments = {
        "x": numbers(seed, T, D, dtype=dtype, special=special),
        "gate": (3 * numbers(seed + 1, T, D)).astype(dtype_named(gate_dtype)),
        "gain": numbers(seed + 2, D, dtype=gate_dtype),
        "eps": 0.1, "norm_before_gate": norm_before_gate, "activation": activation,
    }  # fmt: skip
    assert_equivalent(kernel, arguments, dtype, terms=4 * D)


@each_kernel("add_rms_norm")
@examples
@given(seeds, counts, widths, dtypes, dtypes, st.sampled_from((0.0, 1.0)), specials)
def test_add_rms_norm_is_an_addition_and_a_norm(kernel, seed, T, D, dtype, other, gain_offset, special):
    x, residual = numbers(seed, T, D, dtype=dtype, special=special), numbers(seed + 1, T, D, dtype=other)
    gain = numbers(seed + 2, D, dtype=other)
    y, total = kernel.call(x, residual, gain, 0.1, gain_offset=gain_offset)
    with np.errstate(all="ignore"):
        wanted, stream = reference("add_rms_norm")(x, residual, gain, 0.1, gain_offset=gain_offset)
        wide = (each.astype(np.float64) for each in (stream, gain))
        truth = reference("rms_norm")(*wide, 0.1, gain_offset=gain_offset)
        parts = rms_norm(stream, gain, 0.1, gain_offset=gain_offset)
    for result, apart in ((total, stream), (y, parts)):
        assert result.dtype == apart.dtype
        np.testing.assert_array_equal(result.astype(np.float32), apart.astype(np.float32))
    verdict = judge(y, truth, dtype, terms=D)
    assert verdict.passed and wanted.dtype == y.dtype, verdict.reason


def test_launchers_write_in_place():
    x, residual, gain = numbers(1, 3, 65), numbers(2, 3, 65), numbers(3, 65)
    y, total = add_rms_norm(x, residual, gain)
    stream, out = residual.copy(), x.copy()
    add_rms_norm_into(out, stream, out, stream, gain)
    assert np.array_equal(out, y) and np.array_equal(stream, total)
    for first in (True, False):
        gated_out = residual.copy()
        gated_rms_norm_into(gated_out, x, gated_out, gain, norm_before_gate=first)
        assert np.array_equal(gated_out, gated_rms_norm(x, residual, gain, norm_before_gate=first))
    length = x.copy()
    l2_norm_into(length, length)
    assert np.array_equal(length, l2_norm(x))


def test_nothing_gives_nothing_without_a_launch():
    nothing, gain = np.zeros((0, 3), np.float32), np.zeros(3, np.float32)
    with device.recording() as launches:
        assert l2_norm(nothing).shape == gated_rms_norm(nothing, nothing, gain).shape == (0, 3)
        assert [each.shape for each in add_rms_norm(nothing, nothing, gain)] == [(0, 3)] * 2
        assert group_norm(nothing.T, gain, groups=3).shape == (3, 0)
        assert swiglu_clamped(nothing, nothing).shape == (0, 3)
    assert launches == []


TWIN = {variant.op: variant.call for variant in variants() if variant.name == "numba"}


@pytest.mark.parametrize(
    ("function", "label", "arguments", "keywords"), BROKEN, ids=[f"{row[0].__name__}-{row[1]}" for row in BROKEN]
)
def test_refused_by_label(function, label, arguments, keywords):
    with pytest.raises(ContractError, match=f"^{label}: "):
        TWIN[function.__name__](*arguments, **keywords)


def test_swiglu_clamped_refuses_by_label():
    with pytest.raises(ContractError, match=r"^C2: limit"):
        swiglu_clamped(np.ones(2, np.float32), np.ones(2, np.float32), limit=0.0)
    with pytest.raises(ContractError, match=r"^C1: gate"):
        swiglu_clamped(np.ones(2, np.float32), np.ones(3, np.float32))
    with pytest.raises(ContractError, match=r"^C1: activation"):
        gated_mlp(*(np.ones((2, 2), np.float32),) * 4, activation="swish")


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("sigmoid", (np.ones(3),)), ("softplus", (np.ones(3),)), ("swiglu_clamped", (np.ones(3), np.ones(3))),
        ("l2_norm", (np.ones((2, 3)),)), ("add_rms_norm", (np.ones((2, 3)), np.ones((2, 3)), np.ones(3))),
        ("gated_rms_norm", (np.ones((2, 3)), np.ones((2, 3)), np.ones(3))),
    ],
)  # fmt: skip
def test_float64_is_refused_by_name(op, arguments):
    with pytest.raises(ContractError, match=r"^kernels take float32, bfloat16 and float16, not float64$"):
        TWIN[op](*arguments)
