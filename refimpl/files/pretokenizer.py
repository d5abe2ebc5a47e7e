r"""How text is cut into words before byte-pair encoding: regular expressions, one after another.

A stage isolates its matches: pieces are the matches and what lies between them, and the next stage cuts each piece on.
tiktoken runs the last stage, and silently drops text that its pattern does not match; ``covering`` makes every pattern
match everything.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import regex

from refimpl.contract import CheckpointError, UsageError, host

__all__ = ["GPT2", "LLAMA3", "STAGES", "WHOLE_WORDS", "SEPARATED", "read_stages", "compile_stage", "covering", "cut"]

_ENDINGS = "'s|'t|'re|'ve|'m|'ll|'d"
_SPACE = r"\s+(?!\S)|\s+"

GPT2 = rf"{_ENDINGS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACE}"
"""Words, numbers and punctuation, each with the one space before it."""

_GPT2_BY_DIGIT = rf"\p{{N}}|{_ENDINGS}| ?\p{{L}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?![^\s\p{{N}}])|\s+"
r"""The stages ``\p{N}`` and GPT2 in one; a piece also ends before a digit, so the look-ahead must not see one."""

_LLAMA3 = rf"(?i:{_ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|%s| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACE}"
LLAMA3 = _LLAMA3 % r"\p{N}{1,3}"
_QWEN2 = _LLAMA3 % r"\p{N}"
_QWEN35 = (
    rf"(?i:{_ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACE}"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?i:{_ENDINGS})?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?i:{_ENDINGS})?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACE}"
)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|\s*[\r\n]+|{_SPACE}",
)

_CASED = (  # letters of two cases, as of an older Unicode and without mathematical ones
    r"A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    r"\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    r"\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    r"\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    r"\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    r"\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    r"\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    r"\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    r"\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    r"\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED}]+",
    r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_LLM[4], r"\p{N}")
_TEKKEN = _O200K.replace(rf"(?i:{_ENDINGS})?", "").replace("{1,3}", "")

_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2")
_NAMES: Mapping[tuple[str, ...], str] = {
    (GPT2,): "gpt-2 phi-2 olmo mpt jais trillion exaone4 gigachat a.x-4.0 mellum modern-bert granite-docling "
    "roberta-bpe jina-v1-en jina-v2-code jina-v2-es jina-v2-de jina-es jina-de",
    (_GPT2_BY_DIGIT,): "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    (LLAMA3,): f"{' '.join(_LLAMA3_NAMES)} dbrx smaug-bpe glm4 chatglm-bpe",
    (_QWEN2,): "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
    (_QWEN35,): "qwen35",
    (_O200K,): "gpt-4o llama4 kanana2 talkie minimax-m2",
    (_TEKKEN,): "tekken",
    _DEEPSEEK_V3: "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    _DEEPSEEK_LLM: "deepseek-llm",
    _DEEPSEEK_CODER: "deepseek-coder",
}
STAGES: Mapping[str, tuple[str, ...]] = {name: stages for stages, names in _NAMES.items() for name in names.split()}
"""Stages by the name that GGUF files give them in ``tokenizer.ggml.pre``."""

WHOLE_WORDS = frozenset({*_LLAMA3_NAMES, "tekken"})
"""Names of tokenizers that take a word that is a token as it is, without merges, and put a BOS before a text."""

SEPARATED = frozenset({"roberta-bpe", "jina-v1-en", "jina-v2-code"})
"""Names of tokenizers that put a separator behind a text."""

_LONGEST_RUN = 2**16
_LONG_RUN = regex.compile(rf"\s{{{_LONGEST_RUN}}}|\S{{{_LONGEST_RUN}}}")


_LATIN = "".join(map(chr, range(256)))
_PROBES = ("", "a", "A b's 12\r\n\n  東.", _LATIN, _LATIN[::-1])  # here a pattern that can match nothing does
_SECONDS, _SECONDS_PER_CHARACTER = 5, 1e-5


@host
def read_stages(pre_tokenizer: Any) -> tuple[str, ...]:
    r"""Read the stages from the ``pre_tokenizer`` of a tokenizer.json.

    Constraints: Split (isolating), Digits and ByteLevel steps, the last of them ByteLevel.
    Errors: CheckpointError for any other step.
    Source: huggingface.co/docs/tokenizers, "Pre-tokenizers".

    >>> read_stages({"type": "ByteLevel", "add_prefix_space": False}) == (GPT2,)
    True
    """
    match pre_tokenizer:
        case {"type": "Sequence", "pretokenizers": [_, *_] as steps}:
            pass
        case _:
            steps = [pre_tokenizer]
    stages: list[str] = []
    for step in steps:
        match step:
            case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False}:
                stages.append(pattern)
            case {"type": "Split", "pattern": {"String": str(literal)}, "behavior": "Isolated", "invert": False}:
                stages.append(regex.escape(literal))
            case {"type": "Digits", "individual_digits": bool(single)}:
                stages.append(r"\p{N}" if single else r"\p{N}+")
            case {"type": "ByteLevel", "add_prefix_space": False, **options}:
                stages += [GPT2] if options.get("use_regex", True) else []
            case _:
                raise CheckpointError(f"pre-tokenizer step {str(step)[:120]} is none of Split, Digits, ByteLevel")
    if steps[-1]["type"] != "ByteLevel":
        raise CheckpointError(f"byte-level tokenizers end with a ByteLevel step, this one with {steps[-1]['type']}")
    if stages == [r"\p{N}", GPT2]:
        return (_GPT2_BY_DIGIT,)
    return tuple(stages) or (r"[\s\S]+",)


@host
def covering(pattern: str) -> str:
    r"""Return the pattern with one more alternative: a run of what it does not match is a piece too.

    >>> regex.findall(covering(r"\d+"), "ab12c")
    ['ab', '12', 'c']
    """
    return rf"{pattern}|(?:(?!{pattern})[\s\S])+"


@host
def compile_stage(pattern: str) -> "regex.Pattern[str]":
    r"""Compile a pattern so that it covers all text.

    Constraints: it matches at least one character. An empty match is no piece, and tiktoken dies of it.
    Errors: CheckpointError when it does not, or cannot be read.

    >>> compile_stage(r"\d*")
    Traceback (most recent call last):
    ...
    refimpl.contract.CheckpointError: the pre-tokenizer pattern '\\d*' matches the empty text
    """
    try:
        compiled = regex.compile(pattern)
        empty = any(match.end() == match.start() for text in _PROBES for match in compiled.finditer(text, timeout=1))
        if empty:
            raise CheckpointError(f"the pre-tokenizer pattern {pattern[:80]!r} matches the empty text")
        return regex.compile(covering(pattern))
    except (regex.error, TimeoutError) as error:
        raise CheckpointError(f"the pre-tokenizer pattern {pattern[:80]!r} cannot be used: {error}") from error


def _runs(text: str) -> Iterator[str]:
    """Cut runs without a boundary at a bound, so that time grows linearly and no regex overflows its stack."""
    begin = 0
    for match in _LONG_RUN.finditer(text) if len(text) > _LONGEST_RUN else ():
        yield text[begin : match.end()]
        begin = match.end()
    if begin < len(text):
        yield text[begin:]


@host
def cut(text: str, stages: tuple["regex.Pattern[str]", ...]) -> list[str]:
    """Cut text by covering patterns, stage after stage.

    Errors: UsageError when a pattern does not come to an end on the text.

    >>> cut("a12b", (regex.compile(covering("[0-9]")),))
    ['a', '1', '2', 'b']
    """
    pieces = list(_runs(text))
    try:
        for stage in stages:
            pieces = [match.group() for piece in pieces for match in stage.finditer(piece, timeout=_patience(piece))]
    except TimeoutError as error:
        raise UsageError("the tokenizer's pattern does not come to an end on this text") from error
    return pieces


def _patience(text: str) -> float:
    return _SECONDS + _SECONDS_PER_CHARACTER * len(text)
