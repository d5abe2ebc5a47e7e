"""What the phases of a step do with rows of activations: copy, add, scale, normalise, round to int8."""

from gpu.executor.elementary import layer_norm_row, rms_norm_row
from gpu.executor.jit import inlined, jit
from gpu.executor.linear_int8 import quantize_rows_int8
from gpu.executor.team import tasks
from gpu.executor.vector import LANES, load_part, splat, store_part

__all__ = ["add_normed", "add_row", "copy_row", "normalise", "round_row", "round_rows", "scale_row"]


@jit
def round_row(program, t, x, width):
    """Round a row to int8, for the next matrices."""
    codes, blocks = program.codes + t * width, 4 * (t * width // 32)
    quantize_rows_int8(x, 0, 1, width, codes, program.scales + blocks, program.sums + blocks)


@jit
def round_rows(program, team, matrix, count):
    """Round the rows that a matrix reads, if it takes int8."""
    if matrix.int8:
        for t in tasks(team, count):
            round_row(program, t, matrix.source + t * matrix.source_stride, matrix.width)


@inlined
def add_row(target, source, width, scale):
    """Add a row of floats, times ``scale``, to another."""
    for i in range(0, 4 * width, 4 * LANES):
        left = width - i // 4
        part = splat(scale) * load_part(source + i, left)
        store_part(target + i, load_part(target + i, left) + part, left)


@inlined
def copy_row(target, source, width):
    """Copy a row of floats."""
    for i in range(0, 4 * width, 4 * LANES):
        left = width - i // 4
        store_part(target + i, load_part(source + i, left), left)


@inlined
def scale_row(target, width, scale):
    """Multiply a row of floats."""
    for i in range(0, 4 * width, 4 * LANES):
        left = width - i // 4
        store_part(target + i, splat(scale) * load_part(target + i, left), left)


@jit
def normalise(program, gain, bias, x, out, width):
    """Write the norm of a row, or the row where there is no gain; ``out`` may be ``x``."""
    if gain == 0:
        copy_row(out, x, width)
    elif program.layer_norm:
        layer_norm_row(x, gain, bias, out, width, program.eps)
    else:
        rms_norm_row(x, gain, out, width, program.eps)


@jit
def add_normed(program, team, gain, bias):
    """Add the norm of every row of ``normed`` to the residual stream."""
    for t in tasks(team, program.tokens):
        row = program.normed + t * program.normed_stride
        normalise(program, gain, bias, row, row, program.hidden)
        add_row(program.x + t * program.x_stride, row, program.hidden, program.residual_scale)
