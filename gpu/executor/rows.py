"""What the phases of a step do with rows of activations: copy, add, normalise, round, and multiply by a tile."""

from gpu.executor.elementary import activate_gated, layer_norm_row, rms_norm_row
from gpu.executor.jit import inlined, jit
from gpu.executor.linear import linear_rows
from gpu.executor.linear_int8 import linear_rows_int8, quantize_rows_int8
from gpu.executor.vector import LANES, load_part, splat, store_part

__all__ = [
    "ROWS", "activate_tile", "add_row", "copy_row", "multiply", "normalise", "round_row", "scale_row", "tiles_of",
]  # fmt: skip

ROWS = 32  # of a tile of a matrix


@inlined
def tiles_of(matrix):
    """Return how many tiles of output rows a matrix has."""
    return (matrix.rows + ROWS - 1) // ROWS


@jit
def multiply(program, team, matrix, tile, first, x, x_stride, tokens, y, y_stride):
    """Write one tile of y = x w^T + b for rows first .. first + tokens - 1 of x and y.

    A matrix that takes int8 reads these rows as ``round_row`` left them.
    """
    out = y + first * y_stride
    if matrix.int8:
        blocks = first * matrix.width // 32
        linear_rows_int8(
            matrix.form, matrix.address, matrix.width, matrix.rows, tile, tile + 1,
            program.codes + 32 * blocks, program.scales + 4 * blocks, program.sums + 4 * blocks, tokens,
            out, y_stride, matrix.bias, team.scratch,
        )
        return
    linear_rows(
        matrix.form, matrix.address, matrix.width, matrix.rows, tile, tile + 1,
        x + first * x_stride, x_stride, tokens, out, y_stride, matrix.bias, team.scratch,
    )


@inlined
def round_row(program, t, x, width):
    """Round a row to int8, for the next matrices."""
    codes, blocks = program.codes + t * width, 4 * (t * width // 32)
    quantize_rows_int8(x, 0, 1, width, codes, program.scales + blocks, program.sums + blocks)


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
def activate_tile(record, tile, width, first, count, gate, gate_stride, up, up_stride):
    """Apply the layer's activation to a tile of ``gate``, times ``up`` where it is gated."""
    for t in range(first, first + count):
        for i in range(ROWS * tile, min(ROWS * (tile + 1), width), LANES):
            left = width - i
            place = gate + t * gate_stride + 4 * i
            other = splat(1.0)
            if record.gated:
                other = load_part(up + t * up_stride + 4 * i, left)
            store_part(place, activate_gated(load_part(place, left), other, record.activation, record.limit), left)
