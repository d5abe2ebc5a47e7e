"""Faults of writers of blocks: how a code is rounded, by which scale, and where it is put."""

import numpy as np

from golden import bits
from golden.values import Array

__all__ = [
    "codes_cut_off", "neighbours_in_a_byte", "nibbles_side_by_side", "no_search", "scale_rounded_first",
    "smallest_for_largest", "ties_to_even",
]  # fmt: skip


def codes_cut_off(w: Array, format: str) -> Array:
    """Codes are cut off, not rounded."""
    return bits.rows_of_blocks(
        w, 32, lambda part: bits.bytes_of_32(*bits.codes_of_32(part, format, half=0.0), format)
    )


def ties_to_even(w: Array, format: str) -> Array:
    """Halfway between two floats of four bits, the even code is taken, not the smaller number."""
    return bits.rows_of_blocks(w, 32, lambda part: bits.bytes_of_mxfp4(part, lambda x: bits.nearest(x, "e2m1")))


def neighbours_in_a_byte(w: Array, format: str) -> Array:
    """MXFP4 as gpt-oss has it: neighbours share a byte, where elements i and i + 16 do."""
    order = np.concatenate([np.arange(0, 32, 2), np.arange(1, 32, 2)])
    return bits.rows_of_blocks(w, 32, lambda part: bits.bytes_of_mxfp4(part[order], bits.nearest_of_mxfp4))


def scale_rounded_first(w: Array, format: str) -> Array:
    """Codes are taken with the scale as float16 has it, where the format takes them before."""
    return bits.rows_of_blocks(
        w, 32, lambda part: bits.bytes_of_32(*bits.codes_of_32(part, format, rounded_scale=True), format)
    )


def nibbles_side_by_side(w: Array, format: str) -> Array:
    """Neighbours share a byte, where elements i and i + 16 do."""
    return bits.rows_of_blocks(
        w, 32, lambda part: bits.bytes_of_32(*bits.codes_of_32(part, format), format, apart=1)
    )


def smallest_for_largest(w: Array, format: str) -> Array:
    """The scale is that of a magnitude, where the format has the sign of the largest weight in it."""
    write = bits.codes_of_32
    return bits.rows_of_blocks(
        w, 32, lambda part: bits.bytes_of_32(*write(np.append(part[:-1], -abs(part).max()), format), format)
    )


def no_search(w: Array, format: str) -> Array:
    """The scales of groups are those of their ends, not those of the least error."""
    return bits.rows_of_blocks(w, 256, lambda part: bits.bytes_of_256(part, format, _ends))


def _ends(group: Array, format: str) -> tuple[np.float32, np.float32, list[int]]:
    most = bits.TOPS[format][1]
    if format in bits.SIGNED:
        return max(group, key=abs) / np.float32(-most), np.float32(0), [0] * len(group)
    m = min(np.float32(0), min(group))
    return (max(group) - m) / np.float32(most), m, [0] * len(group)
