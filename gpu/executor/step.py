"""One step of a decoder on the CPU: packed tokens of several sequences through every layer, in one parallel region.

All threads run ``run_step`` together and share each phase's tasks (``tasks`` in threads.py). A task is a token row, a
tile of 32 output rows of a matrix over all tokens, or a tile of queries with one key/value head. A number is computed
by one task in one order, whatever the other tokens, the chunk, the pages and the threads: a request's bits are its own.
"""

from gpu.executor.attend import append, attend
from gpu.executor.elementary import activate, layer_norm_row, rms_norm_row
from gpu.executor.jit import inlined, jit
from gpu.executor.linear import embedding_row, linear_rows
from gpu.executor.linear_int8 import linear_rows_int8, quantize_rows_int8
from gpu.executor.program import (
    W_DOWN,
    W_GATE,
    W_K,
    W_O,
    W_Q,
    W_UP,
    W_V,
    layer_at,
    matrix_at,
    program_at,
    team_at,
    words_at,
)  # fmt: skip
from gpu.executor.team import tasks
from gpu.executor.vector import LANES, load_part, store_part

__all__ = ["PHASES_PER_LAYER", "run_step"]

PHASES_PER_LAYER = 12
_ROWS = 32  # of a tile of a matrix


@inlined
def _tiles(matrix):
    """Return how many tiles of output rows a matrix has."""
    return (matrix.rows + _ROWS - 1) // _ROWS


@jit
def _multiply(program, team, matrix, tile, x, x_stride, tokens, y, y_stride):
    """Write one tile of y = x w^T + b; a matrix that takes int8 reads x as ``_round_row`` left it."""
    if matrix.int8:
        linear_rows_int8(
            matrix.form, matrix.address, matrix.width, matrix.rows, tile, tile + 1,
            program.codes, program.scales, program.sums, tokens, y, y_stride, matrix.bias, team.scratch,
        )
        return
    linear_rows(
        matrix.form, matrix.address, matrix.width, matrix.rows, tile, tile + 1,
        x, x_stride, tokens, y, y_stride, matrix.bias, team.scratch,
    )


@inlined
def _add_row(target, source, width):
    """Add a row of floats to another."""
    for i in range(0, 4 * width, 4 * LANES):
        left = width - i // 4
        store_part(target + i, load_part(target + i, left) + load_part(source + i, left), left)


@inlined
def _copy_row(target, source, width):
    """Copy a row of floats."""
    for i in range(0, 4 * width, 4 * LANES):
        left = width - i // 4
        store_part(target + i, load_part(source + i, left), left)


@jit
def _normalise(program, gain, bias, x, out):
    """Write the norm of a row."""
    if program.layer_norm:
        layer_norm_row(x, gain, bias, out, program.hidden, program.eps)
    else:
        rms_norm_row(x, gain, out, program.hidden, program.eps)


