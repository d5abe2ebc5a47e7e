"""The plan of one step: which tokens run, where their queries' tiles lie, which splits several threads share.

Nothing here changes a result; it only cuts the work so that all threads have some.
"""

from collections.abc import Sequence as Row
from typing import NamedTuple

import numpy as np

from gpu.executor.attention import SPLIT
from gpu.executor.cache import Sequence
from gpu.executor.program import TILE
from refimpl.contract import Array, host

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


@host
def cut(items: Row[tuple[Sequence, Array, int]]) -> list[list[Segment]]:
    """Pack the tokens of all items, in order, into steps of at most CHUNK.

    An item asks for the logits of its last tokens, so many. Those after the first of these are segments of their own:
    RoPE's scalings by length see what they would see if the tokens came one by one.
    """
    steps: list[list[Segment]] = [[]]
    room, result = CHUNK, 0
    for sequence, ids, wanted in items:
        given = len(ids) - wanted + 1
        for begin, end in ((0, given), *((i, i + 1) for i in range(given, len(ids)))):
            done, rope_len = begin, max(sequence.prompt_length, sequence.length + end)
            while done < end:
                count = min(room, end - done)
                answers = result if done + count == end else -1
                part = ids[done : done + count]
                steps[-1].append(Segment(sequence, part, sequence.length + done, rope_len, answers))
                done, room = done + count, room - count
                if room == 0:
                    steps.append([])
                    room = CHUNK
            result += 1
    return [step for step in steps if step]


class _Tiles:
    """Tiles of queries, and the queries whose splits several threads attend."""

    def __init__(self, max_parts: int) -> None:
        self.max_parts = max_parts
        self.tiles, self.merges = np.zeros(CHUNK + max_parts, TILE), np.zeros(CHUNK, TILE)
        self.tile_count = self.merge_count = self._parts = 0

    def clear(self) -> None:
        """Begin again."""
        self.tile_count = self.merge_count = self._parts = 0

    def add(self, row: int, queries: int, position: int, share: bool) -> None:
        """Add a tile whose last query stands at ``position``; ``share`` cuts a lone query into its splits."""
        splits = position // SPLIT + 1
        if share and queries == 1 and 1 < splits <= self.max_parts - self._parts:
            for split in range(splits):
                self._put(row, 1, split, split + 1, self._parts + split)
            self.merges[self.merge_count] = (row, 1, 0, splits, self._parts)
            self.merge_count += 1
            self._parts += splits
        else:
            self._put(row, queries, 0, splits, -1)

    def _put(self, *tile: int) -> None:
        self.tiles[self.tile_count] = tile
        self.tile_count += 1


class Plan:
    """The tables of a step, allocated once. ``last`` holds the tiles of the wanted rows, which alone end a step."""

    def __init__(self, group: int, kv_heads: int, threads: int, context: int) -> None:
        self.max_parts = max(64, -(-context // SPLIT))
        self._tile_queries = max(1, TILE_ROWS // group)
        self._enough = -(-4 * threads // kv_heads)  # tiles that keep all threads busy
        self.ids, self.positions, self.tables, self.wanted = np.zeros((4, CHUNK), np.int64)
        self.all, self.last = _Tiles(self.max_parts), _Tiles(self.max_parts)
        self.tokens = self.rows = 0

    def fill(self, segments: list[Segment], every_row: bool = False) -> None:
        """Write the tables of a step; the wanted rows are the segments' last ones that have a result, or all."""
        self.tokens = self.rows = 0
        self.all.clear()
        self.last.clear()
        few = sum(-(-len(segment.ids) // self._tile_queries) for segment in segments) < self._enough
        few_results = sum(segment.result >= 0 for segment in segments) < self._enough
        for segment in segments:
            first, count = self.tokens, len(segment.ids)
            end = segment.start + count
            self.ids[first : first + count] = segment.ids
            self.positions[first : first + count] = np.arange(segment.start, end)
            self.tables[first : first + count] = segment.sequence.table.ctypes.data
            for done in range(0, count, self._tile_queries):
                queries = min(self._tile_queries, count - done)
                self.all.add(first + done, queries, segment.start + done + queries - 1, few)
            self.tokens += count
            if segment.result >= 0 and not every_row:
                self.last.add(self.rows, 1, end - 1, few_results)
                self.wanted[self.rows] = self.tokens - 1
                self.rows += 1
        if every_row:
            self.rows = self.tokens
            self.wanted[: self.rows] = np.arange(self.rows)
