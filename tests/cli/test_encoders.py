"""The command on encoders and encoder-decoders: vectors, guesses of masked words, answers, and what is refused."""

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

import refimpl
from gpu.run import main
from refimpl.run import main as plain_main

Capture = pytest.CaptureFixture[str]
FAMILIES = Path(__file__).parents[2] / "golden" / "families"
SPECIALS = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]")
WORDS = [*SPECIALS, "the", "cat", "sat", "mat", "##s", "rat", *(f"w{i}" for i in range(50))]
MOST = 16  # positions of the small encoders


def copied(name: str, folder: Path) -> Path:
    """Copy a checkpoint of golden/families, without what it is judged by."""
    folder.mkdir()
    for file in ("config.json", "model.safetensors"):
        shutil.copy(FAMILIES / name / file, folder / file)
    return folder


def wordpiece(folder: Path) -> Path:
    """Write a tokenizer as BERT's is."""
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"mask_token": "[MASK]", "unk_token": "[UNK]"}))
    return folder


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(wordpiece(copied("bert_pretraining", tmp_path_factory.mktemp("encoders") / "bert")))


@pytest.fixture(scope="session")
def t5(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = copied("t5", tmp_path_factory.mktemp("encoders") / "t5")
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), *((chr(97 + i), -3.0) for i in range(26))]
    pieces += [(f"▁w{i}", -4.0) for i in range(61 - len(pieces))]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return str(folder)


def read(capsys: Capture, *argv: str) -> Any:
    assert main([*argv, "--output", "json", "--device", "cpu"]) == 0
    return json.loads(capsys.readouterr().out)


