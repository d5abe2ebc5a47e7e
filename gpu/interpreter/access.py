"""Loads, stores and atomics: what an opcode says, and the bytes that move once the addresses are known to be good."""

import functools

import numpy as np

from gpu.interpreter.faults import MISALIGNED, OUTSIDE, READ_ONLY, WRONG_SPACE
from gpu.interpreter.grammar import expand
from gpu.interpreter.jit import inlined, jit
from gpu.interpreter.lanes import ALL, LANES, signed
from gpu.interpreter.pattern import first_lane
from gpu.interpreter.raw import load8, load16, load32, load64, store8, store16, store32, store64
from gpu.interpreter.regions import END, FIRST, OFFSET, REGION_BITS, START, WRITABLE
from refimpl.contract import host

__all__ = [
    "ATOMIC", "GENERIC", "GLOBAL", "LOAD", "LOCAL", "PARAM", "SHARED", "STORE", "catalogue", "code_of", "load",
    "locate", "space_of", "store",
]  # fmt: skip

LOAD, STORE, ATOMIC = 0, 1, 2
GENERIC, SHARED, LOCAL, PARAM, GLOBAL = 0, 1, 2, 3, 4
_SPACES = {
    "shared": SHARED, "shared::cta": SHARED, "local": LOCAL, "param": PARAM, "param::entry": PARAM, "const": GLOBAL,
    "global": GLOBAL,
}  # fmt: skip
_STRENGTHS = ("weak", "relaxed", "acquire", "release", "volatile")
_GRAMMAR = """
    ld{.SPACE}.VALUE            ld.volatile{.OWN}.VALUE     ld.ACQUIRE.SCOPE{.ALL}.NUMBER       ld{.global}.CACHE.VALUE
    ld.global{.KEEP}.VALUE      ld.global.FETCH.VALUE       ld.global.nc{.KEEP}{.FETCH}.VALUE   ld.global.CACHE.nc.VALUE
    st{.OWN}.VALUE              st.volatile{.OWN}.VALUE     st.RELEASE.SCOPE{.ALL}.NUMBER       st{.global}.BACK.VALUE
    st.global{.KEEP}.VALUE
"""
_NUMBERS = (*(f"{letter}{bits}" for letter in "bus" for bits in (8, 16, 32, 64)), "f32", "f64")
_VECTORS = (
    *(f"v2.{kind}" for kind in _NUMBERS), *(f"v4.{kind}" for kind in _NUMBERS if not kind.endswith("64")),
)  # fmt: skip
_LISTS = {
    "SPACE": tuple(_SPACES), "OWN": ("global", "shared", "shared::cta", "local"), "ALL": ("global", "shared"),
    "ACQUIRE": ("relaxed", "acquire"), "RELEASE": ("relaxed", "release"), "SCOPE": ("cta", "cluster", "gpu", "sys"),
    "CACHE": ("ca", "cg", "cs", "lu", "cv"), "BACK": ("wb", "cg", "cs", "wt"), "NUMBER": _NUMBERS,
    "KEEP": ("L1::evict_normal", "L1::evict_last", "L1::evict_first", "L1::no_allocate"),
    "FETCH": ("L2::64B", "L2::128B", "L2::256B"), "VALUE": (*_NUMBERS, *_VECTORS),
}  # fmt: skip


@host
def space_of(words: list[str]) -> int:
    """Return the space that is among the words of an opcode."""
    return next((_SPACES[word] for word in words if word in _SPACES), GENERIC)


@functools.cache
@host
def catalogue() -> frozenset[str]:
    """Return every opcode of the family."""
    return frozenset(expand(_GRAMMAR, _LISTS))


