"""Generation: prefill the prompt, decode token by token, stop; text comes out as soon as it cannot change.

Here a model is one function, ``step``, which appends ids to its sequence and returns the logits after the last of them.
"""

import codecs
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from refimpl.basics.activation import log_softmax
from refimpl.contract import Array, UsageError, host, whole, widen
from refimpl.llm.rng import uniform
from refimpl.llm.sampler import Chain, sample

__all__ = ["Reply", "Step", "TextStream", "Token", "generate"]

Step: TypeAlias = Callable[[list[int]], Array]


@dataclass(frozen=True)
class Token:
    """One generated token, and the text that can no longer change once it is there.

    ``logprob`` and ``top_logprobs`` (the likeliest ids first) describe the model's own distribution, before the chain.
    ``stop`` is None but for the last token: "eos", "stop" (a stop string), "length" (max_tokens) or "context" (full).
    ``drafted``: a draft had proposed it (see llm/speculative.py).
    """

    id: int
    text: str = ""
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    stop: str | None = None
    drafted: bool = False


@dataclass(frozen=True)
class TextStream:
    """A stream from bytes to text that holds back an unfinished character and what may be the start of a stop string.

    The text ends before the stop string that is complete first (of two, the longer), however the bytes are cut.
    Bytes that are not UTF-8 become U+FFFD, as in ``bytes.decode(errors="replace")``.

    >>> stream, text = TextStream(stop=("END",)).push("ü EN".encode())
    >>> text
    'ü '
    >>> stream.push(b"D of the text")
    (TextStream(stop=('END',), pending=b'', held='', stopped=True), '')
    """

    stop: tuple[str, ...] = ()
    pending: bytes = b""
    held: str = ""
    stopped: bool = False

    def push(self, piece: bytes, final: bool = False) -> tuple["TextStream", str]:
        """Take a piece; return the stream after it and the text that goes out. ``final`` holds nothing back."""
        if self.stopped:
            return self, ""
        data = self.pending + piece
        decoded, used = codecs.utf_8_decode(data, "replace", final)
        text = self.held + decoded
        found = [(start + len(stop), start) for stop in self.stop if (start := text.find(stop)) >= 0]
        if found:
            return replace(self, pending=b"", held="", stopped=True), text[: min(found)[1]]
        keep = 0 if final else self._possible_start(text)
        return replace(self, pending=data[used:], held=text[len(text) - keep :]), text[: len(text) - keep]

    def _possible_start(self, text: str) -> int:
        """Return the length of the longest end of ``text`` with which a stop string begins."""
        longest = max(map(len, self.stop), default=0)
        lengths = range(min(longest - 1, len(text)), 0, -1)
        return next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in self.stop)), 0)


def _describe(logits: Array, token_id: int, count: int) -> tuple[float | None, tuple[tuple[int, float], ...]]:
    if count == 0:
        return None, ()
    logprobs = log_softmax(widen(logits).astype(np.float64))
    best = np.argsort(-logprobs, kind="stable")[:count]
    return float(logprobs[token_id]), tuple((int(i), float(logprobs[i])) for i in best)


def _ask(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)


@dataclass
class Reply:
    """A reply in the making: it takes logits and gives tokens, and never calls the model itself.

    ``generate`` makes one; an executor that runs many sequences in one step makes one for each. The prompt is checked
    when the reply is made, before the model runs. The noise of a token depends on its position alone
    (``uniform(seed, request, position)``), so a sequence that was cut goes on as if it had not been.
    """

    prompt: list[int]
    _: KW_ONLY
    context: int
    chain: Chain = (("greedy", None),)
    max_tokens: int | None = None
    eos_ids: Collection[int] = ()
    stop: Sequence[str] = ()
    token_bytes: Callable[[int], bytes] | None = None
    seed: int = 0
    request: int = 0
    logprobs: int = 0
    output: list[int] = field(init=False, default_factory=list)
    ended: str | None = field(init=False, default=None)  # why, once it has
    stream: TextStream = field(init=False)

    def __post_init__(self) -> None:
        limit = () if self.max_tokens is None else ("max_tokens",)
        for name in ("context", "seed", "request", "logprobs", *limit):
            setattr(self, name, whole(name, getattr(self, name)))
        _ask(not isinstance(self.stop, str), f"stop is a list of strings, got {self.stop!r}")
        length, room = len(self.prompt), self.context - len(self.prompt)
        _ask(length > 0, "the prompt holds no token")
        _ask(room > 0, f"a context of {self.context} tokens has no room for a token after a prompt of {length}")
        _ask(self.max_tokens is None or self.max_tokens >= 0, f"max_tokens is not negative, got {self.max_tokens}")
        _ask(self.logprobs >= 0, f"logprobs is not negative, got {self.logprobs}")
        _ask("" not in self.stop, "a stop string is not empty")
        _ask(not self.stop or self.token_bytes is not None, "stop strings need a tokenizer")
        self.ended = "length" if self.max_tokens == 0 else None
        self.stream = TextStream(tuple(self.stop))

    @property
    def longest(self) -> int:
        """The most tokens that prompt and answer may have together."""
        return min(self.context, len(self.prompt) + (self.context if self.max_tokens is None else self.max_tokens))

    @property
    def room(self) -> int:
        """How many tokens may still come."""
        return self.longest - len(self.prompt) - len(self.output)

    @property
    def pending(self) -> list[int]:
        """The ids that the model has not seen: the prompt, later the last token."""
        return self.output[-1:] or self.prompt

    def take(self, logits: Array) -> Token:
        """Draw a token from the logits after ``pending``."""
        noise = uniform(self.seed, self.request, len(self.prompt) + len(self.output))
        token_id = sample(logits, self.prompt, self.output, self.chain, noise)
        self.output.append(token_id)
        if token_id in self.eos_ids:
            self.ended = "eos"
        elif len(self.output) == self.max_tokens:
            self.ended = "length"
        elif len(self.prompt) + len(self.output) == self.context:
            self.ended = "context"
        piece = self.token_bytes(token_id) if self.token_bytes and self.ended != "eos" else b""
        self.stream, text = self.stream.push(piece, final=self.ended is not None)
        if self.stream.stopped:
            self.ended = "stop"
        return Token(token_id, text, *_describe(logits, token_id, self.logprobs), stop=self.ended)


@host
def generate(step: Step, prompt_ids: Sequence[int], *, context: int, **settings: Any) -> Iterator[Token]:
    """Generate the tokens after a prompt, as an iterator that runs the model only as far as it is consumed.

    Prefill is one step over the whole prompt, decode one step a token; a token that ends the text is not fed back.
    Every token, the last one too, is yielded, the last with its reason to stop; an end-of-sequence token has no text
    of its own. ``settings`` are those of ``Reply``.

    >>> def step(ids):   # a model that counts
    ...     return np.eye(5)[(ids[-1] + 1) % 5]
    >>> [(token.id, token.stop) for token in generate(step, [0, 1], context=16, eos_ids={4})]
    [(2, None), (3, None), (4, 'eos')]
    """
    reply = Reply(list(prompt_ids), context=context, **settings)

    def tokens() -> Iterator[Token]:
        while reply.ended is None:
            yield reply.take(step(reply.pending))

    return tokens()
