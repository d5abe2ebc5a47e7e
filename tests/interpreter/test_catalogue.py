"""What the machine knows is what is tested: no opcode without a test, and nothing that is nearly one."""

import random

from gpu.interpreter.families import FAMILIES
from tests.interpreter import (
    test_opcodes_compare,
    test_opcodes_control,
    test_opcodes_convert,
    test_opcodes_dots,
    test_opcodes_floating,
    test_opcodes_integer,
    test_opcodes_logic,
    test_opcodes_memory,
    test_opcodes_mma,
    test_opcodes_packed,
    test_opcodes_warp,
)

TESTED = [
    *test_opcodes_compare.OPCODES, *test_opcodes_control.OPCODES, *test_opcodes_convert.OPCODES,
    *test_opcodes_dots.OPCODES, *test_opcodes_floating.OPCODES, *test_opcodes_integer.OPCODES,
    *test_opcodes_logic.OPCODES, *test_opcodes_memory.OPCODES, *test_opcodes_mma.OPCODES, *test_opcodes_packed.OPCODES,
    *test_opcodes_warp.OPCODES,
]  # fmt: skip
KNOWN = {opcode for family in FAMILIES for opcode in family.catalogue()}
WORDS = sorted({word for opcode in KNOWN for word in opcode.split(".")})
STRANGE = ("rs", "satfinit", "x2", "v8", "async", "nearest", "u128", "tf64", "f8", "b4")


def families(opcode: str) -> list[str]:
    """Return the families that know an opcode."""
    return [family.__name__ for family in FAMILIES if family.code_of(opcode, 32) is not None]


def neighbours(opcode: str, rng: random.Random) -> set[str]:
    """Return opcodes with a word missing, doubled, moved, put in or replaced."""
    words, found = opcode.split("."), []
    for i, word in enumerate(words):
        before, after = words[:i], words[i + 1 :]
        found += [[*before, *after], [*before, word, word, *after], [*before, *after[:1], word, *after[1:]]]
        for other in (rng.choice(WORDS), rng.choice(STRANGE)):
            found += [[*before, other, *after], [*before, word, other, *after]]
    return {".".join(each) for each in found}


def test_each_opcode_is_tested():
    assert KNOWN - set(TESTED) == set()


def test_each_test_is_of_an_opcode():
    assert set(TESTED) - KNOWN == set()


def test_each_opcode_belongs_to_one_family():
    assert [opcode for opcode in KNOWN if len(families(opcode)) != 1] == []


def test_what_is_nearly_an_opcode_is_unknown():
    rng = random.Random(1)
    near = {other for opcode in sorted(KNOWN) for other in neighbours(opcode, rng)} - KNOWN
    assert len(near) > 100_000
    assert sorted(opcode for opcode in near if families(opcode)) == []
