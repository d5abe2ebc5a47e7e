"""The kernels of the layers of denoisers give what the reference gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu import device
from gpu.media.adaln import adaln, gated_residual
from gpu.media.patch import patchify, unpatchify
from gpu.media.timestep import timestep_embedding
from gpu.registry import variants
from refimpl.contract import ContractError
from tests.equivalence.strategies import (
    assert_equivalent,
    dtypes,
    each_kernel,
    examples,
    numbers,
    seeds,
    specials,
    widths,
)
from tests.laws.test_denoiser_layers import BROKEN

tokens = st.sampled_from((0, 1, 2, 5))
sides = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=2, max_size=3)  # patches, and their size


@each_kernel("timestep_embedding")
@examples
@given(
    seeds, st.sampled_from((0, 1, 3, 65)), st.integers(4, 70), st.booleans(), st.sampled_from((0.0, 0.5, 1.0)),
    st.sampled_from((1.0, 1000.0)), dtypes, specials,
)  # fmt: skip
def test_timestep_embedding(kernel, seed, T, dim, flip, less, scale, dtype, special):
    timesteps = (numbers(seed, T, dtype="float32", special=special) * 300).astype(numbers(0, 1, dtype=dtype).dtype)
    keywords = {"flip_sin_to_cos": flip, "downscale_freq_shift": less, "scale": scale}
    assert_equivalent(kernel, {"timesteps": timesteps, "dim": dim} | keywords, dtype, terms=4)


@each_kernel("adaln")
@examples
@given(seeds, tokens, widths, dtypes, dtypes, dtypes, st.booleans(), specials)
def test_adaln(kernel, seed, T, D, dtype, shift_dtype, scale_dtype, each, special):
    told, x = (T, D) if each else (D,), numbers(seed, T, D, dtype=dtype, special=special)
    shift, scale = numbers(seed + 1, *told, dtype=shift_dtype), numbers(seed + 2, *told, dtype=scale_dtype)
    assert_equivalent(kernel, {"x": x, "shift": shift, "scale": scale, "eps": 1e-3}, dtype, terms=16 * D)


@each_kernel("gated_residual")
@examples
@given(seeds, tokens, widths, dtypes, dtypes, dtypes, st.booleans(), specials)
def test_gated_residual(kernel, seed, T, D, dtype, y_dtype, gate_dtype, each, special):
    x, y = numbers(seed, T, D, dtype=dtype), numbers(seed + 1, T, D, dtype=y_dtype, special=special)
    gate = numbers(seed + 2, *((T, D) if each else (D,)), dtype=gate_dtype)
    assert_equivalent(kernel, {"x": x, "y": y, "gate": gate}, dtype, terms=8)


@each_kernel("patchify")
@examples
@given(seeds, st.integers(1, 3), sides, st.booleans(), dtypes, specials)
def test_patchify(kernel, seed, C, sides, last, dtype, special):
    x = numbers(seed, C, *(n * p for n, p in sides), dtype=dtype, special=special)
    assert_equivalent(kernel, {"x": x, "patch": tuple(p for _, p in sides), "channels_last": last}, dtype, exact=True)


@each_kernel("unpatchify")
@examples
@given(seeds, st.integers(1, 3), sides, st.booleans(), dtypes, specials)
def test_unpatchify(kernel, seed, C, sides, last, dtype, special):
    grid, patch = zip(*sides, strict=True)
    x = numbers(seed, int(np.prod(grid)), C * int(np.prod(patch)), dtype=dtype, special=special)
    arguments = {"x": x, "grid": grid, "patch": patch, "channels_last": last}
    assert_equivalent(kernel, arguments, dtype, exact=True)


@given(seeds, st.integers(1, 3), sides, st.booleans())
def test_patches_are_undone(seed, C, sides, last):
    grid, patch = zip(*sides, strict=True)
    x = numbers(seed, C, *(n * p for n, p in sides))
    assert np.array_equal(unpatchify(patchify(x, patch, channels_last=last), grid, patch, channels_last=last), x)


def test_timesteps_of_any_size_keep_their_digits():
    t = np.float32([0, 0.25, 999.75, 65504, 1e9])
    wanted = np.sin(t.astype(np.float64))
    assert abs(timestep_embedding(t, 4)[:, 0] - wanted).max() < 3e-7


def test_no_token_is_no_launch():
    x, told = np.zeros((0, 3), np.float32), np.zeros(3, np.float32)
    with device.recording() as launches:
        shapes = [adaln(x, told, told).shape, gated_residual(x, x, told).shape, timestep_embedding(x[:, 0], 6).shape]
    assert shapes == [(0, 3), (0, 3), (0, 6)] and launches == []


TWIN = {variant.op: variant.call for variant in variants() if variant.name == "numba"}


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("function", "label", "arguments", "keywords"), BROKEN, ids=[f"{row[0].__name__}-{row[1]}" for row in BROKEN]
)
def test_refused_by_label(function, label, arguments, keywords):
    with pytest.raises(ContractError, match=f"^{label}: "):
        TWIN[function.__name__](*arguments, **keywords)


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("timestep_embedding", (np.ones(2), 8)), ("adaln", (np.ones((2, 3)), np.ones(3), np.ones(3))),
        ("gated_residual", (np.ones((2, 3)), np.ones((2, 3)), np.ones(3))), ("patchify", (np.ones((1, 2, 2)), (1, 2))),
        ("unpatchify", (np.ones((1, 2)), (1, 1), (1, 2))),
    ],
)  # fmt: skip
def test_float64_is_refused_by_name(op, arguments):
    with pytest.raises(ContractError, match=r"^kernels take float32, bfloat16 and float16, not float64$"):
        TWIN[op](*arguments)
