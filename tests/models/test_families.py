"""Every folder of golden/families against the answers of transformers, and every family's refusals by name.

A folder is found by its place: a family that is added brings its own, and no test names it.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu
import refimpl
from refimpl.contract import CheckpointError
from refimpl.files.checkpoint import read_folder
from refimpl.models.families import families, read_spec, read_weights
from refimpl.models.tensor import Tensor

GOLDEN = Path(__file__).parents[2] / "golden" / "families"
META = {path.parent.name: json.loads(path.read_text()) for path in sorted(GOLDEN.glob("*/meta.json"))}
DECODERS = [name for name, meta in META.items() if meta["kind"] == "causal-lm"]
LOADERS: dict[str, Callable[[str], Any]] = {
    "refimpl": refimpl.load,
    "refimpl in float64": lambda path: refimpl.load(path, dtype="float64"),
    "gpu on a CPU": lambda path: gpu.load(path, device="cpu"),
}
EXACT = 1e-11  # of float64, relative: its noise is 1e-14


@cache
def answers(name: str) -> dict[str, np.ndarray]:
    return dict(np.load(GOLDEN / name / "expected.npz"))


@cache
def config_of(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / name / "config.json").read_text())


@cache
def tensors_of(name: str) -> dict[str, Tensor]:
    return read_folder(GOLDEN / name)[1]


def judge(what: str, got: np.ndarray, want: np.ndarray, most: float, relative: float) -> None:
    difference = np.asarray(got, np.float64) - want
    assert np.abs(difference).max() <= most, what
    assert np.linalg.norm(difference) <= relative * np.linalg.norm(want), what


def test_every_folder_is_of_a_known_kind_and_small():
    sizes = {path.name: sum(file.stat().st_size for file in path.iterdir()) for path in GOLDEN.iterdir()}
    assert sizes.keys() == META.keys()
    assert {name for name, meta in META.items() if meta["kind"] not in ("causal-lm", "encoder", "seq2seq")} == set()
    assert max(sizes.values()) < 150_000
    assert {name: meta["weak_sensitivity"] for name, meta in META.items() if meta.get("weak_sensitivity")} == {}
    assert {name: meta["dead_parameters"] for name, meta in META.items() if meta.get("dead_parameters")} == {}


def test_every_model_type_has_a_folder():
    known = {kind for family in families().values() for kind in family.MODEL_TYPES}
    assert known - {config_of(name)["model_type"] for name in META} == set()


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("name", DECODERS)
def test_logits_are_those_of_transformers(name: str, loader: str):
    model, expected, exact = LOADERS[loader](str(GOLDEN / name)), answers(name), loader.endswith("float64")
    for key, ids in expected.items():
        if not key.endswith("input_ids"):
            continue
        logits = key.replace("input_ids", "logits")
        truth, allowed = expected[logits].astype(np.float64), META[name]["tolerances"][logits]
        truth = truth + expected[logits + "_lo"] if exact else truth
        most = EXACT * np.abs(truth).max() if exact else allowed["max_abs"]
        got = np.stack([model.logits(row) for row in ids])
        judge(logits, got, truth, most, EXACT if exact else allowed["rel_l2"])


@pytest.mark.parametrize("loader", ["refimpl", "gpu on a CPU"])
@pytest.mark.parametrize("name", DECODERS)
def test_hidden_states_are_those_of_transformers(name: str, loader: str):
    expected, allowed = answers(name), META[name]["tolerances"]["logits"]["rel_l2"]
    states = LOADERS[loader](str(GOLDEN / name)).hidden_states(expected["input_ids"][0])
    assert len(states) == len(expected["hidden_states"])
    for layer, (got, want) in enumerate(zip(states, expected["hidden_states"], strict=True)):
        judge(f"state {layer}", got, want, 10 * allowed * np.abs(want).max(), allowed)


@pytest.mark.parametrize("loader", ["refimpl", "gpu on a CPU"])
@pytest.mark.parametrize("name", DECODERS)
def test_greedy_ids_are_those_of_transformers(name: str, loader: str):
    model, expected = LOADERS[loader](str(GOLDEN / name)), answers(name)
    got = [list(model.greedy(row, expected["greedy"].shape[1])) for row in expected["input_ids"]]
    assert got in (expected["greedy"].tolist(), expected["greedy_nocache"].tolist())


@pytest.mark.parametrize("name", DECODERS)
def test_both_spellings_of_a_config_are_one_model(name: str):
    version_5 = json.loads((GOLDEN / name / "config.v5.json").read_text())
    assert read_spec(version_5) == read_spec(config_of(name))


def refusal(name: str, config: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    with pytest.raises(CheckpointError) as refused:
        read_weights(tensors, read_spec(config))
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("name", META)
def test_an_unknown_key_that_is_set_is_refused_by_name(name: str):
    assert "'twist_factor' = 0.5" in refusal(name, config_of(name) | {"twist_factor": 0.5}, tensors_of(name))


@pytest.mark.parametrize("name", META)
def test_an_unknown_key_that_is_not_set_is_no_matter(name: str):
    for off in (None, False, "", [], {}):
        assert read_spec(config_of(name) | {"twist_factor": off}) == read_spec(config_of(name))


@pytest.mark.parametrize("name", DECODERS)
def test_every_missing_or_misshapen_tensor_is_refused_by_name(name: str):
    tensors = tensors_of(name)
    for lost, tensor in tensors.items():
        others = {other: kept for other, kept in tensors.items() if other != lost}
        if lost.startswith("lm_head") and read_spec(config_of(name)).tied_embeddings:
            continue
        assert f"tensor {lost} is missing" in refusal(name, config_of(name), others)
        longer = Tensor("float32", (tensor.shape[0] + 1, *tensor.shape[1:]), lambda: np.zeros(1, np.float32))
        assert f"tensor {lost}: expected" in refusal(name, config_of(name), {**tensors, lost: longer})


@pytest.mark.parametrize("name", DECODERS)
def test_a_tensor_too_many_is_refused_by_name(name: str):
    tensors = tensors_of(name)
    extra = next(other for other in tensors if "layers.1." in other or "h.1." in other).replace(".1.", ".7.", 1)
    more = {**tensors, extra: next(iter(tensors.values()))}
    assert f"tensor {extra} is not part" in refusal(name, config_of(name), more)
    assert "tensor twist.weight is not part" in refusal(name, config_of(name), {**tensors, "twist.weight": more[extra]})
