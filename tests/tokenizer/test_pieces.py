"""Tokenizers of the other kinds: what stands around a text, how text comes back, and how it streams."""

import json
import sys
import time

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from refimpl.contract import CheckpointError
from refimpl.files.sentencepiece import BLANK
from refimpl.files.tokenizer import Tokenizer, tokenizer_from_folder, tokenizer_from_gguf
from refimpl.files.unigram import best_path, lengths_by_letter
from refimpl.files.wordpiece import WordPiece
from refimpl.llm.generate import TextStream
from tests.tokenizer import trained
from tests.tokenizer.pieces import BERT_SPECIALS, KINDS, from_folder, from_gguf, metadata, train
from tests.tokenizer.texts import texts
from tests.tokenizer.trained import write

SEEDS = st.integers(0, 2**32 - 1)
READERS = [from_folder, from_gguf]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("kind", KINDS)
@given(seed=SEEDS)
def test_a_prompt_stands_between_what_the_model_expects(kind, read, seed):
    for text in texts(seed, 8):
        plain = " ".join(text.replace("<", "(").replace(BLANK, "_").split()) if kind == "t5" else text
        assert read(kind).prompt_ids(plain) == train(kind).encode(plain).ids


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("kind", KINDS)
def test_frames(kind, read):
    tokenizer = read(kind)
    around = {"llama": ((1,), ()), "t5": ((), (1,))}.get(kind, ((2,), (3,)))
    assert (tokenizer.prefix, tokenizer.suffix) == around
    assert tokenizer.add_bos is (kind != "t5")
    assert tokenizer.mask_id == (4 if kind.startswith("bert") else None)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("kind", KINDS)
@given(seed=SEEDS)
def test_text_is_the_library_s(kind, read, seed):
    for text in texts(seed, 8):
        ids = read(kind).encode(text)
        assert read(kind).decode(ids) == train(kind).decode(ids, skip_special_tokens=False)


@given(seed=SEEDS)
def test_bytes_bring_every_text_back(seed):
    for text in texts(seed, 8, every=True):
        assert from_gguf("llama").decode(from_gguf("llama").encode(text)) == text.replace(BLANK, " ")


def streamed(tokenizer: Tokenizer, ids: list[int], said) -> str:
    stream, pieces = TextStream(), []
    for place, id in enumerate(ids):
        stream, text = stream.push(said(id), final=place == len(ids) - 1)
        pieces.append(text)
    return "".join(pieces)


EVERY = {kind: from_gguf for kind in KINDS} | {kind: trained.ours for kind in ("gpt-2", "llama-bpe", "deepseek-v3")}


@pytest.mark.parametrize("kind", EVERY)
@given(seed=SEEDS, cut=st.integers(0, 40))
def test_streamed_text_is_the_whole_text(kind, seed, cut):
    tokenizer = EVERY[kind](kind)
    for text in texts(seed, 8, every=True):
        ids = tokenizer.encode(text)
        assert streamed(tokenizer, ids, tokenizer.from_start()) == tokenizer.decode(ids)
        prompt, answer = ids[:cut], ids[cut:]
        begun = b"".join(map(tokenizer.from_start(), prompt))
        if begun and "\ufffd" not in begun.decode("utf-8", "replace"):
            whole = begun.decode() + streamed(tokenizer, answer, tokenizer.token_bytes)
            assert whole == tokenizer.decode(ids)


def test_a_blank_is_dropped_once():
    tokenizer = from_gguf("llama")
    hello = tokenizer.encode("the fox")
    assert tokenizer.decode(hello) == "the fox" and tokenizer.decode(tokenizer.encode(" the")) == " the"
    assert b"".join(map(tokenizer.token_bytes, hello)) == b" the fox"
    assert tokenizer.decode([1, *hello]) == "<s> the fox"


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("kind", KINDS)
@given(seed=SEEDS)
def test_what_is_typed_stays_text(kind, read, seed):
    tokenizer = read(kind)
    for text in texts(seed, 8):
        unknown = {tokenizer.specials.get("<unk>"), tokenizer.specials.get("[UNK]")}
        assert not (tokenizer.controls - unknown) & {*tokenizer.encode(f"{text}</s><s>[CLS][SEP]<pad>")}


@pytest.mark.parametrize("read", READERS)
def test_a_template_s_tokens_are_special(read):
    the, fox = (train("bert").encode(word, add_special_tokens=False).ids for word in ("the", "fox"))
    assert read("bert").encode("the [MASK] fox", special=True) == [*the, 4, *fox]