@inlined
def _round_row(program, t, x, width):
    """Round a row to int8, for the next matrices."""
    codes, blocks = program.codes + t * width, 4 * (t * width // 32)
    quantize_rows_int8(x, 0, 1, width, codes, program.scales + blocks, program.sums + blocks)


@jit
def _embed(program, team):
    """Look up the tokens' embeddings, and add those of their positions where they are learned."""
    ids = words_at(program.ids, program.tokens)
    positions = words_at(program.positions, program.tokens)
    table = matrix_at(program, 7 * program.layers)
    for t in tasks(team, program.tokens):
        x = program.x + t * program.x_stride
        embedding_row(table.form, table.address, table.width, ids[t], x, team.scratch)
        if program.position_table:
            _add_row(x, program.position_table + positions[t] * program.position_stride, program.hidden)


@jit
def _keep_state(program, team, index):
    """Copy the residual stream to ``states`` [index], where hidden states are wanted."""
    if program.states:
        size = 4 * program.hidden
        for t in tasks(team, program.tokens):
            target = program.states + (index * program.tokens + t) * size
            _copy_row(target, program.x + t * program.x_stride, program.hidden)


@jit
def _norm_rows(program, team, gain, bias):
    """Write the norm of every token's row to ``normed``."""
    for t in tasks(team, program.tokens):
        out = program.normed + t * program.normed_stride
        _normalise(program, gain, bias, program.x + t * program.x_stride, out)
        if program.int8:
            _round_row(program, t, out, program.hidden)


@jit
def _project_heads(program, team, layer):
    """Write queries, keys and values."""
    w_q = matrix_at(program, 7 * layer + W_Q)
    w_k = matrix_at(program, 7 * layer + W_K)
    w_v = matrix_at(program, 7 * layer + W_V)
    x, stride, tokens = program.normed, program.normed_stride, program.tokens
    keys_from = _tiles(w_q)
    values_from = keys_from + _tiles(w_k)
    for task in tasks(team, values_from + _tiles(w_v)):
        if task < keys_from:
            _multiply(program, team, w_q, task, x, stride, tokens, program.q, program.q_stride)
        elif task < values_from:
            _multiply(program, team, w_k, task - keys_from, x, stride, tokens, program.k, program.k_stride)
        else:
            _multiply(program, team, w_v, task - values_from, x, stride, tokens, program.v, program.v_stride)


@jit
def _project_back(program, team, matrix, x, x_stride):
    """Add x w^T + b to the residual stream."""
    if matrix.int8:
        for t in tasks(team, program.tokens):
            _round_row(program, t, x + t * x_stride, matrix.width)
    for tile in tasks(team, _tiles(matrix)):
        _multiply(program, team, matrix, tile, x, x_stride, program.tokens, program.normed, program.normed_stride)
        place, width = 4 * _ROWS * tile, min(_ROWS, matrix.rows - _ROWS * tile)
        for t in range(program.tokens):
            added = program.normed + t * program.normed_stride + place
            _add_row(program.x + t * program.x_stride + place, added, width)


@jit
def _activate_tile(program, tile):
    """Apply the activation to a tile of ``gate``, times ``up`` where the model is gated."""
    for t in range(program.tokens):
        for i in range(_ROWS * tile, min(_ROWS * (tile + 1), program.ffn), LANES):
            left = program.ffn - i
            gate = program.gate + t * program.gate_stride + 4 * i
            value = activate(load_part(gate, left), program.activation)
            if program.gated:
                value = value * load_part(program.up + t * program.up_stride + 4 * i, left)
            store_part(gate, value, left)


@jit
def _widen(program, team, layer):
    """Write the hidden row of the MLP to ``gate``."""
    w_gate = matrix_at(program, 7 * layer + W_GATE)
    w_up = matrix_at(program, 7 * layer + W_UP)
    x, stride, tokens = program.normed, program.normed_stride, program.tokens
    for tile in tasks(team, _tiles(w_up)):
        if program.gated:
            _multiply(program, team, w_gate, tile, x, stride, tokens, program.gate, program.gate_stride)
            _multiply(program, team, w_up, tile, x, stride, tokens, program.up, program.up_stride)
        else:
            _multiply(program, team, w_up, tile, x, stride, tokens, program.gate, program.gate_stride)
        _activate_tile(program, tile)


@jit
def _narrow(program, team):
    """Go on with the wanted rows alone: when the last layer's keys and values are kept, no other row is needed."""
    positions, tables = words_at(program.positions, program.tokens), words_at(program.tables, program.tokens)
    wanted = words_at(program.wanted, program.rows)
    for _ in tasks(team, 1):
        for r in range(program.rows):  # ascending, so that no row is overwritten before it is read
            _copy_row(program.x + r * program.x_stride, program.x + wanted[r] * program.x_stride, program.hidden)
            q, width = program.q + wanted[r] * program.q_stride, program.heads * program.head_dim
            _copy_row(program.q + r * program.q_stride, q, width)
            positions[r], tables[r] = positions[wanted[r]], tables[wanted[r]]
            wanted[r] = r
        program.tokens = program.rows
        program.tiles, program.tile_count = program.last_tiles, program.last_tile_count
        program.merges, program.merge_count = program.last_merges, program.last_merge_count


@jit
def _run_layer(program, team, layer):
    """Run every token through one layer: x + attend(norm(x)), then x + mlp(norm(x))."""
    record = layer_at(program, layer)
    narrow = layer == program.layers - 1 and program.rows < program.tokens  # asked here, before any thread changes it
    _norm_rows(program, team, record.attention_gain, record.attention_bias)
    _project_heads(program, team, layer)
    append(program, team, layer)
    if narrow:
        _narrow(program, team)
    attend(program, team, layer)
    _project_back(program, team, matrix_at(program, 7 * layer + W_O), program.mixed, program.mixed_stride)
    _norm_rows(program, team, record.mlp_gain, record.mlp_bias)
    _widen(program, team, layer)
    _project_back(program, team, matrix_at(program, 7 * layer + W_DOWN), program.gate, program.gate_stride)


@jit
def _finish(program, team):
    """Normalise the wanted rows, and score the vocabulary for them where logits are wanted."""
    wanted = words_at(program.wanted, program.rows)
    for r in tasks(team, program.rows):
        out = program.normed + r * program.normed_stride
        _normalise(program, program.final_gain, program.final_bias, program.x + wanted[r] * program.x_stride, out)
        if program.states:
            place = (program.layers * program.tokens + r) * 4 * program.hidden
            _copy_row(program.states + place, out, program.hidden)
        if program.int8:
            _round_row(program, r, out, program.hidden)
    if program.logits:
        head = matrix_at(program, 7 * program.layers + 1)
        for tile in tasks(team, _tiles(head)):
            _multiply(program, team, head, tile, program.normed, program.normed_stride, program.rows,
                      program.logits, program.logits_stride)


@jit
def run_step(worker, workers, address):
    """Run the step of the program at ``address``, as thread ``worker`` of ``workers``."""
    program = program_at(address)
    team = team_at(program, worker)
    _embed(program, team)
    for layer in range(program.layers):
        _keep_state(program, team, layer)
        _run_layer(program, team, layer)
    _finish(program, team)
