"""Ctrl-C while a model answers: the token in hand is finished, then the answer ends."""

import contextlib
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from refimpl.contract import host

__all__ = ["Brake", "brake"]

_APART = 1.0  # seconds; what is pressed sooner after Ctrl-C is the same wish


@dataclass
class Brake:
    """Whether the user asked to stop.

    Once ``armed`` the first Ctrl-C only sets ``pulled``, so that ids, text and cache stay in step; before that (a long
    prompt is still being read) it is a KeyboardInterrupt as ever. The next ones are passed over, so that what is there
    gets written; whoever waits a second between two ends what hangs.
    """

    armed: bool = False
    pulled: bool = False
    last: float = -math.inf  # when it was pressed

    def __call__(self, number: int, frame: FrameType | None) -> None:
        before, self.last = self.last, time.monotonic()
        if self.last - before < _APART:
            return
        if not self.armed or self.pulled:
            raise KeyboardInterrupt
        self.pulled = True

    def check(self) -> None:
        """Stop here if that was asked for."""
        if self.pulled:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Put Ctrl-C off for a moment, as for an import: one that is broken off may not say so."""
        self.armed = True
        yield
        self.armed = False
        self.check()

    def release(self) -> None:
        """Forget what was asked: something new begins."""
        self.armed, self.pulled, self.last = False, False, -math.inf


@host
@contextlib.contextmanager
def brake() -> Iterator[Brake]:
    """Hand Ctrl-C to a Brake while the context lasts, or longer if it had one; elsewhere signals are not ours."""
    before = signal.getsignal(signal.SIGINT)
    if isinstance(before, Brake):
        yield before
        return
    handler = Brake()
    try:
        if before is not signal.default_int_handler:
            raise ValueError("Ctrl-C is ignored, as in a background job, or another program's")
        signal.signal(signal.SIGINT, handler)
    except ValueError:  # also: not the main thread
        yield handler
        return
    try:
        yield handler
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
