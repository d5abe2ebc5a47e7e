"""Ctrl-C while a model answers: the token in hand is finished, then the answer ends."""

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from refimpl.contract import host

__all__ = ["Brake", "brake"]


@dataclass
class Brake:
    """Whether the user asked to stop.

    Once ``armed`` the first Ctrl-C only sets ``pulled``, so that ids, text and cache stay in step; before
    that (a long prompt is still being read), and the second time, it is a KeyboardInterrupt as ever.
    """

    armed: bool = False
    pulled: bool = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.armed or self.pulled:
            raise KeyboardInterrupt
        self.pulled = True


@host
@contextlib.contextmanager
def brake() -> Iterator[Brake]:
    """Hand Ctrl-C to a Brake while the context lasts; where signals are not ours it stays idle."""
    handler = Brake()
    try:
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            raise ValueError("Ctrl-C is ignored, as in a background job, or another program's")
        signal.signal(signal.SIGINT, handler)
    except ValueError:  # also: not the main thread
        yield handler
        return
    try:
        yield handler
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
