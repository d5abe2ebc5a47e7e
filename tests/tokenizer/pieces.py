"""Small tokenizers of the other kinds, trained by the `tokenizers` library: pieces with scores, and words."""

import json
from functools import cache

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from refimpl.files.sentencepiece import BLANK
from refimpl.files.tokenizer import Tokenizer, tokenizer_from_folder, tokenizer_from_gguf
from tests.tokenizer.texts import texts
from tests.tokenizer.trained import CORPUS, write

KINDS = ("llama", "t5", "bert", "bert cased")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_LINES = [line.replace("<", "(") for line in (*CORPUS, *texts(1, 300))]  # that no piece spells a special token


def _llama() -> tokenizers.Tokenizer:
    """Make Llama 2's kind: as in transformers' conversion, every cut of a piece into pieces is a merge."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", BLANK)
    trained.pre_tokenizer = pre_tokenizers.Split(BLANK, "merged_with_next")
    trained.train_from_iterator(_LINES, trainers.BpeTrainer(vocab_size=900, limit_alphabet=300, show_progress=False))
    learnt = sorted(trained.get_vocab(), key=trained.get_vocab().get)
    vocabulary = {text: id for id, text in enumerate(["<unk>", "<s>", "</s>", *BYTES, *learnt])}
    cuts = [(piece[:at], piece[at:]) for piece in learnt for at in range(1, len(piece))]
    merges = [(left, right) for left, right in cuts if left in vocabulary and right in vocabulary]
    oracle = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    oracle.normalizer = normalizers.Sequence([normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)])
    strip = decoders.Strip(content=" ", left=1, right=0)
    oracle.decoder = decoders.Sequence([decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    oracle.add_special_tokens(["<unk>", "<s>", "</s>"])
    oracle.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    return oracle


def _t5() -> tokenizers.Tokenizer:
    oracle = tokenizers.Tokenizer(models.Unigram())
    words = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    oracle.pre_tokenizer = pre_tokenizers.Sequence(words)
    oracle.decoder = decoders.Metaspace(prepend_scheme="always")
    specials = ["<pad>", "</s>", "<unk>", "<extra_id_0>"]
    trainer = trainers.UnigramTrainer(vocab_size=2000, special_tokens=specials, unk_token="<unk>", show_progress=False)
    oracle.train_from_iterator(_LINES, trainer)
    oracle.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
    return oracle


def _bert(lower: bool) -> tokenizers.Tokenizer:
    oracle = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    oracle.normalizer = normalizers.BertNormalizer(lowercase=lower)
    oracle.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    oracle.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=900, limit_alphabet=300, special_tokens=BERT_SPECIALS, show_progress=False
    )
    oracle.train_from_iterator(_LINES, trainer)
    oracle.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return oracle


@cache
def train(kind: str) -> tokenizers.Tokenizer:
    """Train a tokenizer; special tokens that a text spells stay text."""
    oracle = _llama() if kind == "llama" else _t5() if kind == "t5" else _bert(lower=kind == "bert")
    oracle.encode_special_tokens = True
    return oracle


@cache
def from_folder(kind: str) -> Tokenizer:
    """Read the trained tokenizer with our reader of tokenizer.json."""
    return tokenizer_from_folder(write(json.loads(train(kind).to_str()), {"mask_token": "[MASK]"}))


def metadata(kind: str) -> dict:
    """Write the trained tokenizer as metadata of a GGUF file."""
    model = json.loads(train(kind).to_str())["model"]
    if kind == "t5":
        tokens, scores = map(list, zip(*model["vocab"], strict=True))
    else:
        tokens = sorted(model["vocab"], key=model["vocab"].get)
        scores = [float(-id) for id in range(len(tokens))]
    names = BERT_SPECIALS if kind.startswith("bert") else ["<pad>", "<s>", "</s>", "<extra_id_0>"]
    special = {**dict.fromkeys(names, 3), "<unk>": 2}
    types = [special.get(token, 6 if kind == "llama" and token in BYTES else 1) for token in tokens]
    fields = {"model": kind.split()[0], "tokens": tokens, "scores": scores, "token_type": types}
    if kind.startswith("bert"):
        marked = [t if t in special else t[2:] if t.startswith("##") else BLANK + t for t in tokens]
        fields |= {"tokens": marked, "bos_token_id": 2, "seperator_token_id": 3, "unknown_token_id": 1}
        fields |= {"mask_token_id": 4}
    else:
        ids = {"bos": "<s>", "eos": "</s>", "unknown": "<unk>"}
        fields |= {f"{name}_token_id": tokens.index(text) for name, text in ids.items() if text in tokens}
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items()}


@cache
def from_gguf(kind: str) -> Tokenizer:
    """Build the trained tokenizer with our reader of metadata."""
    return tokenizer_from_gguf(metadata(kind))
