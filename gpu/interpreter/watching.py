"""The witness of a launch: it sees every access before the bytes move, counts it, and stops it where it races.

In all orders but the last of several, a read of an array counts for the race detector only once something has written
to that array; whatever is written is known in the later orders from the start. So what a kernel only reads is free.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpu.interpreter import clocks
from gpu.interpreter.jit import jit, spliced
from gpu.interpreter.pattern import first_lane
from gpu.interpreter.race_report import describe
from gpu.interpreter.races import ATOMIC, FINE, GLOBAL, SHARED, STOP, STRONG_READ, WRITE, make_shadow
from gpu.interpreter.raw import load8
from gpu.interpreter.regions import FIRST, REGION_BITS, START, WINDOWS, Region
from gpu.interpreter.units import count_global, count_shared, fence, watch
from refimpl.contract import host

__all__ = ["Watching", "differs", "make_watching", "note", "observe", "sentence"]

_SHARED_REGION = WINDOWS["shared"]


class Watching(NamedTuple):
    """The arrays of a witness."""

    watch: Any  # gpu/interpreter/clocks.py
    of_shared: Any  # the shadows of gpu/interpreter/races.py
    of_global: Any
    bases: Any  # int64 [regions]: where a region begins when all are laid end to end
    written: Any  # uint8 [regions]: those that the race detector follows
    offsets: Any  # int64 [32]
    tally: Any  # int64 [8]: gpu/interpreter/traffic.py
    sectors: Any  # int64 [regions, 8]
    races: int


def _size(opcode: str, space: str) -> int:
    """Return how many bytes a lane moves at once in a space by an opcode, 16 if that is none or more."""
    words = opcode.split(".")
    spaces = {word.split("::")[0] for word in words} & {"global", "shared", "local", "param", "const"}
    if words[0] not in ("ld", "st", "atom", "red", "ldu") or (spaces and space not in spaces):
        return 4 if opcode.startswith("cp.async.ca") else 16
    bits = int("".join(filter(str.isdigit, words[-1].split("x")[0]))) * (2 if words[-1].endswith("x2") else 1)
    return min(16, bits // 8 * {"v2": 2, "v4": 4, "v8": 8}.get(words[-2], 1))


@functools.lru_cache(maxsize=256)
def _needs(opcodes: tuple[str, ...]) -> tuple[bool, int, int]:
    """Return whether a kernel orders blocks, and its smallest access to shared and to global memory."""
    orders = any(word in opcode for opcode in opcodes for word in ("fence", "membar", ".acq", ".release"))
    return orders, *(min((_size(opcode, space) for opcode in opcodes), default=16) for space in ("shared", "global"))


@host
def make_watching(opcodes: Sequence[str], sizes: Sequence[int], threads: int, races: bool, orders: int) -> Watching:
    """Return the witness of a launch of blocks of so many threads; ``sizes`` are those of all regions, in bytes."""
    fences, *grains = _needs(tuple(opcodes))
    ends = np.cumsum([0, *(-(-size // 16) * 16 for size in sizes[FIRST:])])
    lengths = (sizes[_SHARED_REGION], int(ends[-1]))
    shadows = [make_shadow(length, grain if races else 0) for length, grain in zip(lengths, grains, strict=True)]
    return Watching(
        watch=clocks.make_watch(threads, fences), of_shared=shadows[0], of_global=shadows[1],
        bases=np.array([0] * FIRST + ends[:-1].tolist(), np.int64),
        written=np.full(len(sizes), orders == 1, np.uint8), offsets=np.zeros(32, np.int64),
        tally=np.zeros(8, np.int64), sectors=np.zeros((len(sizes), 8), np.int64), races=int(races),
    )  # fmt: skip


@spliced
def _race(watching, shadow, space, warp, size, mask, kind, place):
    if not watching.races:
        return FINE
    return watch(watching.watch, shadow, space, warp, watching.offsets, size, np.uint32(mask), kind, place)


@spliced
def _note_global(watching, region, warp, size, mask, kind, place):
    offsets = watching.offsets
    count_global(watching.sectors, region, offsets, size, mask, kind & WRITE)
    if kind & WRITE:
        watching.written[region] = 1
    if not watching.written[region]:
        return FINE
    for lane in range(32):
        offsets[lane] += watching.bases[region]
    return _race(watching, watching.of_global, GLOBAL, warp, size, mask, kind, place)


@jit
def note(watching, regions, addresses, size, mask, warp, kind, place):
    """Count an access of some kind, and say FINE, DUPLICATE or STOP."""
    said, left = FINE, np.int64(mask)
    while left:
        region, here = addresses[first_lane(left)] >> REGION_BITS, np.int64(0)
        for lane in range(32):
            here |= np.int64(addresses[lane] >> REGION_BITS == region) << lane
            watching.offsets[lane] = addresses[lane] - regions[region, START]
        here &= left
        left &= ~here
        if region == _SHARED_REGION:
            count_shared(watching.tally, watching.offsets, size, here, kind & WRITE, kind == ATOMIC)
            said = max(said, _race(watching, watching.of_shared, SHARED, warp, size, here, kind, place))
        elif region >= FIRST:
            said = max(said, _note_global(watching, region, warp, size, here, kind, place))
        if said == STOP:
            return STOP
    return said


@spliced
def observe(watching, regions, addresses, size, mask, warp, code, place):
    """Count an access with a code of gpu/interpreter/access.py, order what it orders, and say what ``note`` says."""
    is_atomic, strength = code & 3 == 2, (code >> 14) & 7  # weak, relaxed, acquire, release, volatile or both
    kind = ATOMIC if is_atomic else code & 1 | (STRONG_READ if strength else 0)
    orders = watching.races and strength > 1
    if orders and (strength == 3 or (strength == 4 and is_atomic)):
        fence(watching.watch, warp, np.uint32(mask))
    said = note(watching, regions, addresses, size, mask, warp, kind, place)
    if orders and (strength == 2 or (strength == 4 and is_atomic)):
        fence(watching.watch, warp, np.uint32(mask))
    return said


@jit
def differs(source, mask, places, size):
    """Return the first lane whose word is not what stands where it has been stored, or -1."""
    for lane in range(32):
        if mask >> lane & 1:
            for i in range(size):
                if load8(places[lane] + i) != (source[lane] >> np.uint64(8 * i)) & np.uint64(0xFF):
                    return lane
    return -1


@host
def sentence(
    watching: Watching, regions: Sequence[Region], line_of: Callable[[int], str], block_of: Callable[[int], str]
) -> str:
    """Say what the access was about to do that made ``note`` say STOP."""

    def name_of(space: int, offset: int) -> str:
        if space == SHARED:
            return f"shared memory + {offset}"
        region = int(np.searchsorted(watching.bases[FIRST:], offset, side="right")) + FIRST - 1
        return f"{regions[region].name} + {offset - int(watching.bases[region])}"

    return describe(watching.watch, line_of, name_of, block_of)
