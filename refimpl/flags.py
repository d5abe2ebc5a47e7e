"""Values that the flags of both commands and the chat's /set take: text to a number within its limits."""

import argparse
import json
import math
from collections.abc import Callable

from refimpl.contract import host

__all__ = ["FLAGS", "HUGE", "RANDOM", "SAMPLING", "parse_bias", "path", "phrase", "real", "whole"]

HUGE = 2**31 - 1

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
