"""The tensors of a file get our names, and what is missing, misshapen or left over is refused by name."""

from collections.abc import Callable

import numpy as np
import pytest

from refimpl.contract import CheckpointError
from refimpl.models.families import read_spec, read_weights
from refimpl.models.spec import weight_shapes
from refimpl.models.tensor import Tensor
from tests.models.tiny import CONFIGS, GPT2, LLAMA, published, random_weights


def as_tensor(array: np.ndarray) -> Tensor:
    return Tensor(array.dtype.name, array.shape, array)


def tensors_of(config: dict) -> dict[str, Tensor]:
    spec = read_spec(config)
    return {name: as_tensor(array) for name, array in published(random_weights(spec), spec).items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_weight_comes_back(name: str):
    spec = read_spec(CONFIGS[name])
    weights = read_weights(tensors_of(CONFIGS[name]), spec)
    expected = random_weights(spec)
    assert list(weights) == list(weight_shapes(spec))
    for key, tensor in weights.items():
        np.testing.assert_array_equal(tensor.read(), expected[key].astype(np.float32), err_msg=key)


@pytest.mark.parametrize(("config", "prefix"), [(GPT2, "transformer."), (LLAMA, "model.")])
def test_prefix_may_be_absent(config: dict, prefix: str):
    spec, tensors = read_spec(config), tensors_of(config)
    bare = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    assert read_weights(bare, spec).keys() == read_weights(tensors, spec).keys()


def test_what_old_files_keep_is_ignored():
    scrap = as_tensor(np.zeros(3, np.float32))
    mask = as_tensor(np.ones((1, 1, 32, 32), bool))
    more = {"transformer.h.0.attn.bias": mask, "transformer.h.1.attn.masked_bias": scrap}
    assert "lm_head" not in read_weights(tensors_of(GPT2) | more, read_spec(GPT2))
    tied = LLAMA | {"tie_word_embeddings": True}
    more = {"model.layers.0.self_attn.rotary_emb.inv_freq": scrap, "lm_head.weight": scrap}
    assert "lm_head" not in read_weights(tensors_of(tied) | more, read_spec(tied))


Q = "model.layers.1.self_attn.q_proj.weight"
BEYOND = "model.layers.2.mlp.up_proj.weight"
BIAS = "model.layers.0.self_attn.q_proj.bias"


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (f"tensor {Q} is missing; expected [16, 12]", lambda t: t.pop(Q)),
        ("tensor model.norm.weight is missing; expected [12]", lambda t: t.pop("model.norm.weight")),
        ("tensor lm_head.weight is missing; expected [23, 12]", lambda t: t.pop("lm_head.weight")),
        (f"tensor {Q}: expected [16, 12], found [12, 16]", lambda t: t.update({Q: t[Q].transposed()})),
        (f"tensor {Q}: expected one of float64", lambda t: t.update({Q: as_tensor(t[Q].data.astype(np.int8))})),
        (f"tensor {BEYOND} is not part", lambda t: t.update({BEYOND: t[Q]})),
        (f"tensor {BIAS} is not part", lambda t: t.update({BIAS: t["model.norm.weight"]})),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(message: str, change: Callable[[dict[str, Tensor]], None]):
    tensors = tensors_of(LLAMA)
    change(tensors)
    with pytest.raises(CheckpointError) as refusal:
        read_weights(tensors, read_spec(LLAMA))
    assert message in str(refusal.value)


def test_turned_matrices_are_expected_as_they_are_stored():
    tensors = tensors_of(GPT2)
    tensors["transformer.h.0.mlp.c_fc.weight"] = tensors["transformer.h.0.mlp.c_fc.weight"].transposed()
    with pytest.raises(CheckpointError, match=r"c_fc.weight: expected \[12, 48\], found \[48, 12\]"):
        read_weights(tensors, read_spec(GPT2))
