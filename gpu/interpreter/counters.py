"""What a launch did, counted: instructions by kind, and what shared and global memory moved against the least."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refimpl.contract import host

__all__ = ["KINDS", "Counters", "kind"]

KINDS = (
    "fma", "alu", "sfu", "ld.global", "st.global", "ld.shared", "st.shared", "cp.async", "mma", "ldmatrix", "shuffle",
    "vote", "atomic", "barrier", "branch", "convert", "other",
)  # fmt: skip
_FIRST_WORDS = {
    "sfu": "rcp sqrt rsqrt ex2 lg2 sin cos tanh",
    "mma": "mma wmma",
    "ldmatrix": "ldmatrix stmatrix movmatrix",
    "shuffle": "shfl",
    "vote": "vote match redux activemask",
    "atomic": "atom red",
    "barrier": "bar barrier membar fence",
    "branch": "bra brx ret exit call trap",
    "convert": "cvt",
    "alu": "add sub mul mad div rem abs neg min max sad addc subc madc and or xor not cnot shl shr shf lop3 prmt bfe "
    "bfi bfind clz popc brev setp set selp slct mov dp4a dp2a mul24 mad24 copysign testp fns bmsk szext",
}
_BY_WORD = {word: name for name, words in _FIRST_WORDS.items() for word in words.split()}
_FLOATS = {"f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64"}


@host
def kind(opcode: str) -> str:
    """Return the kind of an instruction, given its whole dotted opcode.

    >>> [kind(opcode) for opcode in ("fma.rn.f32", "mul.lo.s32", "div.rn.f32", "ld.global.nc.v4.f32", "ld.param.u64")]
    ['fma', 'alu', 'sfu', 'ld.global', 'other']
    """
    words = opcode.split(".")
    if words[:2] == ["cp", "async"]:
        return "cp.async"
    if words[0] in ("ld", "st"):
        space = next((word.split("::")[0] for word in words[1:] if word.startswith(("global", "shared"))), "")
        return f"{words[0]}.{space}" if space else "other"
    is_float = words[-1] in _FLOATS
    if is_float and words[0] in ("fma", "add", "sub", "mul", "mad"):
        return "fma"
    if is_float and words[0] == "div":
        return "sfu"
    return _BY_WORD.get(words[0], "other")


@functools.lru_cache(maxsize=256)
def _places(opcodes: tuple[str, ...]) -> np.ndarray:
    """Return the place in KINDS of each opcode, behind all for what is none."""
    return np.array([KINDS.index(kind(opcode)) if opcode else len(KINDS) for opcode in opcodes])


Moved = dict[str, tuple[int, int]]


def _sum(left: Moved, right: Moved) -> Moved:
    names = dict.fromkeys([*left, *right])
    pairs = {name: (left.get(name, (0, 0)), right.get(name, (0, 0))) for name in names}
    return {name: (a[0] + b[0], a[1] + b[1]) for name, (a, b) in pairs.items()}


@dataclass(frozen=True)
class Counters:
    """The counts of a launch, in instructions of a warp; each pair is (what was asked, the least it could be)."""

    instructions: dict[str, int]  # by kind; those that never ran are absent
    shared: Moved  # "loads", "stores": wavefronts
    loads: Moved  # by array: sectors of 32 bytes
    stores: Moved
    barriers: int
    divergence: int  # branches on which the lanes of a warp parted
    warps: int

    @property
    def shared_wavefronts(self) -> int:
        return sum(asked for asked, _ in self.shared.values())

    @property
    def shared_ideal(self) -> int:
        return sum(least for _, least in self.shared.values())

    @classmethod
    def collect(
        cls, opcodes: Sequence[str], executed: Any, tally: Any, sectors: Any, names: list[str],
        barriers: int, divergence: int, warps: int,
    ) -> "Counters":  # fmt: skip
        """Make the counts of a launch from those of its machine: ``executed`` by place, where "" is no instruction."""
        counts = np.bincount(_places(tuple(opcodes)), executed, len(KINDS)).astype(int).tolist()
        rows = [[int(number) for number in row] for row in sectors]
        return cls(
            instructions={name: count for name, count in zip(KINDS, counts, strict=False) if count},
            shared={"loads": (int(tally[0]), int(tally[1])), "stores": (int(tally[2]), int(tally[3]))},
            loads={name: (row[0], row[1]) for name, row in zip(names, rows, strict=True) if row[0]},
            stores={name: (row[2], row[3]) for name, row in zip(names, rows, strict=True) if row[2]},
            barriers=int(barriers),
            divergence=int(divergence),
            warps=int(warps),
        )

    def __add__(self, other: "Counters") -> "Counters":
        """Return the counts of two launches together."""
        kinds = [name for name in KINDS if name in self.instructions or name in other.instructions]
        return Counters(
            {name: self.instructions.get(name, 0) + other.instructions.get(name, 0) for name in kinds},
            _sum(self.shared, other.shared),
            _sum(self.loads, other.loads),
            _sum(self.stores, other.stores),
            self.barriers + other.barriers,
            self.divergence + other.divergence,
            self.warps + other.warps,
        )
