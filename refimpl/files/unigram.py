"""The unigram model: of all ways to cut a text, the one whose pieces' log-probabilities sum to the most."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from refimpl.contract import host

__all__ = ["lengths_by_letter", "best_path"]

_UNKNOWN = 10.0  # how much worse than the worst piece a letter is that is none


@host
def lengths_by_letter(pieces: Iterable[str]) -> dict[str, list[int]]:
    """List how long the pieces are that begin with each letter.

    >>> lengths_by_letter(["a", "bcd", "bc"])
    {'a': [1], 'b': [2, 3]}
    """
    found = defaultdict[str, set[int]](set)
    for piece in pieces:
        found[piece[:1]].add(len(piece))
    return {letter: sorted(lengths) for letter, lengths in found.items()}


@host
def best_path(text: str, scores: Mapping[str, float], lengths: Mapping[str, Sequence[int]]) -> list[str]:
    """Cut text into pieces; a letter that is no piece stands alone.

    Math: best[end] = max over pieces of best[end - length] + score(piece), best[0] = 0   (Viterbi)
    Cost: linear in the text, times the number of lengths that pieces of one first letter have.
    Source: Kudo 2018, "Subword regularization"; SentencePiece, src/unigram_model.cc.

    >>> scores = {"a": -1.0, "b": -1.0, "ab": -1.5, "ba": -0.1}
    >>> best_path("ab?ba", scores, lengths_by_letter(scores))
    ['ab', '?', 'ba']
    """
    end = len(text)
    floor = min(scores.values(), default=0.0) - _UNKNOWN
    best, origin = [0.0] + [float("-inf")] * end, [0] * (end + 1)
    for at, letter in enumerate(text):
        if letter not in scores and best[at] + floor > best[at + 1]:
            best[at + 1], origin[at + 1] = best[at] + floor, at
        for length in lengths.get(letter, ()):
            if at + length > end:
                break
            score = scores.get(text[at : at + length])
            if score is not None and best[at] + score > best[at + length]:
                best[at + length], origin[at + length] = best[at] + score, at
    pieces = []
    while end:
        pieces.append(text[origin[end] : end])
        end = origin[end]
    return pieces[::-1]
