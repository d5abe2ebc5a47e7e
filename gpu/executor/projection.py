"""Phases of matrices: tiles of y = x w^T + b as tasks of all threads, and what follows a tile at once.

One compiled function serves every matrix of a model: the arithmetic of all formats of weights is compiled once.
"""

from gpu.executor.elementary import activate_gated, cap
from gpu.executor.jit import inlined, jit
from gpu.executor.linear import linear_rows
from gpu.executor.linear_int8 import linear_rows_int8
from gpu.executor.program import group_at, matrix_at
from gpu.executor.rows import add_row
from gpu.executor.team import tasks
from gpu.executor.vector import LANES, load_part, splat, store_part

__all__ = ["ACTIVATE", "ADD", "FINISH", "KEEP", "project"]

_ROWS = 32  # of a tile of a matrix
KEEP, ADD, ACTIVATE, FINISH = range(4)
"""What follows a tile: nothing; it is added to the residual stream; it and its neighbour, the gate before it, are
activated; logits are scaled and bounded."""


@inlined
def _tiles_of(matrix):
    """Return how many tiles of output rows a matrix has."""
    return (matrix.rows + _ROWS - 1) // _ROWS


@inlined
def _multiply(program, team, matrix, tile, first, count):
    """Write a tile for rows first .. first + count - 1; a matrix that takes int8 reads what ``round_row`` left."""
    target = matrix.target + first * matrix.target_stride
    if matrix.int8:
        blocks = first * matrix.width // 32
        linear_rows_int8(
            matrix.form, matrix.address, matrix.width, matrix.rows, tile, tile + 1,
            program.codes + 32 * blocks, program.scales + 4 * blocks, program.sums + 4 * blocks, count,
            target, matrix.target_stride, matrix.bias, team.scratch,
        )  # fmt: skip
    else:
        linear_rows(
            matrix.form, matrix.address, matrix.width, matrix.rows, tile, tile + 1,
            matrix.source + first * matrix.source_stride, matrix.source_stride, count,
            target, matrix.target_stride, matrix.bias, team.scratch,
        )  # fmt: skip


@inlined
def _activate(record, matrix, gate, tile, first, count):
    """Apply the layer's activation to a tile of the gate, times that of ``matrix``; without a gate to this."""
    for t in range(first, first + count):
        for i in range(_ROWS * tile, min(_ROWS * (tile + 1), matrix.rows), LANES):
            left, place = matrix.rows - i, matrix.target + t * matrix.target_stride + 4 * i
            other = splat(1.0)
            if record.gated:
                other = load_part(place, left)
                place = gate.target + t * gate.target_stride + 4 * i
            store_part(place, activate_gated(load_part(place, left), other, record.activation, record.limit), left)


@inlined
def _add(program, matrix, tile):
    """Add a tile to the residual stream."""
    width = min(_ROWS, matrix.rows - _ROWS * tile)
    for t in range(program.tokens):
        added = matrix.target + t * matrix.target_stride + 4 * _ROWS * tile
        add_row(program.x + t * program.x_stride + 4 * _ROWS * tile, added, width, program.residual_scale)


@inlined
def _finish(program, matrix, tile):
    """Scale and bound a tile of logits."""
    if program.logit_scale == 1 and program.logit_softcap == 0:
        return
    for r in range(program.rows):
        for i in range(_ROWS * tile, min(_ROWS * (tile + 1), matrix.rows), LANES):
            left, place = matrix.rows - i, matrix.target + r * matrix.target_stride + 4 * i
            part = load_part(place, left) * splat(program.logit_scale)
            if program.logit_softcap != 0:
                part = cap(part, program.logit_softcap)
            store_part(place, part, left)


@jit
def project(program, team, record, first, last, after, grouped):
    """Multiply by the matrices first .. last of the table, which read the same rows, side by side.

    ``after`` is KEEP and so on; ACTIVATE takes gate and up, a tile of each in one task. ``grouped``: they are those of
    expert 0, and each group of choices takes those of its own.
    """
    tokens = program.rows if after == FINISH else program.tokens
    paired, groups, tiles = after == ACTIVATE, program.group_count if grouped else 1, 0
    for index in range(last if paired else first, last + 1):
        tiles += _tiles_of(matrix_at(program, index))
    for task in tasks(team, groups * tiles):
        tile, index, start, count = task % tiles, first, 0, tokens
        if grouped:
            group = group_at(program, task // tiles)
            index, start, count = first + 3 * group.expert, group.first, group.count
        end = index + 1
        if paired:
            index, end = index if record.gated else index + 1, index + 2
        while not paired and tile >= _tiles_of(matrix_at(program, index)):
            tile -= _tiles_of(matrix_at(program, index))
            index, end = index + 1, index + 2
        for place in range(index, end):
            _multiply(program, team, matrix_at(program, place), tile, start, count)
        if after == ACTIVATE:
            _activate(record, matrix_at(program, end - 1), matrix_at(program, index), tile, start, count)
        elif after == ADD:
            _add(program, matrix_at(program, index), tile)
        elif after == FINISH:
            _finish(program, matrix_at(program, index), tile)
