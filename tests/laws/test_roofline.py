"""The roofline, against the figures of data sheets and the chapter, and its shape by laws."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.bottleneck.roofline import DEVICES, Cost, Device, attainable, bound, peak, ridge, seconds
from refimpl.contract import UsageError

speeds = st.floats(1e6, 1e18)
amounts = st.floats(1.0, 1e18)


def device(flops: float, bytes_per_s: float) -> Device:
    return Device("made", {"float16": flops}, bytes_per_s, 1e9)


def test_ridge_of_the_h100_is_295():  # the chapter: 989 TFLOP/s over 3.35 TB/s
    h100 = DEVICES["H100"]
    assert peak(h100) == 989e12 and h100.bytes_per_s == 3.35e12 and round(ridge(h100)) == 295
    assert round(ridge(h100, "float8")) == 591


@pytest.mark.parametrize(
    ("name", "ops_a_byte"),
    [("A100", 153), ("H100 PCIe", 378), ("H200", 206), ("B200", 281), ("L4", 403), ("L40S", 419), ("RTX 4090", 164),
     ("MI300X", 247)],
)  # fmt: skip
def test_ridges_by_hand(name, ops_a_byte):
    assert round(ridge(DEVICES[name])) == ops_a_byte


def test_ridge_of_a_tpu_is_that_of_its_dtype():
    assert round(ridge(DEVICES["TPU v5e"], "bfloat16")) == 241


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_names_its_source_and_is_plausible(name):
    known = DEVICES[name]
    assert known.name == name and known.source
    assert 1e11 < known.bytes_per_s < 1e14 and 8e9 <= known.memory < 1e12
    assert all(1e13 < rate < 1e17 for rate in known.flops.values())
    narrower = [known.flops[dtype] for dtype in ("float32", "bfloat16", "float8", "float4") if dtype in known.flops]
    assert narrower == sorted(narrower), "fewer bits are slower"


def test_an_unknown_speed_says_what_is_known():
    with pytest.raises(UsageError, match="TPU v5e: no speed is known for float16, only for bfloat16, int8"):
        ridge(DEVICES["TPU v5e"])


@given(speeds, speeds, amounts, amounts)
def test_time_is_that_of_the_slower_and_no_less(flops, bytes_per_s, done, moved):
    made, cost = device(flops, bytes_per_s), Cost(done, moved)
    time = seconds(cost, made)
    slower = moved / bytes_per_s if bound(cost, made) == "memory" else done / flops
    assert time == pytest.approx(slower) and time >= moved / bytes_per_s and time >= done / flops


@given(speeds, speeds, amounts, amounts)
def test_attainable_is_the_work_over_its_time(flops, bytes_per_s, done, moved):
    made, cost = device(flops, bytes_per_s), Cost(done, moved)
    assert attainable(cost.intensity, made) == pytest.approx(done / seconds(cost, made))


@given(speeds, speeds, amounts, amounts)
def test_the_roof_rises_to_the_ridge_and_is_flat_behind_it(flops, bytes_per_s, low, high):
    made = device(flops, bytes_per_s)
    low, high = sorted((low, high))
    assert attainable(low, made) <= attainable(high, made) <= flops
    assert attainable(ridge(made), made) == pytest.approx(flops)


@given(amounts, amounts, amounts, amounts)
def test_costs_add_and_one_after_the_other_takes_as_long_or_longer(flops, moved, more, moved_more):
    made, one, other = device(1e12, 1e10), Cost(flops, moved), Cost(more, moved_more)
    assert (one + other).flops == flops + more and (one + other).bytes == moved + moved_more
    assert seconds(one, made) + seconds(other, made) >= seconds(one + other, made) * (1 - 1e-12)


def test_work_at_the_ridge_itself_is_not_bound_by_arithmetic():
    assert bound(Cost(100.0, 1.0), device(100.0, 1.0)) == "memory"
    assert bound(Cost(101.0, 1.0), device(100.0, 1.0)) == "compute"


def test_work_that_moves_nothing_has_an_intensity():
    assert Cost(1, 0).intensity == math.inf and Cost(0, 0).intensity == 0
