"""Small tokenizers, trained and run by the `tokenizers` library: the oracle of these tests."""

import json
import re
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import tokenizers
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from refimpl.files.pretokenizer import GPT2, STAGES
from refimpl.files.tokenizer import Tokenizer, tokenizer_from_folder

CORPUS = [
    "The quick brown fox jumps over the lazy dog; it's the 3rd time in 2024, and they'll say we've seen 1,000,000.",
    "def fibonacci(n):\n    if n <= 1:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n\n\n",
    "Größe, façade, naïve; 東京は日本の首都です。 \u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\u03b5\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac \u0928\u092e\u0938\u094d\u0924\u0947 \U0001f600\U0001f680",
    "   several   spaces\tand\ttabs \r\n lines  \n\n  end aaaaaaaa aaaa abababab  ",
] * 3  # fmt: skip
SPECIALS = ["<|end|>", "<|im_start|>", "<|im_end|>", "<|im_end|>x"]
CHARACTERS = st.characters(exclude_categories=["Cs", "Cn", "Co"])  # assigned in every library's version of Unicode
TEXTS = st.lists(
    st.one_of(
        st.text(CHARACTERS, max_size=8),
        st.sampled_from(["the", " fox", "'s", "'LL", " 12", "1234567", "  ", "\n", "\r\n", " \n ", "\t", "e\u0301"]),
        st.sampled_from(["aaaaa", " 東京", "!!", "...", "\u00a0", "\u2003", "\U0001f600", "<|im_end|>", "\u00bd", "_"]),
    ),
    max_size=12,
).map("".join)  # fmt: skip

_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_STAGED = (r"\p{N}{1,3}", r"[一-龥]+", GPT2)
_SPLIT = ("llama-bpe", "qwen2", "gpt-4o", "tekken", "deepseek-v3", "deepseek-llm", "deepseek-coder")


def _split(*patterns: str) -> pre_tokenizers.PreTokenizer:
    """Split by patterns, their escapes written out: the library's regular expressions know none of eight digits."""
    plain = (re.sub(r"\\u(\w{4})|\\U(\w{8})", lambda code: chr(int(code[1] or code[2], 16)), p) for p in patterns)
    return pre_tokenizers.Sequence([*(pre_tokenizers.Split(Regex(p), "isolated") for p in plain), _BYTES])


PRE_TOKENIZERS = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    **{kind: _split(*STAGES[kind]) for kind in _SPLIT},
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "staged": _split(*_STAGED),
    "not covering": _split(r"\p{L}+"),
}
_WHOLE_WORDS = ("llama-bpe", "tekken")


@cache
def train(kind: str, *, whole_alphabet: bool = True) -> tokenizers.Tokenizer:
    """Train a tokenizer with the pre-tokenizer of that kind; Qwen's normalises."""
    oracle = tokenizers.Tokenizer(models.BPE(ignore_merges=kind in _WHOLE_WORDS))
    oracle.pre_tokenizer = PRE_TOKENIZERS[kind]
    oracle.decoder = decoders.ByteLevel()
    if kind == "qwen2":
        oracle.normalizer = normalizers.NFC()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet()) if whole_alphabet else []
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    oracle.train_from_iterator(CORPUS, trainer)
    if kind in _WHOLE_WORDS:
        bos = [("<|end|>", oracle.token_to_id("<|end|>"))]
        oracle.post_processor = processors.TemplateProcessing("<|end|> $A", "<|end|> $A $B", bos)
    return oracle


def write(tokenizer: dict, settings: dict | None = None) -> Path:
    """Write a folder with the files of a tokenizer."""
    folder = Path(mkdtemp(prefix="tokenizer-"))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


@cache
def ours(kind: str, *, whole_alphabet: bool = True) -> Tokenizer:
    """Read the trained tokenizer with our reader."""
    tokenizer = tokenizer_from_folder(write(json.loads(train(kind, whole_alphabet=whole_alphabet).to_str())))
    assert tokenizer is not None
    return tokenizer


def gguf_metadata(kind: str) -> dict:
    """Write the trained tokenizer as metadata of a GGUF file."""
    oracle = train(kind)
    data = json.loads(oracle.to_str())
    tokens = [oracle.id_to_token(id) for id in range(oracle.get_vocab_size())]
    fields = {
        "model": "gpt2",
        "pre": kind,
        "tokens": tokens,
        "token_type": [3 if token in SPECIALS else 1 for token in tokens],
        "merges": [" ".join(pair) for pair in data["model"]["merges"]],
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
