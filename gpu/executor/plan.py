"""The plan of one step: which tokens run, where their queries' tiles lie, which splits several threads share.

Nothing here changes a result; it only cuts the work so that all threads have some.
"""

from collections.abc import Sequence as Row
from typing import NamedTuple

import numpy as np

from refimpl.contract import Array

from .attention import SPLIT
from .cache import Sequence
from .program import TILE

__all__ = ["CHUNK", "TILE_ROWS", "Plan", "Segment", "cut"]

CHUNK = 512  # tokens of a step: more would not make the matrices faster, only the buffers larger
TILE_ROWS = 24  # query rows of a tile: their scores and one page stay in the first level of cache


class Segment(NamedTuple):
    """Tokens of one sequence in one step."""

    sequence: Sequence
    ids: Array
    start: int  # position of the first
    rope_len: int  # length that the scalings of RoPE see: that of all the tokens given at once
    result: int  # row of the answer that the last token gives, or -1


def cut(items: Row[tuple[Sequence, Array]]) -> list[list[Segment]]:
    """Pack the tokens of all items, in order, into steps of at most CHUNK."""
    steps: list[list[Segment]] = [[]]
    room = CHUNK
    for result, (sequence, ids) in enumerate(items):
        done, rope_len = 0, max(sequence.prompt_length, sequence.length + len(ids))
        while done < len(ids):
            count = min(room, len(ids) - done)
            answers = result if done + count == len(ids) else -1
            part = ids[done : done + count]
            steps[-1].append(Segment(sequence, part, sequence.length + done, rope_len, answers))
            done, room = done + count, room - count
            if room == 0:
                steps.append([])
                room = CHUNK
    return [step for step in steps if step]


class Plan:
    """The tables of a step, allocated once."""

    def __init__(self, group: int, kv_heads: int, threads: int, max_splits: int) -> None:
        self.max_parts = max(64, max_splits)
        self._tile_queries = max(1, TILE_ROWS // group)
        self._enough = 4 * threads  # tasks that keep all threads busy
        self._kv_heads = kv_heads
        self.ids, self.positions, self.tables, self.wanted = np.zeros((4, CHUNK), np.int64)
        self.tiles = np.zeros(CHUNK + self.max_parts, TILE)
        self.merges = np.zeros(CHUNK, TILE)
        self.tokens = self.rows = self.tile_count = self.merge_count = 0

    def fill(self, segments: list[Segment], every_row: bool = False) -> None:
        """Write the tables of a step; the wanted rows are the segments' last ones that have a result, or all."""
        self.tokens = self.rows = self.tile_count = self.merge_count = 0
        tiles = sum(-(-len(segment.ids) // self._tile_queries) for segment in segments)
        shared = tiles * self._kv_heads < self._enough
        parts = 0
        for segment in segments:
            first, count = self.tokens, len(segment.ids)
            self.ids[first : first + count] = segment.ids
            self.positions[first : first + count] = np.arange(segment.start, segment.start + count)
            self.tables[first : first + count] = segment.sequence.table.ctypes.data
            splits = (segment.start + count - 1) // SPLIT + 1
            if shared and count == 1 and 1 < splits <= self.max_parts - parts:
                self._share(first, splits, parts)
                parts += splits
            else:
                self._tile(first, segment.start, count)
            self.tokens += count
            if segment.result >= 0 and not every_row:
                self.wanted[self.rows] = self.tokens - 1
                self.rows += 1
        if every_row:
            self.rows = self.tokens
            self.wanted[: self.rows] = np.arange(self.rows)

    def _tile(self, first: int, start: int, count: int) -> None:
        for done in range(0, count, self._tile_queries):
            queries = min(self._tile_queries, count - done)
            splits = (start + done + queries - 1) // SPLIT + 1
            self.tiles[self.tile_count] = (first + done, queries, 0, splits, -1)
            self.tile_count += 1

    def _share(self, row: int, splits: int, part: int) -> None:
        for split in range(splits):
            self.tiles[self.tile_count] = (row, 1, split, split + 1, part + split)
            self.tile_count += 1
        self.merges[self.merge_count] = (row, 1, 0, splits, part)
        self.merge_count += 1
