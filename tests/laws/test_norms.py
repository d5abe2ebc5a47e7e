"""Laws of the norms of channels, of vectors, of sums and behind gates, and their constraints."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.basics.activation import sigmoid, silu
from refimpl.basics.norm import add_rms_norm, gated_rms_norm, group_norm, l2_norm, layer_norm, rms_norm
from refimpl.contract import ContractError
from tests.laws.strategies import DTYPES, assert_near, normal, seeds, sizes

groupings = st.sampled_from([(1, 1), (1, 3), (2, 2), (3, 2), (4, 1)])  # groups, channels of each


@given(seeds, groupings, sizes, sizes)
def test_a_group_is_the_layer_norm_of_its_channels(seed, grouping, Y, X):
    groups, each = grouping
    x, ones = 2 + normal(seed, groups * each, Y, X), np.ones(groups * each)
    rows = x.reshape(groups, -1)
    wanted = layer_norm(rows, np.ones(rows.shape[1])).reshape(x.shape)
    assert_near(group_norm(x, ones, groups=groups), wanted, terms=rows.shape[1], scale=9.0)
    gain, bias = normal(seed + 1, len(x)), normal(seed + 2, len(x))
    scaled = wanted * gain[:, None, None] + bias[:, None, None]
    assert_near(group_norm(x, gain, bias, groups=groups), scaled, terms=rows.shape[1], scale=40.0)


@given(seeds, groupings, sizes)
def test_group_norm_ignores_the_order_of_places_and_other_groups(seed, grouping, Y):
    groups, each = grouping
    x, gain = normal(seed, groups * each, Y), normal(seed + 1, groups * each)
    order = np.random.default_rng(seed).permutation(Y)
    y = group_norm(x, gain, groups=groups)
    assert_near(group_norm(x[:, order], gain, groups=groups), y[:, order], terms=each * Y, scale=30.0)
    assert np.array_equal(group_norm(x[:each], gain[:each], groups=1), y[:each])


@given(seeds, sizes, sizes, st.booleans())
def test_l2_norm_gives_length_one(seed, T, D, eps_is_floor):
    x = normal(seed, T, D) + 0.1
    y = l2_norm(x, 0.0, eps_is_floor=eps_is_floor)
    assert_near((y * y).sum(-1), np.ones(T), terms=D)
    assert_near(l2_norm(3 * x, 0.0), y, terms=D)
    assert_near(l2_norm(x), rms_norm(x, np.full(D, D**-0.5), 1e-6 / D), terms=D, scale=1.0)


@given(seeds, sizes)
def test_forms_of_l2_norm_differ_as_eps_stands(seed, D):
    x = l2_norm(normal(seed, 3, D) + 0.1, 0.0) * np.array([[0.05], [0.2], [3.0]])  # lengths below and above eps
    floor = l2_norm(x, 0.1, eps_is_floor=True)
    assert_near(floor[0], x[0] / 0.1, terms=D)
    assert_near(floor[1:], l2_norm(x[1:], 0.0), terms=D)
    assert_near(np.linalg.norm(l2_norm(x, 0.1), axis=-1), [r / np.sqrt(r * r + 0.1) for r in (0.05, 0.2, 3.0)], terms=D)


@given(seeds, sizes, sizes, st.sampled_from([("silu", silu), ("sigmoid", sigmoid)]))
def test_gated_rms_norm_is_a_norm_and_a_gate_in_either_order(seed, T, D, named):
    name, act = named
    x, gate, gain = normal(seed, T, D), normal(seed + 1, T, D), normal(seed + 2, D)
    after = gated_rms_norm(x, gate, gain, 1e-3, activation=name)
    assert_near(after, rms_norm(x, gain, 1e-3) * act(gate), terms=4, scale=60.0)
    before = gated_rms_norm(x, gate, gain, 1e-3, activation=name, norm_before_gate=False)
    assert_near(before, rms_norm(x * act(gate), gain, 1e-3), terms=4, scale=20.0)


@given(seeds, sizes)
def test_orders_of_gate_and_norm_agree_where_the_gate_is_one_number(seed, D):
    x, gain = normal(seed, 2, D), normal(seed + 1, D)
    gate = np.full((2, D), 1000.0)  # a sigmoid of 1
    after = gated_rms_norm(x, gate, gain, 0.0, activation="sigmoid")
    assert_near(gated_rms_norm(x, gate, gain, 0.0, activation="sigmoid", norm_before_gate=False), after, terms=D)
    assert_near(after, rms_norm(x, gain, 0.0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(seed=seeds, T=sizes, D=sizes)
def test_add_rms_norm_is_an_addition_and_a_norm_to_the_bit(dtype, seed, T, D):
    x, residual, gain = (normal(seed + i, *s).astype(dtype) for i, s in enumerate(((T, D), (T, D), (D,))))
    y, total = add_rms_norm(x, residual, gain, 1e-5, gain_offset=1.0)
    wide = np.float64 if dtype == np.float64 else np.float32
    assert np.array_equal(total, (x.astype(wide) + residual.astype(wide)).astype(dtype))
    assert np.array_equal(y, rms_norm(total, gain, 1e-5, gain_offset=1.0))
    assert y.dtype == total.dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_halves_neither_overflow_nor_vanish(dtype):  # ≡ CONVENTIONS row 8: their squares overflow float16
    x, ones = np.full((2, 4), 300.0, dtype), np.ones(4, dtype)
    assert (l2_norm(x, 0.0) == 0.5).all() and l2_norm(x).dtype == dtype
    y, total = add_rms_norm(x, x, ones, 0.0)
    assert (y == 1).all() and (total == 600).all()
    assert (gated_rms_norm(x, np.zeros_like(x), ones, 0.0, activation="sigmoid") == 0.5).all()
    x[:, ::2] *= -1
    assert (np.abs(group_norm(x, ones[:2], groups=2, eps=0.0)) == 1).all()


def test_group_norm_survives_a_large_offset():
    x = 4096.0 + np.arange(8, dtype=np.float32).reshape(2, 4)
    wanted = (np.arange(8).reshape(2, 4) - 3.5) / np.sqrt(5.25)
    assert_near(group_norm(x, np.ones(2, np.float32), groups=1, eps=0.0), wanted)


def test_a_sum_is_rounded_before_it_is_normalised():
    x, residual = np.float16([[1.0, 0.0]]), np.float16([[0.0004, 3.0]])
    y, total = add_rms_norm(x.astype(np.float16), residual, np.ones(2, np.float16), 0.0)
    assert total[0, 0] == 1.0 and np.array_equal(y, rms_norm(total, np.ones(2, np.float16), 0.0))


def a(*shape):
    return np.ones(shape)


BROKEN = [
    *((group_norm, "C1", given, {"groups": 1}) for given in ((a(), a(1)), (a(2, 3), a(3)), (a(2, 3), a(2), a(3)))),
    (group_norm, "C2", (a(2, 3), a(2)), {"groups": 1, "eps": -1e-5}),
    *((group_norm, "C3", (a(4, 3), a(4)), {"groups": groups}) for groups in (0, -1, 3, 8)),
    (l2_norm, "C1", (a(),), {}),
    (l2_norm, "C2", (a(3), -1e-6), {}),
    (add_rms_norm, "C1", (a(2, 3), a(2, 3), a(2)), {}),
    (add_rms_norm, "C2", (a(2, 3), a(2, 3), a(3), -1.0), {}),
    (add_rms_norm, "C3", (a(2, 3), a(3), a(3)), {}),
    (gated_rms_norm, "C1", (a(2, 3), a(2, 3), a(1)), {}),
    (gated_rms_norm, "C2", (a(2, 3), a(2, 3), a(3), -1.0), {}),
    (gated_rms_norm, "C3", (a(2, 3), a(1, 3), a(3)), {}),
    (gated_rms_norm, "C4", (a(2, 3), a(2, 3), a(3)), {"activation": "relu"}),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("function", "label", "arguments", "keywords"), BROKEN, ids=[f"{row[0].__name__}-{row[1]}" for row in BROKEN]
)
def test_refused_by_label(function, label, arguments, keywords):
    with pytest.raises(ContractError, match=f"^{label}: "):
        function(*arguments, **keywords)


@pytest.mark.parametrize("norm", [group_norm, l2_norm, add_rms_norm, gated_rms_norm])
def test_the_first_argument_decides_the_dtype(norm):
    x, gain = normal(1, 4, 6).astype(ml_dtypes.bfloat16), np.ones(6)
    found = {
        group_norm: lambda: (group_norm(x, np.ones(4), groups=2),),
        l2_norm: lambda: (l2_norm(x),),
        add_rms_norm: lambda: add_rms_norm(x, np.zeros((4, 6)), gain),
        gated_rms_norm: lambda: (gated_rms_norm(x, np.zeros((4, 6)), gain),),
    }[norm]()
    assert {each.dtype for each in found} == {np.dtype(ml_dtypes.bfloat16)}