def pooled(folder: str, pooling: dict[str, Any], *modules: str) -> str:
    """Say in the layout of sentence-transformers how a folder's texts become vectors."""
    kinds = ["Transformer", "Pooling", *modules]
    listed = [{"idx": i, "path": f"{i}_{kind}" if i else "", "type": f"models.{kind}"} for i, kind in enumerate(kinds)]
    (Path(folder) / "modules.json").write_text(json.dumps(listed))
    (Path(folder) / "1_Pooling").mkdir(exist_ok=True)
    (Path(folder) / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def test_a_line_for_each_text(bert: str, capsys: Capture):
    assert main(["-m", bert, "--embed", "the cat", "mats", "--device", "cpu"]) == 0
    lines = [np.array(line.split(), float) for line in capsys.readouterr().out.splitlines()]
    states = [refimpl.load(bert).forward([ids])["last_hidden_state"][0] for ids in ([1, 5, 6, 2], [1, 8, 9, 2])]
    np.testing.assert_allclose(lines, [x.mean(0) for x in states], atol=1e-5)
    answers = read(capsys, "-m", bert, "--embed", "the cat", "mats")
    assert [answer["ids"] for answer in answers] == [[1, 5, 6, 2], [1, 8, 9, 2]]
    assert [answer["embedding"] for answer in answers] == [line.tolist() for line in lines]
    assert list(read(capsys, "-m", bert, "--embed", "rat")) == ["text", "ids", "left_out", "embedding"]


WAYS = {
    "cls_token": lambda x: x[0], "max_tokens": lambda x: x.max(0), "mean_tokens": lambda x: x.mean(0),
    "mean_sqrt_len_tokens": lambda x: x.sum(0) / 2, "lasttoken": lambda x: x[-1],
    "weightedmean_tokens": lambda x: np.average(x, 0, [1, 2, 3, 4]),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("normalized", [False, True])
def test_texts_are_pooled_as_the_folder_says(bert: str, capsys: Capture, tmp_path: Path, way: str, normalized: bool):
    folder = str(shutil.copytree(bert, tmp_path / "model"))
    pooled(folder, {"word_embedding_dimension": 24, f"pooling_mode_{way}": True}, *["Normalize"] * normalized)
    expected = WAYS[way](refimpl.load(bert).forward([[1, 5, 6, 2]])["last_hidden_state"][0])
    expected = expected / np.linalg.norm(expected) if normalized else expected
    np.testing.assert_allclose(read(capsys, "-m", folder, "--embed", "the cat")["embedding"], expected, atol=1e-5)


def test_several_ways_stand_one_behind_the_other(bert: str, capsys: Capture, tmp_path: Path):
    folder = str(shutil.copytree(bert, tmp_path / "model"))
    pooled(folder, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True})
    x = refimpl.load(bert).forward([[1, 5, 6, 2]])["last_hidden_state"][0]
    expected = np.concatenate([x[0], x.mean(0)])
    np.testing.assert_allclose(read(capsys, "-m", folder, "--embed", "the cat")["embedding"], expected, atol=1e-5)


@pytest.mark.parametrize(("most", "kept"), [(None, MOST), (5, 5)])
def test_long_texts_are_cut_and_it_is_said(bert: str, capsys: Capture, tmp_path: Path, most: int | None, kept: int):
    folder = pooled(str(shutil.copytree(bert, tmp_path / "model")), {"pooling_mode_mean_tokens": True})
    if most:
        (tmp_path / "model" / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": most}))
    assert main(["-m", folder, "--embed", "rat " * 20, "--output", "json", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert answer["ids"] == [1, *[10] * (kept - 2), 2] and answer["left_out"] == 22 - kept
    assert f"text 1 has 22 tokens and the model takes {kept}: the rest is left out" in err


def test_texts_come_from_standard_input(bert: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    argv = ["-m", bert, "--embed", "-", "--output", "jsonl", "--device", "cpu"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("the cat\nmats\n"))
    assert main(argv) == 0
    assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == ["the cat", "mats"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("the cat\n\nmats\n"))  # one vector a line, or none at all
    assert "line 2 of standard input is empty" in refused(capsys, *argv)


def test_masked_words_are_guessed(bert: str, capsys: Capture):
    argv = ["-m", bert, "--fill-mask", "The [MASK] sat [MASK]"]
    answer, ids = read(capsys, *argv, "--top-k", "3"), [1, 5, 3, 7, 3, 2]
    assert answer["ids"] == ids
    logits = refimpl.load(bert, dtype="float64").forward([ids])["logits"][0]
    for place, guesses in zip((2, 4), answer["masks"], strict=True):
        odds = np.exp(logits[place]) / np.exp(logits[place]).sum()
        best = np.argsort(-odds)[:3]
        assert [guess["id"] for guess in guesses] == best.tolist()
        assert [guess["probability"] for guess in guesses] == pytest.approx(odds[best].tolist(), abs=1e-5)
        assert [guess["token"] for guess in guesses] == [WORDS[i].removeprefix("##") for i in best]
    assert main([*argv, "--device", "cpu"]) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    assert len(first.splitlines()) == len(second.splitlines()) == 5
    assert first.startswith(f"{answer['masks'][0][0]['probability']:.4f}  {answer['masks'][0][0]['token']}\n")


def test_an_encoder_decoder_answers_a_prompt(t5: str, capsys: Capture, tmp_path: Path):
    model, argv = refimpl.load(t5), ["-m", t5, "-n", "6", "--ignore-eos"]
    ids = model.tokenizer.prompt_ids("cab w3")
    answer = read(capsys, *argv, "-p", "cab w3", "--logprobs", "2")
    assert answer["prompt_ids"] == ids and ids[-1] == 1
    assert answer["ids"] == model.greedy(ids, 6) and answer["text"] == model.tokenizer.decode(answer["ids"])
    assert [entry["id"] for entry in answer["logprobs"]] == answer["ids"]
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("cab w3\nbad\n")
    assert [a["ids"] for a in read(capsys, *argv, "--prompts", str(prompts))] == [
        answer["ids"], read(capsys, *argv, "bad")["ids"]
    ]  # fmt: skip
    assert main([*argv, "cab w3", "--stats", "--verify", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert out == answer["text"] + "\n" and "verify   all 6 ids are the reference's" in err
    assert "verify   decoder layer 1" in err and "tokens read and 6 made" in err
    assert plain_main([*argv, "cab w3", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["ids"] == answer["ids"]


def test_verify_finds_what_differs(bert: str, t5: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    assert main(["-m", bert, "--embed", "the cat", "--verify", "--device", "cpu"]) == 0
    assert "no layer differs" in capsys.readouterr().err
    import gpu.encoders
    from gpu.namespace import namespace

    shifted = vars(namespace("cpu")) | {"layer_norm": None, "rms_norm": None}
    for name in ("layer_norm", "rms_norm"):
        exact = getattr(namespace("cpu"), name)
        shifted[name] = lambda *args, exact=exact, **keywords: exact(*args, **keywords) + np.float32(1e-3)
    monkeypatch.setattr(gpu.encoders, "namespace", lambda name: type("Shifted", (), {
        key: staticmethod(value) for key, value in shifted.items() if callable(value)
    }))  # fmt: skip
    for argv in (["-m", bert, "--embed", "the cat"], ["-m", t5, "-p", "cab", "-n", "3"]):
        assert main([*argv, "--verify", "--device", "cpu"]) == 1
        assert "a layer differs beyond float32 rounding" in capsys.readouterr().err


def refused(capsys: Capture, *argv: str) -> str:
    assert main([*argv, "--device", "cpu"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    return err


def test_what_cannot_be_is_refused_in_a_line(bert: str, t5: str, model: str, capsys: Capture, tmp_path: Path):
    bare = str(copied("bert_tokens", tmp_path / "bare"))
    assert "is an encoder, which answers nothing" in refused(capsys, "-m", bert, "-p", "the cat")
    assert "is an encoder, which answers nothing" in refused(capsys, "-m", bert, "--explain", "the cat")
    assert "is a decoder: --embed needs an encoder" in refused(capsys, "-m", model, "--embed", "the cat")
    assert "--fill-mask needs an encoder" in refused(capsys, "-m", t5, "--fill-mask", "the cat")
    assert "--explain is for decoders alone" in refused(capsys, "-m", t5, "--explain", "cab")
    assert "--chat is for decoders alone" in refused(capsys, "-m", t5, "--chat")
    assert "has no tokenizer, which --embed needs" in refused(capsys, "-m", bare, "--embed", "the cat")
    assert "text 2 is empty" in refused(capsys, "-m", bert, "--embed", "the cat", "")
    assert "the text is empty" in refused(capsys, "-m", bert, "--fill-mask", "")
    assert "a text to fill holds [MASK]" in refused(capsys, "-m", bert, "--fill-mask", "the cat")
    assert "PROMPT and --embed both name a prompt" in refused(capsys, "-m", bert, "the", "--embed", "the cat")
    unused_flags = (["--explain"], ["--max-tokens", "3"], ["--now", "2026-01-31"])
    for unused in unused_flags:
        assert f"leave out {unused[0]}" in refused(capsys, "-m", bert, "--embed", "the cat", *unused)
    said = refused(capsys, "-m", bert, "--embed", "a", "--activations", "int8")
    assert "(bert) is no decoder, and only decoders take activations" in said
    said = refused(capsys, "-m", t5, "cab", "--draft-model", "ngram")
    assert "(t5) is no decoder, and only decoders take draft" in said
    assert "--max-tokens 600 exceeds the context of 512" in refused(capsys, "-m", t5, "cab", "-n", "600")
    assert plain_main(["-m", bert, "the cat"]) == 2
    assert "is an encoder: it answers nothing" in capsys.readouterr().err


DAMAGED = [
    ("[", "cannot be read"), ("{}", "must list Transformer, Pooling"), ("[3]", "must list Transformer, Pooling"),
    ('[{"type": "m.Transformer"}, {"type": "m.Pooling"}, {"type": "m.Dense"}]', "not Transformer, Pooling, Dense"),
    ('[{"type": "m.Transformer"}, {"type": "m.Pooling", "path": "../x"}]', "a folder beside it"),
    ('[{"type": "m.Transformer"}, {"type": "m.Pooling", "path": "1_Pooling"}]', "cannot be read"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), DAMAGED)
def test_damaged_recipes_are_refused(bert: str, capsys: Capture, tmp_path: Path, text: str, message: str):
    folder = shutil.copytree(bert, tmp_path / "model")
    (folder / "modules.json").write_text(text)
    assert message in refused(capsys, "-m", str(folder), "--embed", "the cat")


@pytest.mark.parametrize("pooling", [{}, {"pooling_mode_mean_tokens": 3}, {"pooling_mode_attention": True}])
def test_poolings_that_are_not_known_are_refused(bert: str, capsys: Capture, tmp_path: Path, pooling: dict[str, Any]):
    folder = pooled(str(shutil.copytree(bert, tmp_path / "model")), pooling)
    assert "pool" in refused(capsys, "-m", folder, "--embed", "the cat")
