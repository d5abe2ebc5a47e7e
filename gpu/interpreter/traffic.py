"""What a warp's access costs: wavefronts of shared memory, 32-byte sectors of global memory, and the least of both.

Shared memory has 32 banks of 4 bytes. A wavefront serves every lane of a phase whose words lie in different banks, or
are the same word; a phase is the warp, a half of it for 8 bytes a lane, a quarter for 16. The least is one wavefront
for each phase that has a lane, and for sectors the distinct bytes, divided by 32 and rounded up.
"""

from gpu.interpreter.jit import jit
from gpu.interpreter.pattern import SCATTERED, UNIFORM, first_lane, lanes_in, pattern

__all__ = ["global_access", "shared_access"]


@jit
def _wavefronts(offsets, mask, first, groups, log, atomic):
    """Count the wavefronts of one phase: lanes ``first`` to ``first + groups``, units of ``1 << log`` bytes.

    A unit lies in one of ``groups`` groups of banks. An atomic also waits for others on its own word.
    """
    banks, distinct, last = 0, 0, -1
    for lane in range(first, first + groups):
        unit = offsets[lane] >> log
        if mask >> lane & 1 and (unit != last or atomic):
            banks |= 1 << (unit & (groups - 1))
            distinct += 1
            last = unit
    if lanes_in(banks) == distinct:
        return min(distinct, 1)
    most, counted = 0, 0
    for lane in range(first, first + groups):
        unit, depth = offsets[lane] >> log, mask >> lane & 1
        for other in range(first, lane):
            before = offsets[other] >> log
            if depth and counted >> other & 1 and (before - unit) & (groups - 1) == 0:
                depth = 0 if before == unit and not atomic else depth + 1
        counted |= min(depth, 1) << lane
        most = max(most, depth)
    return most


@jit
def shared_access(tally, offsets, size, mask, store, atomic):
    """Add to a tally (wavefronts and the least of loads, the same of stores) an access of shared memory."""
    log = 2 if size <= 4 else 3 if size == 8 else 4
    groups = 128 >> log
    shape = pattern(offsets, size, mask)
    is_free = shape != SCATTERED and not (atomic and shape == UNIFORM)
    place = 2 if store else 0
    for first in range(0, 32, groups):
        if mask >> first & ((1 << groups) - 1):
            tally[place] += 1 if is_free else _wavefronts(offsets, mask, first, groups, log, atomic)
            tally[place + 1] += 1


@jit
def _distinct(offsets, mask, log):
    """Count the different units of ``1 << log`` bytes among the lanes: in one pass where they stand in order."""
    units, last, rising, falling = 0, offsets[first_lane(mask)] >> log, True, True
    for lane in range(32):
        if mask >> lane & 1:
            unit = offsets[lane] >> log
            units += unit != last
            rising &= unit >= last
            falling &= unit <= last
            last = unit
    if rising or falling:
        return units + 1
    units = 0
    for lane in range(32):
        unit, is_new = offsets[lane] >> log, mask >> lane & 1
        for other in range(lane):
            is_new &= (mask >> other & 1 ^ 1) | ((offsets[other] >> log) != unit)
        units += is_new
    return units


@jit
def global_access(sectors, region, offsets, size, mask, store):
    """Add to a region's row (sectors and the least of loads, the same of stores) an access of global memory."""
    lane, shape = first_lane(mask), pattern(offsets, size, mask)
    place = 2 if store else 0
    if shape == SCATTERED:
        log = 0
        while size >> log > 1:
            log += 1
        asked, used = _distinct(offsets, mask, 5), _distinct(offsets, mask, log) * size
    else:
        used = size if shape == UNIFORM else lanes_in(mask) * size
        asked = ((offsets[lane] + used - 1) >> 5) - (offsets[lane] >> 5) + 1
    sectors[region, place] += asked
    sectors[region, place + 1] += (used + 31) >> 5
