"""DiT: what it must keep whatever its weights, the files that it is read from, and the kernels that run it."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu import device
from gpu.media import operations as kernels
from refimpl.contract import CheckpointError, ContractError
from refimpl.media import operations
from refimpl.media.dit import DiTSpec, condition, dit, dit_block, dit_shapes, dit_spec, dit_weights, weights_of
from refimpl.media.patch import patchify, unpatchify
from refimpl.models.tensor import Tensor
from tests.laws.strategies import assert_near, normal, seeds

SPEC = DiTSpec(2, 4, 2, 3, 3, 2, 8, 5)
CONFIG = {
    "_class_name": "DiTTransformer2DModel", "num_attention_heads": 2, "attention_head_dim": 4, "num_layers": 2,
    "in_channels": 3, "sample_size": 8, "num_embeds_ada_norm": 5,
}  # fmt: skip


def tensors(spec: DiTSpec, seed: int = 0, dtype: Any = np.float64, scale: float = 0.5) -> dict[str, Tensor]:
    """Return a file of random weights."""
    held = {}
    for i, (name, shape) in enumerate(dit_shapes(spec).values()):
        values = (scale * normal(seed + i, *shape)).astype(dtype)
        held[name] = Tensor(values.dtype.name, shape, values)
    return held


def weights(spec: DiTSpec, seed: int = 0, dtype: Any = np.float64) -> dict[str, np.ndarray]:
    return dit_weights(tensors(spec, seed), spec, dtype)


@given(seeds, st.sampled_from([(2, 2), (2, 6), (8, 4)]), st.floats(0, 999), st.integers(0, 5))
def test_a_picture_becomes_a_picture(seed, size, timestep, label):
    x, spec = normal(seed, 3, *size), replace(SPEC, out_channels=6)
    y = dit(x, timestep, label, weights(spec), spec, operations)
    assert y.shape == (6, *size) and np.isfinite(y).all() and y.dtype == np.float64
    assert np.array_equal(y, dit(x, timestep, label, weights(spec), spec, operations))


@given(seeds)
def test_closed_gates_pass_the_patches_on(seed):
    """adaLN-zero begins so: modulations of 0 make a layer that changes nothing."""
    layer = weights_of(weights(SPEC), 0) | {"w_modulation": np.zeros((48, 8)), "b_modulation": np.zeros(48)}
    x, told = normal(seed, 6, 8), normal(seed + 1, 1, 8)
    assert np.array_equal(dit_block(x, told, layer, SPEC, operations), x)


@given(seeds)
def test_a_layer_ignores_the_order_of_patches(seed):
    x, told, layer = normal(seed, 6, 8), normal(seed + 1, 1, 8), weights_of(weights(SPEC), 1)
    order = np.random.default_rng(seed).permutation(6)
    y = dit_block(x, told, layer, SPEC, operations)
    assert_near(dit_block(x[order], told, layer, SPEC, operations), y[order], terms=1000)


def test_the_network_does_not_ignore_it():
    x, held = normal(1, 3, 4, 4), weights(SPEC)
    order = np.array([3, 0, 2, 1])
    moved = unpatchify(patchify(x, (2, 2))[order], (2, 2), (2, 2))
    y, other = (patchify(dit(each, 500, 1, held, SPEC, operations), (2, 2)) for each in (x, moved))
    assert abs(other - y[order]).max() > 0.01


def test_timestep_and_label_are_told_to_every_layer():
    x, held = normal(2, 3, 4, 4), weights(SPEC)
    said = [dit(x, t, label, held, SPEC, operations) for t, label in ((10, 1), (11, 1), (10, 2), (10, 5))]
    assert all(abs(a - b).max() > 1e-3 for i, a in enumerate(said) for b in said[:i])
    for layer in (0, 1):
        changed = held | {f"layers.{layer}.classes": held[f"layers.{layer}.classes"] + 1}
        assert abs(dit(x, 10, 1, changed, SPEC, operations) - said[0]).max() > 1e-3


def test_a_condition_is_the_sum_of_its_parts():
    layer = weights_of(weights(SPEC), 0)
    told = [condition(300.5, label, layer, np.dtype(np.float64), operations) for label in (0, 3)]
    assert_near(told[1] - told[0], (layer["classes"][3] - layer["classes"][0])[None], terms=10, scale=20.0)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_kernels_give_what_the_specification_gives(dtype):
    spec = replace(SPEC, activation="gelu_erf", attention_bias=False)
    held, x = dit_weights(tensors(spec), spec, dtype), normal(3, 3, 4, 6).astype(dtype)
    with device.use("emulated"):
        y = dit(x, 811, 2, held, spec, kernels)
    truth = dit(x.astype(np.float64), 811, 2, {n: w.astype(np.float64) for n, w in held.items()}, spec, operations)
    error = np.linalg.norm(y.astype(np.float64) - truth) / np.linalg.norm(truth)
    assert y.dtype == dtype and error < 40 * float(ml_dtypes.finfo(dtype).eps)


def test_a_timestep_is_not_rounded_to_the_dtype_of_the_picture():
    held = dit_weights(tensors(SPEC), SPEC, ml_dtypes.bfloat16)
    x = normal(4, 3, 4, 4).astype(ml_dtypes.bfloat16)
    now, later = (dit(x, t, 0, held, SPEC, operations).astype(np.float64) for t in (811, 812))  # bfloat16: both 812
    assert abs(now - later).max() > 0.01


@pytest.mark.parametrize(
    ("size", "label", "says"),
    [
        ((3, 4, 4), 6, "C2: label 6 is not in 0..5; 5 says that there is no class"),
        ((3, 4, 4), -1, "C2: label -1 is not in 0..5; 5 says that there is no class"),
        ((4, 4, 4), 0, r"C1: a picture of 3 channels, \[C Y X\], not \(4, 4, 4\)"),
        ((3, 5, 4), 0, r"C2: patches of \(2, 2\) do not divide the sizes \(5, 4\)"),
    ],
)
def test_what_does_not_fit_is_named(size, label, says):
    with pytest.raises(ContractError, match=f"^{says}$"):
        dit(normal(0, *size), 1, label, weights(SPEC), SPEC, operations)


def test_a_config_is_read_with_the_defaults_of_diffusers():
    assert dit_spec(CONFIG) == SPEC
    assert dit_spec({"_class_name": "DiTTransformer2DModel"}) == DiTSpec(16, 72, 28, 4, 4, 2, 32, 1000)
    assert dit_spec(CONFIG | {"out_channels": 6, "activation_fn": "gelu"}).activation == "gelu_erf"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"_class_name": "PixArtTransformer2DModel"}, "_class_name must be one of DiTTransformer2DModel"),
        ({"norm_type": "ada_norm"}, "norm_type must be one of ada_norm_zero"),
        ({"norm_elementwise_affine": True}, "norm_elementwise_affine = True is not supported"),
        ({"activation_fn": "geglu"}, "activation_fn must be one of gelu, gelu-approximate"),
        ({"cross_attention_dim": 8}, "key 'cross_attention_dim' = 8 is not supported"),
        ({"attention_head_dim": 3}, "2 heads of 3 are a width that 4 does not divide"),
        ({"patch_size": 16}, "patches of 16 in pictures of 8"),
        ({"num_layers": 0}, "num_layers must be an integer from 1 to 4096, not 0"),
    ],
)
def test_a_config_of_another_model_is_refused(change, says):
    with pytest.raises(CheckpointError, match=f"^config.json: {says}"):
        dit_spec(CONFIG | change)


def test_weights_are_checked_by_name_and_shape():
    held = tensors(SPEC)
    for changed, says in (
        ({n: t for n, t in held.items() if n != "proj_out_1.bias"}, "tensor proj_out_1.bias is missing; expected [16]"),
        (held | {"proj_out_1.bias": held["proj_out_2.bias"]}, "tensor proj_out_1.bias: expected [16], found [12]"),
        (held | {"more": held["proj_out_2.bias"]}, "tensor more is not part of this DiT model (1 such tensors)"),
    ):
        with pytest.raises(CheckpointError) as error:
            dit_weights(changed, SPEC)
        assert str(error.value) == says
