"""The RoPE scalings against their definitions, one pair at a time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.llm.rope_scaling import rope_frequencies
from tests.laws.strategies import assert_near

dims = st.integers(2, 32).map(lambda pairs: 2 * pairs)
thetas = st.sampled_from([20.0, 500.0, 1e4, 5e5])
factors = st.floats(1.0, 64.0)
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
LONG = {"short_factor": [1.0, 2.0], "long_factor": [4.0, 8.0], "original_max_position_embeddings": 4096}


@given(dims, thetas)
def test_plain_frequencies(dim, theta):
    inv_freq, factor = rope_frequencies(dim, theta)
    assert inv_freq.dtype == np.float64 and factor == 1.0
    assert_near(inv_freq, [1.0 / theta ** (2 * i / dim) for i in range(dim // 2)])


@given(dims, thetas, factors)
def test_linear_divides_positions(dim, theta, factor):
    scaled, attention_factor = rope_frequencies(dim, theta, scaling="linear", factor=factor)
    assert_near(scaled * 1000 * factor, rope_frequencies(dim, theta)[0] * 1000)
    assert attention_factor == 1.0


@given(dims, thetas, factors, st.integers(1, 100_000))
def test_dynamic_keeps_the_first_pair_and_stretches_the_last(dim, theta, factor, seq_len):
    params = {"factor": factor, "max_position_embeddings": 1000}
    scaled = rope_frequencies(dim, theta, scaling="dynamic", seq_len=seq_len, **params)[0]
    plain = rope_frequencies(dim, theta)[0]
    stretch = factor * max(seq_len, 1000) / 1000 - (factor - 1)
    assert scaled[0] == 1.0
    assert scaled[-1] == pytest.approx(plain[-1] / stretch, rel=1e-12)


def test_dynamic_calls_stand_alone():
    params = {"scaling": "dynamic", "factor": 2.0, "max_position_embeddings": 16}
    short = rope_frequencies(8, **params, seq_len=8)[0]
    rope_frequencies(8, **params, seq_len=4096)
    assert np.array_equal(rope_frequencies(8, **params, seq_len=8)[0], short)
    assert np.array_equal(rope_frequencies(8, **params)[0], short)


@given(thetas, st.floats(1.5, 64.0), st.floats(2.0, 64.0), st.booleans())
def test_yarn_pair_by_pair(theta, factor, beta_fast, truncate):
    original, dim, beta_slow = 4096, 32, 1.0
    scaled, attention_factor = rope_frequencies(
        dim, theta, scaling="yarn", factor=factor, original_max_position_embeddings=original,
        beta_fast=beta_fast, beta_slow=beta_slow, truncate=truncate,
    )
    low = dim * math.log(original / (beta_fast * 2 * math.pi)) / (2 * math.log(theta))
    high = dim * math.log(original / (beta_slow * 2 * math.pi)) / (2 * math.log(theta))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    for i in range(dim // 2):
        plain = theta ** (-2 * i / dim)
        ramp = min(1.0, max(0.0, (i - low) / (high - low if high != low else 0.001)))
        assert scaled[i] == pytest.approx(plain / factor * ramp + plain * (1 - ramp), rel=1e-12)
    assert attention_factor == pytest.approx(0.1 * math.log(factor) + 1)


@pytest.mark.parametrize(
    ("given_params", "wanted"),
    [
        ({"factor": 40.0}, 1.3688879454113936),
        ({"factor": 1.0}, 1.0),
        ({"factor": 0.5}, 1.0),
        ({"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"factor": 40.0, "mscale": 1.0}, 1.3688879454113936),
        ({"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.0}, 1.3688879454113936),
        ({"factor": 40.0, "mscale": 2.0, "mscale_all_dim": 1.0}, 1.7377758908227872 / 1.3688879454113936),
        ({"factor": 40.0, "attention_factor": 1.25, "mscale": 1.0, "mscale_all_dim": 1.0}, 1.25),
        ({"factor": None, "max_position_embeddings": 163840}, 1.3688879454113936),
    ],
)
def test_yarn_attention_factor(given_params, wanted):
    found = rope_frequencies(64, scaling="yarn", original_max_position_embeddings=4096, **given_params)[1]
    assert found == pytest.approx(wanted, rel=1e-15)


def test_yarn_of_factor_one_changes_nothing():
    plain = rope_frequencies(64)[0]
    scaled, factor = rope_frequencies(64, scaling="yarn", factor=1.0, original_max_position_embeddings=4096)
    assert_near(scaled, plain)
    assert factor == 1.0


def test_llama3_wavelength_by_wavelength():
    theta, dim = 5e5, 128
    scaled, attention_factor = rope_frequencies(dim, theta, scaling="llama3", **LLAMA3)
    kinds = set()
    for i in range(dim // 2):
        plain = theta ** (-2 * i / dim)
        wavelength = 2 * math.pi / plain
        if wavelength < 8192 / 4:
            kind, wanted = "kept", plain
        elif wavelength > 8192 / 1:
            kind, wanted = "stretched", plain / 8
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            kind, wanted = "between", (1 - smooth) * plain / 8 + smooth * plain
        kinds.add(kind)
        assert scaled[i] == pytest.approx(wanted, rel=1e-13)
    assert kinds == {"kept", "between", "stretched"} and attention_factor == 1.0


def test_llama3_with_equal_factors_is_a_step():
    """Llama 4 Scout: what turns once and more within the trained length is kept, the rest stretched."""
    both = LLAMA3 | {"low_freq_factor": 1.0, "high_freq_factor": 1.0}
    plain = rope_frequencies(128, 5e5)[0]
    wanted = np.where(plain * 8192 >= 2 * np.pi, plain, plain / 8)
    np.testing.assert_array_equal(rope_frequencies(128, 5e5, scaling="llama3", **both)[0], wanted)


@pytest.mark.parametrize(("seq_len", "divisors"), [(None, [1, 2]), (4096, [1, 2]), (4097, [4, 8])])
def test_longrope_chooses_its_list_by_length(seq_len, divisors):
    scaled, _ = rope_frequencies(4, scaling="longrope", seq_len=seq_len, factor=32.0, **LONG)
    assert_near(scaled, [1.0 / divisors[0], 0.01 / divisors[1]])


@pytest.mark.parametrize(
    ("given_params", "wanted"),
    [
        ({"max_position_embeddings": 131072}, math.sqrt(17 / 12)),  # Phi-3: ln 32 / ln 4096 = 5 / 12
        ({"factor": 32.0}, math.sqrt(17 / 12)),
        ({"factor": 32.0, "attention_factor": 1.0}, 1.0),
        ({"factor": 1.0}, 1.0),
        ({"max_position_embeddings": 4096}, 1.0),
        ({"factor": 0.5}, 1.0),
    ],
)
def test_longrope_attention_factor(given_params, wanted):
    assert rope_frequencies(4, scaling="longrope", **LONG, **given_params)[1] == pytest.approx(wanted, rel=1e-15)


def test_absent_and_null_parameters_are_one():
    with_nulls = rope_frequencies(8, scaling="linear", factor=2.0, attention_factor=None, beta_fast=None)[0]
    assert np.array_equal(with_nulls, rope_frequencies(8, scaling="linear", factor=2.0)[0])
