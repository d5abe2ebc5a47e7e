"""Encoders and encoder-decoders: the answers of transformers, and what holds whatever the weights."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpu
import refimpl
from refimpl.contract import CheckpointError, ContractError, UsageError
from refimpl.encoder_model import EncoderModel
from refimpl.files.vocabulary import Tokenizer
from refimpl.models.encoder_decoder import answer_caches, decode_answer, encode_source, memorise, token_logits
from refimpl.models.families import read_spec, read_weights
from refimpl.models.tensor import Tensor
from refimpl.seq2seq_model import Seq2SeqModel

FAMILIES = Path(__file__).parents[2] / "golden" / "families"
META = {path.parent.name: json.loads(path.read_text()) for path in sorted(FAMILIES.glob("*/meta.json"))}
ENCODERS = [name for name, meta in META.items() if meta["kind"] == "encoder"]
SEQ2SEQ = [name for name, meta in META.items() if meta["kind"] == "seq2seq"]
RIGHT = 1e-9  # relative, of float64
EMULATED = ("bert_pretraining", "umt5")


@cache
def load(name: str, implementation: str = "float64") -> Any:
    if implementation.startswith("gpu"):
        return gpu.load(FAMILIES / name, device=implementation.removeprefix("gpu-"))
    return refimpl.load(FAMILIES / name, dtype=implementation)


def stored(name: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    arrays = np.load(FAMILIES / name / "expected.npz")
    outputs = {
        key.removeprefix("out."): arrays[key].astype(np.float64) + arrays[f"{key}_lo"]
        for key in arrays.files if key.startswith("out.") and f"{key}_lo" in arrays.files
    }  # fmt: skip
    return {key.removeprefix("in."): arrays[key] for key in arrays.files if key.startswith("in.")}, outputs


def first(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return outputs | {f"{name}_first": states[:, 0] for name, states in outputs.items() if name.endswith("den_states")}


def test_every_kind_is_there():
    assert len(ENCODERS) >= 12 and len(SEQ2SEQ) >= 4
    assert {load(name).spec.family for name in ENCODERS} == {"bert", "roberta", "distilbert", "clip", "t5"}
    assert {load(name).spec.family for name in SEQ2SEQ} == {"t5", "bart"}


@pytest.mark.parametrize(
    ("name", "implementation"),
    [(name, way) for name in ENCODERS + SEQ2SEQ for way in ("float64", "float32", "gpu-cpu")]
    + [(name, "gpu-emulated") for name in EMULATED],
)
def test_the_answers_are_those_of_transformers(name: str, implementation: str):
    (inputs, expected), model = stored(name), load(name, implementation)
    outputs = first(model.forward(**inputs))
    for output, truth in expected.items():
        allowed = META[name]["tolerances"][output]
        error = np.abs(outputs[output] - truth)
        if implementation == "float64":
            assert np.linalg.norm(error) <= RIGHT * np.linalg.norm(truth), output
        else:
            assert error.max() <= allowed["max_abs"], output
            assert np.linalg.norm(error) <= allowed["rel_l2"] * np.linalg.norm(truth), output


@pytest.mark.parametrize(("dtype", "near"), [("bfloat16", 0.05), ("float16", 0.01)])
@pytest.mark.parametrize("name", ENCODERS + SEQ2SEQ)
def test_narrow_numbers_stay_narrow(name: str, dtype: str, near: float):
    inputs, expected = stored(name)
    for output, x in load(name, dtype).forward(**inputs).items():
        assert x.dtype.name == dtype
        truth = expected.get(output, x.astype(np.float64))
        assert np.linalg.norm(x.astype(np.float64) - truth) <= near * np.linalg.norm(truth), output


@pytest.mark.parametrize("implementation", ["float64", "gpu-cpu"])
@pytest.mark.parametrize("name", SEQ2SEQ)
def test_greedy_answers_are_those_of_transformers(name: str, implementation: str):
    model, inputs = load(name, implementation), stored(name)[0]
    expected = np.load(FAMILIES / name / "expected.npz")["out.greedy"]
    for ids, mask, wanted in zip(inputs["input_ids"], inputs["attention_mask"], expected.tolist(), strict=True):
        assert model.greedy(ids, len(wanted), mask) == wanted
        made = list(model.generate(ids[mask == 1].tolist(), max_tokens=len(wanted), ignore_eos=True))  # no padding
        assert [token.id for token in made] == wanted and made[-1].stop == "length"


@pytest.mark.parametrize("name", ENCODERS + SEQ2SEQ)
def test_both_spellings_of_a_config_are_one_model(name: str):
    files = ("config.json", "config.v5.json")
    classic, version_5 = (json.loads((FAMILIES / name / file).read_text()) for file in files)
    assert read_spec(classic) == read_spec(version_5)


@pytest.mark.parametrize("name", ENCODERS)
@settings(max_examples=5)
@given(st.data())
def test_padding_changes_no_real_token(name: str, data: st.DataObject):
    model = load(name)
    real = data.draw(st.integers(2, 9))
    length = data.draw(st.integers(real, 14))
    ids = np.array(data.draw(st.lists(st.integers(5, 60), min_size=length, max_size=length)))
    ids[real - 1] = end = 4 if model.spec.pools == "end" else 60  # what CLIP pools
    ids[real:] = model.spec.pad_id
    alone, padded = model.forward(ids[None, :real]), model.forward(ids[None], [[1] * real + [0] * (length - real)])
    for output, truth in alone.items():
        seen = padded[output]
        if output in ("last_hidden_state", "hidden_states") or seen.shape != truth.shape:
            seen = seen[..., :real, :]
        np.testing.assert_allclose(seen, truth, rtol=1e-10, atol=1e-10, err_msg=f"{output} {end}")


@pytest.mark.parametrize("ids", [[1, 1, 1, 9, 8, 7], [9, 1, 8, 1, 1, 7], [9, 8, 7, 1]])
def test_roberta_s_padding_may_stand_anywhere(ids: list[int]):
    model, real = load("roberta"), np.array(ids) != 1
    padded = model.forward([ids], [real.astype(int)])["last_hidden_state"][0][real]
    np.testing.assert_allclose(padded, model.forward([[9, 8, 7]])["last_hidden_state"][0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ENCODERS + SEQ2SEQ)
@pytest.mark.parametrize("implementation", ["float32", "gpu-cpu"])
def test_a_batch_is_its_texts_one_by_one(name: str, implementation: str):
    model, inputs = load(name, implementation), stored(name)[0]
    together = model.forward(**inputs)
    for i in range(len(inputs["input_ids"])):
        for output, alone in model.forward(**{key: value[i : i + 1] for key, value in inputs.items()}).items():
            axis = 1 if output.endswith("hidden_states") else 0
            np.testing.assert_array_equal(together[output].take([i], axis), alone)  # bit by bit


@pytest.mark.parametrize("name", SEQ2SEQ)
@settings(max_examples=10)
@given(st.data())
def test_steps_of_any_length_are_one_pass(name: str, data: st.DataObject):
    model = load(name)
    ids, answer = (np.array(data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=12))) for _ in range(2))
    expected = model.forward(ids, answer)["logits"][0]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(answer)), max_size=4)) | {len(answer)})
    step, start = model.sequence(ids, len(answer)), 0
    for cut in cuts:
        logits = step(answer[start:cut].tolist())
        np.testing.assert_allclose(logits, expected[cut - 1], rtol=1e-10, atol=1e-10)
        start = cut


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_a_text_leaves_no_trace_of_itself(name: str):
    model, texts = load(name, "gpu-cpu"), [[7, 9, 11, 1], [30, 31, 1]]
    alone = [[token.id for token in model.generate(text, max_tokens=8, temperature=1.0, seed=3)] for text in texts]
    again = [[token.id for token in model.generate(text, max_tokens=8, temperature=1.0, seed=3)] for text in texts]
    together: list[list[int]] = [[], []]
    for number, token in model.generate_batch(texts, max_tokens=8, temperature=0):
        together[number].append(token.id)
    greedy = [[token.id for token in model.generate(text, max_tokens=8, temperature=0)] for text in texts]
    assert alone == again and together == greedy


def test_an_answer_begins_as_the_config_says():
    config = json.loads((FAMILIES / "bart" / "config.json").read_text())
    assert read_spec(config).start_ids == (2,)
    assert read_spec(config | {"forced_bos_token_id": 0}).start_ids == (2, 0)
    assert read_spec(config | {"force_bos_token_to_be_generated": True}).start_ids == (2, 0)
    model = load("bart")
    spec = read_spec(config | {"forced_bos_token_id": 0})
    forced = Seq2SeqModel(spec, model.weights)
    step = model.sequence([5, 6, 2], 8)
    step([2])
    assert forced.greedy([5, 6, 2], 1) == [int(np.argmax(step([0])))]


def test_keys_of_the_text_are_made_once():
    model, calls = load("t5"), []
    counted = dict(vars(model.place.ops))
    counted["linear"] = lambda x, w, b=None: calls.append(len(x)) or model.place.ops.linear(x, w, b)
    ops = type("Counted", (), {name: staticmethod(value) for name, value in counted.items() if callable(value)})
    ids, seen = np.array([5, 6, 7, 8, 9, 1]), None
    memory = memorise(encode_source(ids, model.weights, model.spec, ops)[-1], model.weights, model.spec, ops)
    caches, made = answer_caches(model.spec, 4, np.float64), len(calls)
    assert calls.count(len(ids)) == made  # the encoder's and the memory's
    for token in (0, 8, 9):
        states, caches = decode_answer(np.array([token]), model.weights, model.spec, caches, memory, ops, seen=seen)
    assert set(calls[made:]) == {1} and caches[0].length == 3
    assert token_logits(states[-1], model.weights, model.spec, ops).shape == (1, 61)


def test_only_differences_of_biases_by_distance_count():
    """A softmax does not see what is added to all scores of a query; T5's table is its only notion of order."""
    model, ids = load("t5_encoder"), np.array([[9, 17, 9, 30, 1]])
    key = "layers.0.distance_bias"
    raised = EncoderModel(model.spec, {**model.weights, key: model.weights[key] + 3.0})
    expected = model.forward(ids)["last_hidden_state"]
    np.testing.assert_allclose(raised.forward(ids)["last_hidden_state"], expected, rtol=1e-9, atol=1e-9)
    flat = EncoderModel(model.spec, {**model.weights, key: np.zeros_like(model.weights[key])})
    first, third = flat.forward(ids)["last_hidden_state"][0][[0, 2]]
    np.testing.assert_allclose(first, third, rtol=1e-9)
    assert np.abs(expected[0, 0] - expected[0, 2]).max() > 0.1


