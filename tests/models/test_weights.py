"""The tensors of a file get our names, and what is missing, misshapen or left over is refused by name."""

from collections.abc import Callable

import numpy as np
import pytest

from refimpl.blocks import FORMATS
from refimpl.contract import CheckpointError, ContractError
from refimpl.models.families import read_spec, read_weights
from refimpl.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec, weight_shapes
from refimpl.models.tensor import Tensor, stack
from refimpl.models.weights import name_weights
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
    copy = tensors_of(tied)["model.embed_tokens.weight"]
    more = {"model.layers.0.self_attn.rotary_emb.inv_freq": scrap, "lm_head.weight": copy}
    assert "lm_head" not in read_weights(tensors_of(tied) | more, read_spec(tied))


def test_a_head_that_is_no_copy_of_the_embedding_is_refused():
    tied, tensors = TIED, tensors_of(TIED)
    for head in (as_tensor(np.zeros((23, 12), np.float32)), as_tensor(np.zeros(3, np.float32))):
        with pytest.raises(CheckpointError, match=r"lm_head\.weight is not the embedding, as tie_word_embeddings says"):
            read_weights(tensors | {"lm_head.weight": head}, read_spec(tied))


TIED = LLAMA | {"tie_word_embeddings": True}
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


E, D, F = 3, 4, 6
NETWORKS = MoeSpec(E, 1, F, biases=True), MlpSpec(F, "silu")
MIXTURE = ModelSpec("a mixture", 5, D, tuple(LayerSpec(AttentionSpec(1, 1, 4), network) for network in NETWORKS), 8)
DRAWN = random_weights(MIXTURE)
AROUND = {name: name for name in DRAWN if "experts" not in name}
EXPERTS = [name.removeprefix("layers.0.experts.") for name in DRAWN if "experts" in name]


def named(tensors: dict[str, np.ndarray], table: dict[str, str], **layout: tuple[str, ...]) -> None:
    """Demand the weights of the mixture from tensors beside those whose names are ours."""
    held = {name: as_tensor(DRAWN[name]) for name in AROUND} | {name: as_tensor(x) for name, x in tensors.items()}
    weights = name_weights(held, MIXTURE, AROUND | table, **layout)
    assert list(weights) == list(weight_shapes(MIXTURE))
    for name, weight in weights.items():
        np.testing.assert_array_equal(weight.read(np.float64), DRAWN[name], err_msg=name)
        if "experts" in name:
            np.testing.assert_array_equal(weight.part(1).read(np.float64), DRAWN[name][1], err_msg=name)


def test_experts_with_tensors_of_their_own_are_stacked():
    tensors = {f"m.0.e.{e}.{part}": DRAWN[f"layers.0.experts.{part}"][e] for e in range(E) for part in EXPERTS}
    table = {f"m.{{i}}.e.{{e}}.{part}": f"layers.{{i}}.experts.{part}" for part in EXPERTS}
    named(tensors, table, prefix="m.")
    named({name.removeprefix("m."): x for name, x in tensors.items()}, table, prefix="m.")
    with pytest.raises(CheckpointError, match=r"tensor m.0.e.2.w_up is missing; expected \[6, 4\]"):
        named({name: x for name, x in tensors.items() if name != "m.0.e.2.w_up"}, table)
    with pytest.raises(CheckpointError, match=r"the experts of layers.0.experts.w_up must have one format"):
        named(tensors | {"m.0.e.2.w_up": tensors["m.0.e.2.w_up"].astype(np.float32)}, table)


def stacked(in_turn: bool, turned: bool) -> dict[str, np.ndarray]:
    pairs = {kind: [DRAWN[f"layers.0.experts.{kind}_{part}"] for part in ("gate", "up")] for kind in "wb"}

    def join(x: list[np.ndarray]) -> np.ndarray:
        return np.stack(x, 2).reshape(E, 2 * F, *x[0].shape[2:]) if in_turn else np.concatenate(x, 1)

    pair, down = join(pairs["w"]), DRAWN["layers.0.experts.w_down"]
    pair, down = (x.swapaxes(1, 2) if turned else x for x in (pair, down))
    return {"pair": pair, "pair_bias": join(pairs["b"]), "down": down, "down_bias": DRAWN["layers.0.experts.b_down"]}


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_experts_of_one_tensor_are_taken_apart(in_turn: bool, turned: bool):
    both = "layers.{i}.experts.%s_gate layers.{i}.experts.%s_up"
    table = {"m.{i}.pair": both % ("w", "w"), "m.{i}.pair_bias": both % ("b", "b")}
    table |= {"m.{i}.down": "layers.{i}.experts.w_down", "m.{i}.down_bias": "layers.{i}.experts.b_down"}
    layout = {"transposed": (".pair", ".down") if turned else ()}
    layout |= {"interleaved": ("pair", "pair_bias") if in_turn else ()}
    tensors = {f"m.0.{name}": x for name, x in stacked(in_turn, turned).items()}
    named(tensors, table, **layout)
    expected = r"m.0.pair: expected \[3, 4, 12\], found" if turned else r"m.0.pair: expected \[3, 12, 4\], found"
    with pytest.raises(CheckpointError, match=expected):
        named(tensors | {"m.0.pair": tensors["m.0.pair"][:, 1:]}, table, **layout)


def test_tensors_are_made_when_they_are_asked_for():
    made = list[int]()

    def make(i: int) -> Tensor:
        def numbers() -> np.ndarray:
            made.append(i)
            return np.full((2, 3), i, np.float32)

        return Tensor("float32", (2, 3), numbers)

    cube = stack([make(i) for i in range(4)])
    assert (cube.shape, cube.nbytes, cube.is_made) == ((4, 2, 3), 96, True)
    taken = cube.take(slice(1, 3)).transposed().take(np.array([2, 0]), 1)
    assert (taken.shape, made) == ((2, 2, 2), [])
    assert taken.part(0).read().tolist() == [[1, 1], [1, 1]] and made == [1]
    np.testing.assert_array_equal(taken.read(), taken.data)
    np.testing.assert_array_equal(cube.read(np.float64), np.arange(4.0)[:, None, None] * np.ones((4, 2, 3)))
    with pytest.raises(ContractError, match=r"^C4: \(4, 2, 3\) has no entry 4"):
        cube.part(4)
    with pytest.raises(ContractError, match=r"^C2: float32"):
        _ = Tensor("float32", (2, 3), lambda: np.zeros((3, 2), np.float32)).data
    for tensors in ([], [make(0), Tensor("float16", (2, 3), np.zeros((2, 3), np.float16))]):
        with pytest.raises(ContractError, match=r"^C[12]: "):
            stack(tensors)


@pytest.mark.parametrize("form", FORMATS)
def test_experts_in_blocks_are_taken_one_by_one(form: str):
    elements, size = FORMATS[form]
    data = np.random.default_rng(0).integers(0, 100, (3, 4, 2 * size), np.uint8)
    cube = Tensor(form, (3, 4, 2 * elements), data)
    assert cube.nbytes == data.nbytes and np.shares_memory(cube.part(1).data, data)
    np.testing.assert_array_equal(cube.take(slice(1, None, 2), 1).part(2).data, data[2, 1::2])
    np.testing.assert_array_equal(cube.part(2).read(), cube.read()[2])
    with pytest.raises(ContractError, match=r"^C3: "):
        cube.take(slice(1), 2)
