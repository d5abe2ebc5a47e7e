"""Byte-pair encoding by scores: the joint with the best score goes first, as SentencePiece and GGUF files have it."""

from collections.abc import Mapping
from heapq import heappop, heappush

from refimpl.contract import host

__all__ = ["merge"]


@host
def merge(text: str, scores: Mapping[str, float]) -> list[str]:
    """Join neighbours, the best score first and the leftmost among equals, until no joint is a piece.

    Cost: n log n in the length of the text: every joint makes at most two candidates for the heap.
    Source: SentencePiece (Kudo and Richardson 2018), src/bpe_model.cc.

    >>> merge("abab", {"ab": -1.0, "ba": 0.0, "abab": -2.0})
    ['a', 'ba', 'b']
    """
    parts = list(text)
    before, after = list(range(-1, len(parts) - 1)), list(range(1, len(parts) + 1))
    heap: list[tuple[float, int, int, str]] = []

    def offer(left: int, right: int) -> None:
        if left >= 0 and right < len(parts) and (joint := parts[left] + parts[right]) in scores:
            heappush(heap, (-scores[joint], left, right, joint))

    for right in range(1, len(parts)):
        offer(right - 1, right)
    while heap:
        _, left, right, joint = heappop(heap)
        if not (parts[left] and parts[right]) or len(parts[left]) + len(parts[right]) != len(joint):
            continue  # one of the two has been joined to another since
        parts[left], parts[right] = joint, ""
        after[left] = after[right]
        if after[left] < len(parts):
            before[after[left]] = left
        offer(before[left], left)
        offer(left, after[left])
    return [part for part in parts if part]
