"""--verify finds what is wrong, and where; it knows what the flags ask for."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu
import refimpl
from gpu.cli.arguments import parse_arguments
from gpu.run import main
from gpu.verify import layer_errors, reference
from refimpl import operations
from refimpl.llm.quantize import quantize_int8
from refimpl.model import Source, open_model
from refimpl.models.spec import MoeSpec, weight_shapes
from refimpl.models.tensor import Tensor

IDS = list(range(40, 60))
ASK = ["the cat sat on the mat", "--raw", "-n", "16", "--ignore-eos", "--verify"]


def _q8_0(tensor: Tensor) -> Tensor:
    """Quantise a matrix to blocks of 32: a float16 scale and 32 int8."""
    codes, scales = quantize_int8(tensor.read().reshape(-1, tensor.shape[-1]))
    parts = scales.astype(np.float16).view(np.uint8).reshape(*scales.shape, 2), codes.view(np.uint8)
    blocks = np.concatenate([parts[0], parts[1].reshape(*scales.shape, 32)], axis=-1)
    return Tensor("q8_0", tensor.shape, blocks.reshape(*tensor.shape[:-1], -1))


@pytest.fixture
def quantised(model: str, monkeypatch: pytest.MonkeyPatch) -> Source:
    """The model in q8_0, as what every file turns out to hold."""
    source = open_model(model)
    weights = {name: _q8_0(t) if len(t.shape) == 2 else t for name, t in source.weights.items()}
    source = replace(source, weights=weights)
    for module in ("gpu.model", "gpu.verify"):
        monkeypatch.setattr(f"{module}.open_model", lambda ref, offline: source)
    return source


def test_the_first_wrong_layer_is_named(model: str) -> None:
    truth = refimpl.load(model, dtype="float64").hidden_states(IDS)
    plain = refimpl.load(model).hidden_states(IDS)
    assert all(error.rounding for error in layer_errors(plain, plain, truth))
    wrong = [plain[0], plain[1] * np.float32(1 + 1e-4), plain[2]]
    assert [error.rounding for error in layer_errors(wrong, plain, truth)] == [True, False, True]


def test_another_model_is_not_the_reference(model: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    config = other / "config.json"
    config.write_text(config.read_text().replace('"rope_theta": 10000.0', '"rope_theta": 100.0'))
    monkeypatch.setattr("gpu.cli.answering.load_model", lambda options: gpu.load(str(other)))
    assert main(["-m", model, *ASK]) == 1
    err = capsys.readouterr().err
    assert "layer 0 is the first to differ beyond float32 rounding" in err and "the reference's is" in err


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_reference_has_the_weights_that_were_asked_for(
    model: str, dtype: str, monkeypatch: Any, capsys: Any
) -> None:
    assert main(["-m", model, *ASK, "--dtype", dtype]) == 0
    assert "no layer differs beyond float32 rounding" in capsys.readouterr().err
    monkeypatch.setattr("gpu.cli.answering.load_model", lambda options: gpu.load(model, dtype=dtype))
    assert main(["-m", model, *ASK, "-n", "1"]) == 1  # a layer that differs is a difference, whatever the ids are
    err = capsys.readouterr().err
    assert "embedding is the first to differ beyond" in err and "all 1 ids are the reference's" in err


def test_inputs_rounded_to_int8_are_judged_as_such(quantised: Source, monkeypatch: Any, capsys: Any) -> None:
    assert main([*ASK, "--activations", "int8"]) == 0
    assert "no layer differs beyond int8 rounding" in capsys.readouterr().err
    mixers = (replace(mixer, rope=replace(mixer.rope, theta=100.0)) for mixer in quantised.spec.mixers)
    layers = tuple(replace(layer, mixer=mixer) for layer, mixer in zip(quantised.spec.layers, mixers, strict=True))
    theta = replace(quantised, spec=replace(quantised.spec, layers=layers))
    monkeypatch.setattr("gpu.model.open_model", lambda ref, offline: theta)
    assert main([*ASK, "--activations", "int8"]) == 1
    assert "is the first to differ beyond int8 rounding" in capsys.readouterr().err


MIXTURES = {
    "shared": MoeSpec(4, 2, 32, shared_size=64, shared_gate=True),
    "clamped": MoeSpec(4, 2, 32, "swiglu_clamped", 2.0, "top_k_softmax", router_bias=True, biases=True),
    "weighed inputs": MoeSpec(4, 1, 32, router="top_k_sigmoid", weight_inputs=True),
}


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("flags", [[], ["--activations", "int8"], ["--dtype", "bfloat16"]])
def test_mixtures_are_judged_too(
    name: str, flags: list[str], quantised: Source, monkeypatch: Any, capsys: Any
) -> None:
    layers = tuple(replace(layer, network=MIXTURES[name]) for layer in quantised.spec.layers)
    spec, rng = replace(quantised.spec, layers=layers), np.random.default_rng(5)
    weights = dict(quantised.weights)
    for weight, shape in weight_shapes(spec).items():
        if weight not in weights:
            tensor = Tensor("float32", shape, rng.standard_normal(shape, np.float32) * np.float32(0.4))
            weights[weight] = tensor if len(shape) == 1 or ".b_" in weight else _q8_0(tensor)
    mixed = replace(quantised, spec=spec, weights={weight: weights[weight] for weight in weight_shapes(spec)})
    for module in ("gpu.model", "gpu.verify"):
        monkeypatch.setattr(f"{module}.open_model", lambda ref, offline: mixed)
    assert main([*ASK, *flags]) == 0
    assert "no layer differs beyond" in capsys.readouterr().err


def test_int8_is_the_arithmetic_of_the_specification(quantised: Source) -> None:
    options = parse_arguments(["x", "--activations", "int8"])
    plain, rounded = reference(options, np.float32), reference(options, np.float32, "int8")
    states = gpu.load("any", activations="int8").hidden_states(IDS)[1]
    near, far = (np.abs(states - other.hidden_states(IDS)[1]).max() for other in (rounded, plain))
    assert near < far / 4
    assert rounded.weights["lm_head"] is quantised.weights["embedding"] and "lm_head" not in plain.weights


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_plain_weights_stay_in_float32(quantised: Source, activation: str) -> None:
    ops = reference(parse_arguments(["x"]), np.float32, "int8").ops
    rng = np.random.default_rng(3)
    x, w, v, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 4), (6, 4), (4, 6), 6, 4))
    for got, wanted in (
        (ops.linear(x, w, b), operations.linear(x, w, b)),
        (ops.mlp(x, w, v, b, c, activation=activation), operations.mlp(x, w, v, b, c, activation=activation)),
        (
            ops.gated_mlp(x, w, w, v, b, b, c, activation=activation),
            operations.gated_mlp(x, w, w, v, b, b, c, activation=activation),
        ),
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
