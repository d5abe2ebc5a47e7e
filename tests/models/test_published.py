"""random:NAME: the sizes that were published, each with where it was said, and weights that are drawn when read."""

import math

import numpy as np
import pytest

from refimpl.bottleneck.serving import kv_bytes_per_token, parameters
from refimpl.contract import UsageError
from refimpl.model import Model, open_model
from refimpl.models.encoder_spec import EncoderSpec, encoder_decoder_shapes, encoder_shapes
from refimpl.models.families import read_spec
from refimpl.models.published import published, published_config, random_weights
from refimpl.models.spec import MoeSpec, weight_shapes

TOTALS = {  # in 10^9
    "gemma-2-2b": (2.61, "model card: 2.61B as safetensors"),
    "gemma-3-1b": (1.00, "Gemma 3 Technical Report, table 1: 302M + 698M"),
    "gemma-3-270m": (0.268, "model card: 170M of embeddings and 100M"),
    "gemma-3-27b": (27.016, "Gemma 3 Technical Report, table 1: 1,416M + 25,600M beside the encoder of pictures"),
    "glm-4.5-air": (106, "GLM-4.5 report, table 1, without the layer that predicts a second token"),
    "gpt-oss-120b": (116.83, "gpt-oss model card, table 1"),
    "gpt-oss-20b": (20.91, "gpt-oss model card, table 1"),
    "gpt2": (0.124, "openai/gpt-2, README: 124M"),
    "granite-3.3-8b": (8.17, "model card: 8.17B as safetensors"),
    "llama-2-7b": (6.74, "model card: 6.74B as safetensors"),
    "llama-3.1-405b": (405.9, "model card: 406B as safetensors"),
    "llama-3.1-70b": (70.6, "model card: 70.6B as safetensors"),
    "llama-3.1-8b": (8.03, "model card: 8.03B as safetensors"),
    "llama-3.2-1b": (1.23, "model card: 1.23B"),
    "llama-3.2-3b": (3.21, "model card: 3.21B"),
    "llama-4-scout": (107.77, "the language model of the 109B: model card, 109B"),
    "mistral-7b": (7.24, "model card: 7.24B as safetensors"),
    "mixtral-8x22b": (141, "announcement: 141B, 39B of them active"),
    "mixtral-8x7b": (46.7, "announcement: 46.7B, 12.9B of them active"),
    "olmo-2-7b": (7.30, "model card: 7.3B as safetensors"),
    "phi-3-mini": (3.82, "Phi-3 Technical Report: 3.8B; 3.82B as safetensors"),
    "qwen1.5-moe-a2.7b": (14.3, "model card: 14.3B, 2.7B of them active"),
    "qwen2.5-0.5b": (0.494, "model card: 0.49B; 494M as safetensors"),
    "qwen2.5-7b": (7.61, "model card: 7.61B"),
    "qwen3-0.6b": (0.596, "model card: 0.6B, 0.44B without embeddings"),
    "qwen3-235b-a22b": (235, "Qwen3 Technical Report: 235B, 22B of them active"),
    "qwen3-30b-a3b": (30.5, "model card: 30.5B, 3.3B of them active"),
    "qwen3-32b": (32.8, "model card: 32.8B"),
    "qwen3-4b": (4.02, "model card: 4.0B; 4.02B as safetensors"),
    "qwen3-8b": (8.19, "model card: 8.2B; 8.19B as safetensors"),
    "smollm2-135m": (0.1345, "model card: 135M; 134.5M as safetensors"),
    "smollm3-3b": (3.08, "model card: 3B; 3.08B as safetensors"),
}  # fmt: skip

ACTIVE = {  # in 10^9, with the unit of the last digit that was published; cards differ in what they call active
    "mixtral-8x7b": (12.9, 0.1, 0),
    "mixtral-8x22b": (39, 1, 0),
    "qwen3-30b-a3b": (3.3, 0.1, 0),
    "qwen3-235b-a22b": (22, 1, 0),
    "qwen1.5-moe-a2.7b": (2.7, 0.1, 0),
    "gpt-oss-20b": (3.61, 0.01, 1),  # the model card counts the head, and not the table of embeddings
    "gpt-oss-120b": (5.13, 0.01, 1),
    "glm-4.5-air": (12, 1, 2),  # neither
    "llama-4-scout": (17, 1, 0),
}


ENCODERS = {  # in 10^6, of the weights whose names do not begin so: heads of training, or those that a family has not
    "bart-base": (139, (), "BART, 2019: base; model card, 139M"),
    "bert-base": (110, ("mask", "next", "classify"), "BERT, 2018: 110M"),
    "clip-vit-large": (123.65, ("mask", "next", "classify", "pool"), "openai/CLIP: 428M less 304M of the eye"),
    "distilbert-base": (66.4, ("mask", "next", "classify", "pool"), "DistilBERT, 2019: 66M"),
    "roberta-base": (125, ("mask", "next", "classify"), "RoBERTa, 2019: 125M"),
    "t5-small": (60.5, (), "T5, 2020: 60M; model card, 60.5M"),
}  # fmt: skip


