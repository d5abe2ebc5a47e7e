"""Random texts: words, numbers, blanks, signs and letters of every script, by seed."""

import random
import sys
import unicodedata
from functools import cache

PARTS = [
    "the", " the", "The", " fox", "jumps", " over", "ing", " 2024", "12", "1234567", "3.14", "it's", "'S", "we'LL",
    "don't", " I'm", "naïve", " façade", "Größe", "\u03a3\u038a\u03a3\u03a5\u03a6\u039f\u03a3", "\u0130stanbul",
    "\u01c5", "ﬁ", "ß", "東京", "は日本", "한국어", "กรุงเทพ", "नमस्ते", "مرحبا", "שלום", "e\u0301", "a\u0308\u0323",
    "\u1100\u1161\u11a8", "½", "\u2167", "٣٤", "😀", "👩\u200d👩\u200d👧", "🇩🇪", " ", "  ", "    ", "\t", "\n", "\r\n",
    "\n\n", " \n ", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "\x85", "\x1f", ".", ",", "!?", "...", "--", "_",
    "#", "<", ">", "/", "\\", '"', "'", "`", "$", "€", "«", "»", "、", "。", "\uff01", "\uff5e", "\u2019", "<s>",
    "</s>", "<|im_end|>", "[CLS]", "##ing", "\u2581", "<0x41>", "http://a.b/c?d=e&f", "x=1;", "    return n\n",
    '{\n  "a":', "\x00", "\ufffd", "\ufeff", "aaaaaaaa", "abababab", "zzzzzzzzzzzzzzzzzzzzzzzz", "\u0378", "\U0001faef",
]  # fmt: skip


@cache
def letters(every: bool) -> frozenset[str]:
    """List characters: those that have been what they are since Unicode 3.2, or every one, assigned or not."""
    new, old = unicodedata.category, unicodedata.ucd_3_2_0.category
    kept = (c for c in map(chr, range(sys.maxunicode + 1)) if new(c) not in ("Cs", "Co"))
    return frozenset(kept if every else (c for c in kept if old(c) == new(c) != "Cn"))


@cache
def _choices(every: bool) -> list[list[str]]:
    """List the parts, and the letters of three scopes."""
    known = sorted(letters(every))
    parts = [part for part in PARTS if {*part} <= letters(every)]
    return [parts, [c for c in known if c < "\u0250"], [c for c in known if c < "\u3100"], known]


def texts(seed: int, count: int, *, every: bool = False) -> list[str]:
    """Make texts of up to about a hundred characters."""
    draw, (parts, latin, wide, known) = random.Random(seed), _choices(every)

    def part() -> str:
        kind = draw.random()
        if kind < 0.6:
            return draw.choice(parts)
        scope = latin if kind < 0.75 else wide if kind < 0.9 else known
        return "".join(draw.choice(scope) for _ in range(draw.randint(1, 4)))

    return ["".join(part() for _ in range(draw.randint(0, 14))) for _ in range(count)]