def test_a_head_of_its_own_replaces_the_embedding():
    """flan-t5 and t5-v1_1 hold lm_head beside the embedding; a tied file may hold it twice."""
    config = json.loads((FAMILIES / "t5_v1_1" / "config.json").read_text())
    tensors = dict(tensors_of("t5_v1_1"))
    head = np.random.default_rng(0).standard_normal(tensors["shared.weight"].shape).astype(np.float32)
    tensors["lm_head.weight"] = Tensor("float32", head.shape, head)
    model = load("t5_v1_1")
    own = Seq2SeqModel(model.spec, {**model.weights, "lm_head": head.astype(np.float64)})
    weights = read_weights(tensors, read_spec(config))
    assert weights["lm_head"].read() is head
    twice = tensors | {"lm_head.weight": tensors["shared.weight"]}
    assert "lm_head" not in read_weights(twice, read_spec(tied(config)))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is not the embedding, as tie_word_embeddings says"):
        read_weights(tensors, read_spec(tied(config)))
    states = model.forward([[5, 6, 1]], [[0, 7]])["decoder_hidden_states"][-1, 0]
    np.testing.assert_allclose(own.forward([[5, 6, 1]], [[0, 7]])["logits"][0], states @ head.T, rtol=1e-9)


def tied(config: dict[str, Any]) -> dict[str, Any]:
    return config | {"tie_word_embeddings": True}


