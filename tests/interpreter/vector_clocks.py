"""Races the slow way: every access is kept, and a clock per thread says of each pair whether the later knows the other.

``lenient``: what a thread fenced or read atomically is passed on by barriers to the threads that use it; the model of
PTX wants the fence and the atomic in one thread. The detector lies between the two.
"""

from typing import Any

import numpy as np

__all__ = ["VectorClocks"]


class VectorClocks:
    def __init__(self, threads: int, blocks: int, lenient: bool) -> None:
        self.threads, self.blocks, self.lenient = threads, blocks, lenient
        self.block = -1
        size = threads * blocks
        self.known = np.zeros((size, size), int)  # known[t][u]: the latest step of u that t comes after
        self.fenced = np.zeros((size, size), int)
        self.read = np.zeros((size, size), int)  # what atomics read, before a fence
        self.words: dict[int, Any] = {}
        self.accesses: list[tuple[int, int, int, str, int, int]] = []

    def begin_block(self) -> None:
        self.block += 1
        self.accesses = [access for access in self.accesses if access[3] == "global"]
        for t in self._mine(range(self.threads)):
            self.known[t, t] = 1

    def _mine(self, threads: Any) -> list[int]:
        return [self.block * self.threads + t for t in threads if t < self.threads]

    def sync(self, threads: Any) -> None:
        mine = self._mine(threads)
        if not mine:
            return
        tables = [self.known, self.fenced, self.read] if self.lenient else [self.known]
        for table in tables:
            table[mine] = table[mine].max(0)
        for t in mine:
            self.known[t, t] += 1

    def fence(self, threads: Any) -> None:
        for t in self._mine(threads):
            self.known[t] = np.maximum(self.known[t], self.read[t])
            self.fenced[t] = self.known[t]
            self.known[t, t] += 1

    def access(self, space: str, lanes: dict[int, int], size: int, kind: int) -> bool:
        """Record that threads access offsets. Return whether one of them races with what came before."""
        writes, strong = kind & 1, kind & 2
        mine = {self._mine([t])[0]: offset for t, offset in lanes.items()}
        raced = False
        for t, offset in mine.items():
            if strong and space == "global":
                word = self.words.setdefault(offset // 4, np.zeros(len(self.known), int))
                if kind != 3:
                    self.read[t] = np.maximum(self.read[t], word)
                if writes:
                    word[:] = np.maximum(word, self.fenced[t])
            for other, step, where, there, length, how in self.accesses:
                apart = there != space or offset + size <= where or where + length <= offset
                harmless = not (writes or how & 1) or strong & how
                if other != t and not apart and not harmless and self.known[t, other] < step:
                    raced = True
        self.accesses += [(t, self.known[t, t], offset, space, size, kind) for t, offset in mine.items()]
        return raced