@pytest.mark.parametrize("name", published("encoders"))
def test_encoders_have_the_parameters_that_were_published(name: str) -> None:
    spec = read_spec(published("encoders")[name])
    shapes = encoder_shapes(spec) if isinstance(spec, EncoderSpec) else encoder_decoder_shapes(spec)
    said, without, _ = ENCODERS[name]
    total = sum(math.prod(shape) for weight, shape in shapes.items() if not weight.startswith(without or "-"))
    assert total / 1e6 == pytest.approx(said, rel=0.01)


def test_every_published_model_has_its_number() -> None:
    assert TOTALS.keys() == published().keys() and list(published()) == sorted(published())
    mixtures = {name for name in TOTALS if isinstance(read_spec(published_config(name)).layers[-1].network, MoeSpec)}
    assert ACTIVE.keys() == mixtures


@pytest.mark.parametrize("name", TOTALS)
def test_parameters_are_those_published(name: str) -> None:
    spec = read_spec(published_config(f"random:{name}"))
    total, active = parameters(spec)
    assert total / 1e9 == pytest.approx(TOTALS[name][0], rel=0.01)
    if name in ACTIVE:
        said, unit, tables = ACTIVE[name]
        assert abs((active - tables * spec.vocab_size * spec.hidden_size) / 1e9 - said) <= max(0.01 * said, unit)
    else:
        assert active == total


@pytest.mark.parametrize(
    ("name", "kib"),
    [("llama-3.1-8b", 128), ("llama-3.1-70b", 320), ("qwen3-235b-a22b", 188), ("gpt-oss-20b", 48), ("gpt2", 36)],
)
def test_cache_of_a_token_in_float16(name: str, kib: int) -> None:  # 2 layers heads width 2 bytes
    assert kv_bytes_per_token(read_spec(published_config(name))) == kib * 1024


def test_what_layers_of_known_models_are() -> None:
    specs = {name: read_spec(published_config(name)) for name in published()}
    windows = {name: [mixer.window for mixer in spec.mixers] for name, spec in specs.items()}
    assert windows["gpt-oss-20b"] == [128, None] * 12 and windows["mistral-7b"] == [4096] * 32
    assert windows["gemma-3-270m"] == ([512] * 5 + [None]) * 3 and windows["gemma-2-2b"] == [4096, None] * 13
    assert [mixer.rope is None for mixer in specs["smollm3-3b"].mixers] == [False, False, False, True] * 9
    kinds = [isinstance(layer.network, MoeSpec) for layer in specs["glm-4.5-air"].layers]
    assert kinds == [False] + [True] * 45
    assert all(mixer.sinks for mixer in specs["gpt-oss-20b"].mixers)


def test_an_unknown_name_is_one_line_of_known_ones() -> None:
    with pytest.raises(UsageError, match=r"^there is no random:gpt-5; there are gemma-2-2b, .*, smollm3-3b$"):
        open_model("random:gpt-5")


def test_opening_makes_no_weights_and_reading_makes_the_same_ones() -> None:
    source = open_model("random:llama-3.1-405b")
    assert source.tokenizer is None and sum(t.nbytes for t in source.weights.values()) == 2 * parameters(source.spec)[0]
    tensor = open_model("random:gemma-3-270m").weights["layers.3.w_q"]
    once, again = tensor.read(), open_model("random:gemma-3-270m").weights["layers.3.w_q"].read()
    assert tensor.shape == once.shape == (1024, 640) and np.array_equal(once, again)
    assert once.std() == pytest.approx(0.02, rel=0.01) and abs(once.mean()) < 1e-4


def test_gains_are_one_and_biases_nothing() -> None:
    gpt2 = random_weights(read_spec(published_config("gpt2")))
    gemma = random_weights(read_spec(published_config("gemma-3-270m")))
    assert (gpt2["layers.0.mlp_norm.gain"].read() == 1).all() and not gpt2["layers.0.mlp_norm.bias"].read().any()
    assert not gemma["final_norm.gain"].read().any()  # 1 is added to it


def test_an_expert_is_made_without_the_others() -> None:
    config = published_config("qwen1.5-moe-a2.7b") | {"num_experts": 9, "hidden_size": 64}
    experts = random_weights(read_spec(config))["layers.2.experts.w_up"]
    one = experts.part(7)
    assert one.shape == (1408, 64) and np.array_equal(one.data, experts.data[7])
    assert not np.array_equal(one.data, experts.part(8).data)


def test_random_weights_run() -> None:
    spec = read_spec(published_config("gemma-3-270m") | {"num_hidden_layers": 2, "layer_types": None, "vocab_size": 64})
    weights = {name: tensor.read() for name, tensor in random_weights(spec).items()}
    assert {name: array.shape for name, array in weights.items()} == weight_shapes(spec)
    logits = Model(spec, weights).logits([1, 2, 3])
    assert np.isfinite(logits).all() and math.isclose(logits.std(), 0.5, rel_tol=0.5)
