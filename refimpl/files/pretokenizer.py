r"""How text is cut into words before byte-pair encoding: regular expressions, one after another.

A stage isolates its matches: pieces are the matches and what lies between them, and the next stage cuts each piece on.
tiktoken runs the last stage, and silently drops text that its pattern does not match; ``covering`` makes every pattern
match everything.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import regex

from refimpl.contract import CheckpointError, UsageError, host

__all__ = ["GPT2", "LLAMA3", "STAGES", "read_stages", "compile_stage", "covering", "cut"]

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

STAGES: Mapping[str, tuple[str, ...]] = {
    "gpt-2": (GPT2,),
    "llama-bpe": (LLAMA3,),
    "qwen2": (_QWEN2,),
    "qwen35": (_QWEN35,),
    "gpt-4o": (_O200K,),
    "deepseek-v3": _DEEPSEEK_V3,
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), (_GPT2_BY_DIGIT,)),
}
"""Stages by the name that GGUF files give them in ``tokenizer.ggml.pre``."""

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
