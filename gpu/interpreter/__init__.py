"""The PTX interpreter: runs a kernel's PTX on NumPy arrays and finds its faults. It needs no GPU.

What to read, in this order::

    syntax tokens declarations ptx    the text, parsed; no opcode is known here
    operands grammar decode codes families
                                      a kernel as tables: each operand a row of the register file, each opcode a code
    lanes bits raw jit units          the register file of a warp, casts and bare memory, how Numba compiles the pieces
    integer logic floating rounding approximate compare moves convert (ways cast formats) packed (halves) dots mma
    compute                           instructions on registers: ``code_of`` reads an opcode, ``execute`` runs it
    regions access atomic matrix copies async_copy memory
                                      the address space, and instructions that touch it
    control steering groups collective barrier machine
                                      lanes that part, wait and meet; the loop over warps and blocks
    watching: clocks releases races race_report, pattern traffic counters
                                      the witness of every access: data races, and what memory moved
    state layout launch faults report
                                      a launch: laid out, run in several orders, its fault told
"""

from gpu.interpreter.errors import KernelError
from gpu.interpreter.launch import launch
from gpu.interpreter.regions import Memory

__all__ = ["KernelError", "Memory", "launch"]