def tensors_of(name: str) -> dict[str, Tensor]:
    from refimpl.files.checkpoint import read_folder

    return read_folder(FAMILIES / name)[1]


def gamma(name: str) -> str:
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


SPELLINGS = {  # of published files: how names differ, and what stands there twice or is never read
    "bert_pretraining": (gamma, {"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
                                 "bert.embeddings.position_ids": None}),
    "roberta": (lambda name: f"roberta.{name}", {"roberta.embeddings.position_ids": None}),
    "xlm_roberta_mlm": (str, {"lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
                              "lm_head.decoder.bias": "lm_head.bias"}),
    "distilbert": (lambda name: f"distilbert.{name}", {}),
    "clip_text_legacy": (lambda name: f"text_model.{name}", {"text_model.embeddings.position_ids": None}),
    "t5": (str, {"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight",
                 "lm_head.weight": "shared.weight"}),
    "t5_encoder": (lambda name: name.replace("shared", "encoder.embed_tokens"), {"lm_head.weight": "shared.weight"}),
    "bart": (str, {f"{twice}.weight": "model.shared.weight" for twice in ("lm_head", "model.encoder.embed_tokens")}),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_published_spellings_are_read(name: str):
    (renamed, more), tensors = SPELLINGS[name], tensors_of(name)
    numbers = Tensor("float32", (1, 16), np.zeros((1, 16), np.float32))
    published = {renamed(key): tensor for key, tensor in tensors.items()}
    published |= {key: numbers if same is None else tensors[same] for key, same in more.items()}
    spec = read_spec(json.loads((FAMILIES / name / "config.json").read_text()))
    plain, read = read_weights(tensors, spec), read_weights(published, spec)
    assert {key: tensor.source is plain[key].source for key, tensor in read.items()} == dict.fromkeys(plain, True)


def test_a_head_is_there_as_a_whole_or_not_at_all():
    tensors = tensors_of("bert_pretraining")
    config = json.loads((FAMILIES / "bert_pretraining" / "config.json").read_text())
    heads = ("cls.predictions.", "cls.seq", "bert.pooler.")
    bare = {key: tensor for key, tensor in tensors.items() if not key.startswith(heads)}
    weights = read_weights(bare, read_spec(config))
    assert not any(key.startswith(("mask.", "pool.", "next.")) for key in weights)
    with pytest.raises(CheckpointError, match=r"tensor pooler\.dense\.bias is missing"):
        read_weights(bare | {"bert.pooler.dense.weight": tensors["bert.pooler.dense.weight"]}, read_spec(config))
    with pytest.raises(CheckpointError, match=r"tensor qa_outputs\.weight is not part of this bert model"):
        read_weights(bare | {"qa_outputs.weight": tensors["bert.pooler.dense.weight"]}, read_spec(config))


REFUSED = [
    ("bert_tokens", {"is_decoder": True}, "key 'is_decoder'"),
    ("bert_tokens", {"position_embedding_type": "relative_key"}, "must be one of absolute"),
    ("bert_tokens", {"num_attention_heads": 5}, "5 heads do not divide a width of 24"),
    ("bert_tokens", {"hidden_act": "mish"}, "hidden_act must be one of"),
    ("roberta", {"pad_token_id": 17}, "leaves none of 18 positions"),
    ("clip_text", {"use_attention_mask": True}, "key 'use_attention_mask'"),
    ("t5", {"feed_forward_proj": "gated-relu"}, "feed_forward_proj must be one of"),
    ("t5", {"relative_attention_num_buckets": 7}, "7 buckets, an even number"),
    ("t5", {"relative_attention_max_distance": 4}, "for distances up to 4"),
    ("t5", {"decoder_start_token_id": 61}, "decoder_start_token_id must be"),
    ("bart", {"normalize_before": True}, "key 'normalize_before'"),
    ("bart", {"tie_word_embeddings": False}, "tie_word_embeddings false is not supported"),
    ("bart", {"forced_bos_token_id": 61}, "forced_bos_token_id must be"),
]


@pytest.mark.parametrize(("name", "change", "message"), REFUSED)
def test_what_would_change_the_mathematics_is_refused(name: str, change: dict[str, Any], message: str):
    with pytest.raises(CheckpointError, match=message):
        read_spec(json.loads((FAMILIES / name / "config.json").read_text()) | change)


def test_matrices_are_rounded_as_asked():
    stored_as = load("bert_tokens", "gpu-cpu").forward([[5, 6]])["logits"]
    rounded = gpu.load(FAMILIES / "bert_tokens", device="cpu", dtype="bfloat16").forward([[5, 6]])["logits"]
    np.testing.assert_array_equal(stored_as, rounded)  # the file holds bfloat16


WORDS = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", *(f"w{i}" for i in range(5, 61)))


def spaced() -> Tokenizer:
    """A tokenizer of words between blanks."""
    specials = {word: id for id, word in enumerate(WORDS[:5])}
    return Tokenizer(
        tuple(word.encode() for word in WORDS), specials, frozenset(specials.values()),
        lambda text, first: [WORDS.index(word) if word in WORDS else 4 for word in text.split()],
        prefix=(1,), suffix=(2,), mask_id=3,
    )  # fmt: skip


def test_guesses_are_the_likeliest_tokens():
    plain = load("bert_pretraining")
    model = EncoderModel(plain.spec, plain.weights, spaced())
    (first_mask, second), ids = model.fill_mask("w9 [MASK] w8 [MASK]", 3), [1, 9, 3, 8, 3, 2]
    logits = plain.forward([ids])["logits"][0]
    assert [guess.id for guess in first_mask] == np.argsort(-logits[2])[:3].tolist()
    odds = np.exp(logits[4]) / np.exp(logits[4]).sum()
    assert [guess.probability for guess in second] == pytest.approx(np.sort(odds)[::-1][:3])
    assert second[0].text == WORDS[second[0].id]
    with pytest.raises(UsageError, match=r"a text to fill holds \[MASK\]"):
        model.fill_mask("w9 w8")
    with pytest.raises(UsageError, match="does not guess masked words"):
        EncoderModel(load("roberta").spec, load("roberta").weights, spaced()).fill_mask("w9 [MASK]")


def test_texts_become_vectors():
    plain = load("bert_classes")
    model = EncoderModel(plain.spec, plain.weights, spaced())
    states = plain.forward([[1, 9, 8, 2]])["last_hidden_state"][0]
    np.testing.assert_allclose(model.embed(["w9 w8", "w7"])[0], states.mean(0), rtol=1e-12)
    assert model.embed([]).shape == (0, 24)
    ids, left_out = model.text_ids("w9 " * 20)
    assert len(ids) == 16 and ids[-1] == 2 and left_out == 6
    np.testing.assert_array_equal(model.embed(["w9 " * 20]), model.embed(["w9 " * 14]))
    own = load("clip_text").forward([[3, 9, 4]])["text_embeds"]
    np.testing.assert_array_equal(load("clip_text").embed([[3, 9, 4]]), own)
    with pytest.raises(UsageError, match="texts are a list"):
        model.embed("w9")
    with pytest.raises(UsageError, match="no tokenizer"):
        plain.embed(["w9"])


WRONG = [
    ("C1", {"input_ids": np.zeros((1, 17), int)}, "17 tokens exceed the 16 positions"),
    ("C1", {"input_ids": np.zeros((1, 0), int)}, "each with a token"),
    ("C2", {"input_ids": [[61]]}, r"in the vocabulary 0\.\.60"),
    ("C2", {"input_ids": [[1.5]]}, "whole numbers"),
    ("C3", {"input_ids": [[5, 6]], "attention_mask": [[1]]}, "attention_mask holds 0 and 1"),
    ("C3", {"input_ids": [[5, 6]], "attention_mask": [[1, 2]]}, "attention_mask holds 0 and 1"),
    ("C1", {"input_ids": [[5, 6]], "attention_mask": [[0, 0]]}, "not all padding"),
    ("C2", {"input_ids": [[5, 6]], "token_type_ids": [[0, 2]]}, r"types are 0\.\.1"),
    ("C4", {"input_ids": [[5, 6]], "token_type_ids": [[0]]}, "a token type for each"),
    ("C4", {"input_ids": [[5, 6]], "token_type_ids": [[0, 1], [0, 1]]}, "a token type for each"),
]


@pytest.mark.parametrize(("label", "inputs", "message"), WRONG)
def test_inputs_that_cannot_be(label: str, inputs: dict[str, Any], message: str):
    with pytest.raises(ContractError, match=f"^{label}: .*{message}"):
        load("bert_classes").forward(**inputs)


def test_texts_that_cannot_be_answered():
    model = load("bart")
    with pytest.raises(ContractError, match="C1: 17 tokens exceed the 16 positions"):
        model.greedy([5] * 17, 1)
    with pytest.raises(ContractError, match=r"C1: .*not all padding"):
        model.forward([[5, 6]], [[2]], [[0, 0]])
    with pytest.raises(UsageError, match="reads plain text"):
        model.prompt_ids([5], system="Be brief.")
    with pytest.raises(UsageError, match="no tokenizer"):
        model.prompt_ids("text")
    with pytest.raises(UsageError, match="prompts are a list"):
        model.generate_batch("text")
