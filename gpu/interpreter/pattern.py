"""The shape of a warp's access: what is uniform or contiguous needs no look at each lane."""

from gpu.interpreter.jit import jit

__all__ = ["CONTIGUOUS", "SCATTERED", "UNIFORM", "first_lane", "lanes_in", "pattern"]

SCATTERED, UNIFORM, CONTIGUOUS = 0, 1, 2


@jit
def first_lane(mask):
    """Return the lowest lane of a mask."""
    lane = 0
    while not mask >> lane & 1:
        lane += 1
    return lane


@jit
def lanes_in(mask):
    """Count the lanes of a mask."""
    pairs = mask - (mask >> 1 & 0x55555555)
    fours = (pairs & 0x33333333) + (pairs >> 2 & 0x33333333)
    return ((fours + (fours >> 4) & 0x0F0F0F0F) * 0x01010101 & 0xFFFFFFFF) >> 24


@jit
def pattern(offsets, size, mask):
    """Tell how the lanes of a mask access ``size`` bytes each.

    UNIFORM: all the same ones. CONTIGUOUS: the lanes are a run, and so are their bytes. SCATTERED: neither.
    """
    first = first_lane(mask)
    base = offsets[first]
    same, run = 0, 0
    for lane in range(32):
        active = -(mask >> lane & 1)
        step = offsets[lane] - base
        same |= step & active
        run |= (step - (lane - first) * size) & active
    if same == 0:
        return UNIFORM
    holes = mask & (mask + (1 << first))
    return CONTIGUOUS if run == 0 and holes == 0 else SCATTERED
