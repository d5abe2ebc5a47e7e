"""Instructions on registers alone, each by its family."""

from gpu.interpreter.codes import (
    APPROXIMATE,
    COMPARE,
    CONVERT,
    DOTS,
    FLOATING,
    INTEGER,
    LOGIC,
    MOVES,
    PACKED,
)
from gpu.interpreter.jit import inlined
from gpu.interpreter.units import (
    run_approximate,
    run_compare,
    run_convert,
    run_dots,
    run_floating,
    run_integer,
    run_logic,
    run_mma,
    run_moves,
    run_packed,
)

__all__ = ["compute"]


@inlined
def compute(family, regs, rows, mask, code):
    """Run an instruction."""
    if family == INTEGER:
        run_integer(regs, rows, mask, code)
    elif family == FLOATING:
        run_floating(regs, rows, mask, code)
    elif family == MOVES:
        run_moves(regs, rows, mask, code)
    elif family == LOGIC:
        run_logic(regs, rows, mask, code)
    elif family == COMPARE:
        run_compare(regs, rows, mask, code)
    elif family == CONVERT:
        run_convert(regs, rows, mask, code)
    elif family == PACKED:
        run_packed(regs, rows, mask, code)
    elif family == APPROXIMATE:
        run_approximate(regs, rows, mask, code)
    elif family == DOTS:
        run_dots(regs, rows, mask, code)
    else:
        run_mma(regs, rows, mask, code)