def test_white_space_that_a_special_token_takes_along():
    data = json.loads(trained.train("gpt-2").to_str())
    data["added_tokens"][1] |= {"lstrip": True}
    data["added_tokens"][2] |= {"rstrip": True}
    tokenizer = tokenizer_from_folder(write(data))
    assert tokenizer.split("a \n <|im_start|> b <|im_end|>  c") == ["a", 1, " b ", 2, "c"]
    assert tokenizer.split("<|im_end|> <|im_start|>") == [2, 1]
    start = time.process_time()
    tokenizer.split(" " * 300_000)
    assert time.process_time() - start < 2


def test_the_first_text_alone_gets_the_blank():
    data = json.loads(train("llama").to_str())
    data["normalizer"] = None
    data["pre_tokenizer"] = {"type": "Metaspace", "replacement": BLANK, "prepend_scheme": "first", "split": False}
    tokenizer, the = tokenizer_from_folder(write(data)), from_gguf("llama").encode("the")
    assert tokenizer.encode("the") == the
    assert tokenizer.encode("</s>the", special=True) == [2, *tokenizer.encode("the", first=False)]
    assert tokenizer.encode("the", first=False) != the


def test_without_the_library(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(CheckpointError, match=r'pip install -e "\.\[tokenizers\]"'):
        tokenizer_from_folder(write(json.loads(train("t5").to_str())))


@pytest.mark.parametrize("kind", ["llama", "t5", "bert"])
@pytest.mark.parametrize("run", ["a", " ", "ab", "\u6771", "the fox ", "\u2581", "!"])
def test_time_is_linear(kind, run):
    def seconds(text: str) -> float:
        tokenizer = tokenizer_from_gguf(metadata(kind))  # that remembers nothing
        start = time.process_time()
        tokenizer.encode(text)
        return time.process_time() - start

    short, long = (min(seconds(run * count) for _ in range(2)) for count in (5_000, 40_000))
    assert long < 8 * 2.5 * short + 0.05


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("llama", "scores", None), ("llama", "scores", [1.0]), ("llama", "tokens", ["a", "a"]), ("t5", "scores", 3),
        ("t5", "precompiled_charsmap", "x"), ("t5", "precompiled_charsmap", [1, 2, 3, 4, 5]),
        ("t5", "precompiled_charsmap", [300]), ("llama", "token_type", [1]),
        ("bert", "unknown_token_id", 10**9), ("bert", "unknown_token_id", "x"),
        ("bert", "bos_token_id", -1), ("bert", "seperator_token_id", 10**6), ("t5", "eos_token_id", 1.5),
    ],
)  # fmt: skip
def test_damaged_metadata(kind, name, value):
    with pytest.raises(CheckpointError) as caught:
        tokenizer_from_gguf(metadata(kind) | {f"tokenizer.ggml.{name}": value})
    assert "\n" not in str(caught.value)


def test_scores_are_finite():
    fields = metadata("llama")
    scores = [*fields["tokenizer.ggml.scores"][:-1], float("nan")]
    with pytest.raises(CheckpointError, match="not finite"):
        tokenizer_from_gguf(fields | {"tokenizer.ggml.scores": scores})


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("bert")])
def test_a_bert_runs_without_the_library(kind, monkeypatch):
    data = json.loads(train(kind).to_str())
    with monkeypatch.context() as hidden:
        hidden.setitem(sys.modules, "tokenizers", None)
        own = tokenizer_from_folder(write(data, {"mask_token": "[MASK]"}))
        for change in ({"normalizer": None}, {"pre_tokenizer": {"type": "Whitespace"}}):
            with pytest.raises(CheckpointError, match="needs the `tokenizers` library"):
                tokenizer_from_folder(write(data | change))
    library = from_folder(kind)
    assert isinstance(own.encoder, WordPiece) and not isinstance(library.encoder, WordPiece)
    assert (own.tokens, own.prefix, own.suffix, own.mask_id) == (library.tokens, (2,), (3,), 4)
    for seed in range(100):
        for text in texts(seed, 8):
            assert own.prompt_ids(text) == library.prompt_ids(text)


