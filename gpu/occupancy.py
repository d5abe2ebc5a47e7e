"""How many warps of a kernel a multiprocessor holds at once, by the formula of the CUDA occupancy calculator."""

from dataclasses import dataclass

from refimpl.contract import host

__all__ = ["HOPPER", "Multiprocessor", "Occupancy", "occupancy"]


@dataclass(frozen=True)
class Multiprocessor:
    """What a multiprocessor has, and in what units it is given out."""

    warps: int
    blocks: int
    registers: int
    register_unit: int
    partitions: int
    shared: int
    shared_unit: int
    shared_reserved: int
    """Bytes that the system keeps in every block."""


HOPPER = Multiprocessor(64, 32, 65536, 256, 4, 228 << 10, 128, 1 << 10)
"""Compute capability 9.0."""


@dataclass(frozen=True)
class Occupancy:
    """The warps that fit, as a share of all, and what keeps others out."""

    blocks: int
    share: float
    limit: str


@host
def occupancy(threads: int, registers: int, shared: int, chip: Multiprocessor = HOPPER) -> Occupancy:
    """Return how full a multiprocessor gets from the threads, registers a thread and shared bytes of a block.

    >>> occupancy(128, 128, 0)
    Occupancy(blocks=4, share=0.25, limit='registers')
    >>> occupancy(256, 32, 64 << 10)
    Occupancy(blocks=3, share=0.375, limit='shared memory')
    """
    warps = -(-threads // 32)
    registers_of_warp = _round_up(max(registers, 1) * 32, chip.register_unit)
    warps_by_registers = chip.registers // chip.partitions // registers_of_warp * chip.partitions
    taken = _round_up(shared + chip.shared_reserved, chip.shared_unit)
    blocks, limit = min(
        (chip.warps // warps, "warps"), (chip.blocks, "blocks"), (warps_by_registers // warps, "registers"),
        (chip.shared // taken, "shared memory"), key=lambda bound: bound[0])
    return Occupancy(blocks, blocks * warps / chip.warps, limit)


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