@host
def code_of(opcode: str, width: int) -> int | None:
    """Return the code of ``ld`` and ``st``: what, space, size, how many, the width to which a sign extends."""
    if opcode not in catalogue():
        return None
    name, *words, kind = opcode.split(".")
    size = int(kind[1:]) // 8
    count = {"v2": 2, "v4": 4}.get(words[-1] if words else "", 1)
    strength = next((_STRENGTHS.index(word) for word in words if word in _STRENGTHS), 0)
    strength = 1 if "cta" in words else strength  # orders nothing between blocks
    extend = width if kind[0] == "s" and name == "ld" and width > 8 * size else 0
    what = STORE if name == "st" else LOAD
    return what | space_of(words) << 2 | size << 5 | count << 10 | strength << 14 | extend << 17


@jit
def locate(base, mask, offset, space, size, align, writes, regions, thread, addresses, places):
    """Find the bytes that each active lane means. Return 0, or 16 times the first lane that is wrong plus what is."""
    first = first_lane(mask)
    region = _region(np.int64(base[first]) + offset, space)
    if region >= 0 and region < regions.shape[0] and region != LOCAL:
        window = region << REGION_BITS if space != GENERIC and space != GLOBAL else np.int64(0)
        start, end, move = regions[region, START], regions[region, END] - size, regions[region, OFFSET]
        wrong = -np.int64((writes and not regions[region, WRITABLE]) or (space == GLOBAL and region < FIRST))
        for lane in range(LANES):
            address = np.int64(base[lane]) + offset + window
            active = -np.int64((mask >> lane) & 1)
            wrong |= active & ((address - start) | (end - address) | -(address & (align - 1)))
            addresses[lane] ^= active & (addresses[lane] ^ address)
            places[lane] ^= active & (places[lane] ^ (address + move))
        if wrong >= 0:
            return 0
    return _locate_each(base, mask, offset, space, size, align, writes, regions, thread, addresses, places)


@inlined
def _region(address, space):
    """Return the number of the region that an address of a space belongs to."""
    return address >> REGION_BITS if space in (GENERIC, GLOBAL) else np.int64(space)


@jit
def _locate_each(base, mask, offset, space, size, align, writes, regions, thread, addresses, places):
    """Find the bytes of each lane by itself."""
    window = np.int64(space) << REGION_BITS if space < GLOBAL else np.int64(0)
    for lane in range(LANES):
        if (mask >> lane) & 1:
            address = np.int64(base[lane]) + offset
            region = (address + window) >> REGION_BITS
            if region < 1 or region >= regions.shape[0] or (window and region != space):
                addresses[lane] = address
                return lane << 4 | OUTSIDE
            if space == GLOBAL and region < FIRST:
                return lane << 4 | WRONG_SPACE
            address += window
            addresses[lane] = address
            if address < regions[region, START] or address + size > regions[region, END]:
                return lane << 4 | OUTSIDE
            if address & (align - 1):
                return lane << 4 | MISALIGNED
            if writes and not regions[region, WRITABLE]:
                return lane << 4 | READ_ONLY
            places[lane] = address + regions[region, OFFSET]
            if region == LOCAL:
                places[lane] += (thread + lane) * (regions[LOCAL, END] - regions[LOCAL, START])
    return 0


@jit
def load(regs, row, mask, places, size, extend):
    """Load ``size`` bytes of each active lane into a register; ``extend`` says to which width a sign extends."""
    target = regs[row]
    if size == 4 and mask == ALL and not extend:
        for lane in range(LANES):
            target[lane] = load32(places[lane])
        return
    for lane in range(LANES):
        if (mask >> lane) & 1:
            place = places[lane]
            if size == 4:
                value = load32(place)
            elif size == 8:
                value = load64(place)
            elif size == 2:
                value = load16(place)
            else:
                value = load8(place)
            if extend:
                wide = np.uint64(signed(value, 64 - 8 * size))
                value = (wide << np.uint64(64 - extend)) >> np.uint64(64 - extend)
            target[lane] = value


@jit
def store(regs, row, mask, places, size):
    """Store the low ``size`` bytes of a register for each active lane."""
    source = regs[row]
    for lane in range(LANES):
        if (mask >> lane) & 1:
            place, value = places[lane], source[lane]
            if size == 4:
                store32(place, value)
            elif size == 8:
                store64(place, value)
            elif size == 2:
                store16(place, value)
            else:
                store8(place, value)