def test_vocab_txt(tmp_path):
    words = sorted(train("bert").get_vocab(), key=train("bert").get_vocab().get)
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    tokenizer, wanted = tokenizer_from_folder(tmp_path), from_gguf("bert")
    for text in texts(3, 200):
        assert tokenizer.prompt_ids(text) == wanted.prompt_ids(text)
    assert (tokenizer.mask_id, tokenizer.tokens) == (4, wanted.tokens)
    assert {*tokenizer.specials} == {*BERT_SPECIALS}
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert tokenizer_from_folder(tmp_path).encode("The") != tokenizer.encode("The")
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(CheckpointError, match=r"vocab.txt has no token '\[UNK\]'"):
        tokenizer_from_folder(tmp_path)


def test_special_tokens_that_gguf_files_say_too_little_of():
    tokenizer = tokenizer_from_gguf(metadata("llama") | {"general.architecture": "phi3"})
    assert tokenizer.encode("</s>\n the", special=True) == [2, *tokenizer.encode("the")]
    assert tokenizer.encode("<s>\nthe", special=True) == [1, *tokenizer.encode("\nthe")]
    named = {"tokenizer.ggml.pre": "roberta-bpe", "tokenizer.ggml.mask_token_id": 1}
    fields = trained.gguf_metadata("gpt-2") | named | {"tokenizer.ggml.seperator_token_id": 2}
    roberta = tokenizer_from_gguf(fields | {"tokenizer.ggml.add_bos_token": True})
    assert roberta.prompt_ids("the") == [0, *roberta.encode("the"), 2]
    assert roberta.split("the  <|im_start|> fox") == ["the", 1, " fox"]


def test_words_that_end_in_a_mark():
    """CLIP's kind: byte-level letters in the library, small, each word with its end."""
    oracle = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<|end|>", end_of_word_suffix="</w>"))
    oracle.normalizer = tokenizers.normalizers.Lowercase()
    oracle.pre_tokenizer = trained.PRE_TOKENIZERS["gpt-2"]
    oracle.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(
        special_tokens=["<|end|>"], end_of_word_suffix="</w>", initial_alphabet=alphabet, show_progress=False
    )
    oracle.train_from_iterator(trained.CORPUS, trainer)
    oracle.post_processor = tokenizers.processors.RobertaProcessing(("<|end|>", 0), ("<|end|>", 0))
    oracle.encode_special_tokens = True
    tokenizer = tokenizer_from_folder(write(json.loads(oracle.to_str())))
    for text in texts(4, 100):
        assert tokenizer.prompt_ids(text) == oracle.encode(text).ids
    ids = tokenizer.encode("The quick")
    assert tokenizer.decode(ids) == oracle.decode(ids).replace("</w>", " ")


def test_symbols_stand_anywhere():
    fields = metadata("llama")
    tokens, types = [*fields["tokenizer.ggml.tokens"]], [*fields["tokenizer.ggml.token_type"]]
    symbols = range(len(tokens) - 4, len(tokens))
    tokens[-4:], types[-4:] = ["\n\r\n", "the fox", "quick▁brown", "a▁b c"], [4] * 4
    tokenizer = tokenizer_from_gguf(fields | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types})
    for text in ("\n\r\n", "the fox", "quick brown", "quick▁brown", "a b c", "a▁b c"):
        assert {*symbols} & {*tokenizer.encode(f"x{text}x")}
    assert not {*symbols} & {*tokenizer.encode("the▁fox")}


def test_a_piece_may_reach_across_a_blank():
    fields = metadata("llama")
    tokens, scores = [*fields["tokenizer.ggml.tokens"]], [*fields["tokenizer.ggml.scores"]]
    tokens[-2:], scores[-2:] = ["x▁", "x▁y"], [10.0, 20.0]
    fields |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": scores}
    assert len(tokens) - 1 in tokenizer_from_gguf(fields).encode("ax yb")


@pytest.mark.parametrize(("together", "apart"), [(-30.0, -1.0), (-9.0, -9.0), (-12.5, -1.5), (-25.0, -12.0)])
def test_a_letter_that_is_no_piece_costs_ten_more_than_any(together, apart):
    pieces = {"ab": together, "b": apart, "c": -2.0}
    oracle = tokenizers.Tokenizer(tokenizers.models.Unigram([("<unk>", 0.0), *pieces.items()], unk_id=0))
    found = best_path("cabba", pieces, lengths_by_letter(pieces))
    assert [[*pieces].index(piece) + 1 if piece in pieces else 0 for piece in found] == oracle.encode("cabba").ids
