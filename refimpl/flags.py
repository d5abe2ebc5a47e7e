"""Values that the flags of both commands and the chat's /set take: text to a number within its limits."""

import argparse
import json
import math
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from refimpl.contract import UsageError, host

__all__ = [
    "FLAGS", "HUGE", "RANDOM", "SAMPLING", "add_template_flags", "moment", "parse_bias", "path", "phrase", "read_tools",
    "real", "template_options", "variables", "whole",
]  # fmt: skip

HUGE = 2**31 - 1
_OURS = frozenset(("messages", "prompt", "template", "tokenizer", "tools", "now", "system", "raw")) | {
    "add_generation_prompt", "bos_token", "eos_token",
}  # fmt: skip

RANDOM = "random:"
"""How a model's name begins that has no files (see models/published.py, which is slow to import)."""


@host
def whole(low: int, high: int) -> Callable[[str], int]:
    """Return a converter of text to an integer in [low, high].

    >>> whole(1, 8)("7")
    7
    """

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"expected a whole number from {low} to {high}, got {text}")
        return value

    return convert


@host
def real(low: float, high: float) -> Callable[[str], float]:
    """Return a converter of text to a number in [low, high]; NaN is in no interval.

    >>> real(0, 1)("0.5")
    0.5
    """

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"expected a number from {low:g} to {high:g}, got {text}")
        return value

    return convert


@host
def phrase(text: str) -> str:
    """Return ``text`` if it is not empty."""
    if not text:
        raise argparse.ArgumentTypeError("expected text, got an empty string")
    return text


@host
def path(text: str) -> str:
    """Return ``text`` if it can name a file."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError("expected a path, got " + (repr(text) if text else "an empty string"))
    return text


@host
def parse_bias(text: str) -> dict[int, float]:
    """Read logit biases: ``ID=BIAS`` or ``ID:BIAS``, several by commas, or a JSON object; -inf bans a token.

    >>> parse_bias("42=-1.5,7:2")
    {42: -1.5, 7: 2.0}
    >>> parse_bias('{"42": -1.5}')
    {42: -1.5}
    """
    try:
        if text.lstrip().startswith("{"):
            pairs = list(json.loads(text).items())
        else:
            pairs = [item.replace(":", "=", 1).split("=") for item in text.split(",")]
        biases = {int(token): float(bias) for token, bias in pairs}
    except (ValueError, TypeError, RecursionError):
        raise argparse.ArgumentTypeError(f"expected ID=BIAS, ID:BIAS or a JSON object, got {text!r}") from None
    for token, bias in biases.items():
        if token < 0 or not (bias == -math.inf or abs(bias) <= 1e6):
            raise argparse.ArgumentTypeError(
                f"expected a token id from 0 and a bias from -1e6 to 1e6 (or -inf), got {token}={bias:g}"
            )
    return biases


@host
def moment(text: str) -> datetime:
    """Read a date or a time of the form of ISO 8601.

    >>> moment("2026-01-31")
    datetime.datetime(2026, 1, 31, 0, 0)
    """
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a date, 2026-01-31 or 2026-01-31T12:00, got {text!r}") from None


@host
def variables(text: str) -> dict[str, Any]:
    """Read variables of a chat template: a JSON object.

    >>> variables('{"enable_thinking": false}')
    {'enable_thinking': False}
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'expected a JSON object such as {{"enable_thinking": false}}, got {text!r}')
    if wrong := value.keys() & _OURS:
        raise argparse.ArgumentTypeError(f"{min(wrong)} is what this command gives the template itself")
    return value


@host
def read_tools(path: str) -> list[dict[str, Any]]:
    """Read the tools that a template offers a model: a file with a JSON list of objects.

    Errors: UsageError where there is no such file, or it holds something else.
    """
    try:
        value = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not JSON") from None
    if not isinstance(value, list) or not value or not all(isinstance(tool, dict) for tool in value):
        raise UsageError(f"{path}: tools are a list of JSON objects, at least one")
    return value


@host
def add_template_flags(group: Any) -> None:
    """Add the flags that say what a chat template gets beside the messages."""
    group.add_argument("--tools", type=path, metavar="FILE", help="what the model may call: a JSON list of schemas")
    group.add_argument("--now", type=moment, metavar="DATE", help="the date that the template tells (default: today's)")
    group.add_argument(
        "--chat-template-kwargs", type=variables, default={}, metavar="JSON",
        help='further variables of the template, such as {"enable_thinking": false}',
    )


@host
def template_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return what those flags name as keywords of ``prompt_ids``."""
    own = {} if options.tools is None else {"tools": read_tools(options.tools)}
    return {**options.chat_template_kwargs, **own, **({} if options.now is None else {"now": options.now})}


SAMPLING = {
    "temperature": (real(0, 100), 0.0, "0 takes the likeliest token; above, tokens are drawn"),
    "top_k": (whole(0, HUGE), 0, "draw among the K likeliest tokens; 0: all"),
    "top_p": (real(0, 1), 1.0, "draw among the likeliest tokens that hold this mass"),
    "min_p": (real(0, 1), 0.0, "draw among tokens at least this fraction as likely as the likeliest"),
    "typical": (real(0, 1), 1.0, "draw among the most typical tokens that hold this mass"),
    "repetition_penalty": (real(1e-3, 1e3), 1.0, "divide (or multiply) the logits of tokens that occurred; 1: off"),
    "presence_penalty": (real(-100, 100), 0.0, "subtracted once from the logits of tokens made before"),
    "frequency_penalty": (real(-100, 100), 0.0, "subtracted for each time that a token was made before"),
    "no_repeat_ngram": (whole(0, HUGE), 0, "never make the same N tokens twice; 0: off"),
    "min_tokens": (whole(0, HUGE), 0, "do not end before N tokens"),
    "seed": (whole(0, 2**64 - 1), 0, "the same seed draws the same text"),
    "max_tokens": (whole(1, HUGE), None, "stop after N tokens (256, or where the context ends)"),
}
"""Numbers that shape the answer: converter, default, meaning. Flags and the chat's /set share them."""

FLAGS = {name: ["--" + name.replace("_", "-")] for name in SAMPLING} | {
    "temperature": ["--temperature", "--temp"],
    "repetition_penalty": ["--repeat-penalty", "--repetition-penalty"],
    "typical": ["--typical", "--typical-p"],
    "no_repeat_ngram": ["--no-repeat-ngram", "--no-repeat-ngram-size"],
    "min_tokens": ["--min-tokens", "--min-new-tokens"],
    "seed": ["-s", "--seed"],
    "max_tokens": ["-n", "--max-tokens", "--n-predict", "--max-new-tokens", "--num-predict"],
}
"""How each of them is spelled."""
