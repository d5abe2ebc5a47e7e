"""One step of a decoder on the CPU: packed tokens of several sequences through every layer, in one parallel region.

All threads run ``run_step`` together and share each phase's tasks (``tasks`` in threads.py). A task is a token row, a
tile of 32 output rows of a matrix over all tokens, or a tile of queries with one key/value head. A number is computed
by one task in one order, whatever the other tokens, the chunk, the pages and the threads: a request's bits are its own.
"""

from gpu.executor.attend import append, attend
from gpu.executor.elementary import cap
from gpu.executor.experts import mix, route, widen_experts
from gpu.executor.jit import inlined, jit
from gpu.executor.linear import embedding_row
from gpu.executor.program import (
    W_DOWN,
    W_GATE,
    W_K,
    W_O,
    W_Q,
    W_UP,
    W_V,
    layer_at,
    matrix_of,
    program_at,
    team_at,
    words_at,
)  # fmt: skip
from gpu.executor.rows import (
    ROWS,
    activate_tile,
    add_row,
    copy_row,
    multiply,
    normalise,
    round_row,
    scale_row,
    tiles_of,
)  # fmt: skip
from gpu.executor.team import tasks
from gpu.executor.vector import LANES, load_part, splat, store_part

__all__ = ["PHASES_PER_LAYER", "run_step"]

PHASES_PER_LAYER = 24


@jit
def _embed(program, team):
    """Look up the tokens' embeddings, scale them, and add those of their positions where they are learned."""
    ids = words_at(program.token_ids, program.tokens)
    positions = words_at(program.positions, program.tokens)
    table = matrix_of(program, program.layers, 0)
    for t in tasks(team, program.tokens):
        x = program.x + t * program.x_stride
        embedding_row(table.form, table.address, table.width, ids[t], x, team.scratch)
        if program.embedding_scale != 1:
            scale_row(x, program.hidden, program.embedding_scale)
        if program.position_table:
            add_row(x, program.position_table + positions[t] * program.position_stride, program.hidden, 1.0)


@jit
def _keep_state(program, team, index):
    """Copy the residual stream to ``states`` [index], where hidden states are wanted."""
    if program.states:
        size = 4 * program.hidden
        for t in tasks(team, program.tokens):
            target = program.states + (index * program.tokens + t) * size
            copy_row(target, program.x + t * program.x_stride, program.hidden)


@jit
def _norm_rows(program, team, gain, bias):
    """Write the norm of every token's row to ``normed``."""
    for t in tasks(team, program.tokens):
        out = program.normed + t * program.normed_stride
        normalise(program, gain, bias, program.x + t * program.x_stride, out, program.hidden)
        if program.int8:
            round_row(program, t, out, program.hidden)


@jit
def _project_heads(program, team, layer):
    """Write queries, keys and values."""
    w_q = matrix_of(program, layer, W_Q)
    w_k = matrix_of(program, layer, W_K)
    w_v = matrix_of(program, layer, W_V)
    x, stride, tokens = program.normed, program.normed_stride, program.tokens
    keys_from = tiles_of(w_q)
    values_from = keys_from + tiles_of(w_k)
    for task in tasks(team, values_from + tiles_of(w_v)):
        if task < keys_from:
            multiply(program, team, w_q, task, 0, x, stride, tokens, program.q, program.q_stride)
        elif task < values_from:
            multiply(program, team, w_k, task - keys_from, 0, x, stride, tokens, program.k, program.k_stride)
        else:
            multiply(program, team, w_v, task - values_from, 0, x, stride, tokens, program.v, program.v_stride)


@jit
def _project_back(program, team, matrix, x, x_stride, gain, bias):
    """Add x w^T + b to the residual stream, normalised where there is a gain."""
    if matrix.int8:
        for t in tasks(team, program.tokens):
            round_row(program, t, x + t * x_stride, matrix.width)
    for tile in tasks(team, tiles_of(matrix)):
        multiply(program, team, matrix, tile, 0, x, x_stride, program.tokens, program.normed, program.normed_stride)
        place, width = 4 * ROWS * tile, min(ROWS, matrix.rows - ROWS * tile)
        if gain == 0:
            for t in range(program.tokens):
                added = program.normed + t * program.normed_stride + place
                add_row(program.x + t * program.x_stride + place, added, width, program.residual_scale)
    if gain:
        for t in tasks(team, program.tokens):
            added = program.normed + t * program.normed_stride
            normalise(program, gain, bias, added, added, program.hidden)
            add_row(program.x + t * program.x_stride, added, program.hidden, program.residual_scale)


@jit
def _widen(program, team, layer):
    """Write the hidden row of the MLP to ``gate``."""
    record = layer_at(program, layer)
    w_gate = matrix_of(program, layer, W_GATE)
    w_up = matrix_of(program, layer, W_UP)
    x, stride, tokens = program.normed, program.normed_stride, program.tokens
    gate, gate_stride, up, up_stride = program.gate, program.gate_stride, program.up, program.up_stride
    for tile in tasks(team, tiles_of(w_up)):
        if record.gated:
            multiply(program, team, w_gate, tile, 0, x, stride, tokens, gate, gate_stride)
            multiply(program, team, w_up, tile, 0, x, stride, tokens, up, up_stride)
        else:
            multiply(program, team, w_up, tile, 0, x, stride, tokens, gate, gate_stride)
        activate_tile(record, tile, w_up.rows, 0, tokens, gate, gate_stride, up, up_stride)


@jit
def _narrow(program, team):
    """Go on with the wanted rows alone: when the last layer's keys and values are kept, no other row is needed."""
    positions, tables = words_at(program.positions, program.tokens), words_at(program.tables, program.tokens)
    wanted = words_at(program.wanted, program.rows)
    for _ in tasks(team, 1):
        for r in range(program.rows):  # ascending, so that no row is overwritten before it is read
            copy_row(program.x + r * program.x_stride, program.x + wanted[r] * program.x_stride, program.hidden)
            q, width = program.q + wanted[r] * program.q_stride, program.heads * program.head_dim
            copy_row(program.q + r * program.q_stride, q, width)
            positions[r], tables[r] = positions[wanted[r]], tables[wanted[r]]
            wanted[r] = r
        program.tokens = program.rows
        program.tiles, program.tile_count = program.last_tiles, program.last_tile_count
        program.merges, program.merge_count = program.last_merges, program.last_merge_count


@jit
def _open_network(program, team, layer):
    """Run the layer's network as far as it goes without touching the residual stream, which it reads."""
    record = layer_at(program, layer)
    _norm_rows(program, team, record.mlp_gain, record.mlp_bias)
    if record.experts:
        route(program, team, layer)
    if record.width:
        _widen(program, team, layer)
    if record.experts:
        widen_experts(program, team, layer)


@jit
def _run_layer(program, team, layer):
    """Run every token through one layer: x + attend(norm(x)), then x + network(norm(x))."""
    record = layer_at(program, layer)
    narrow = layer == program.layers - 1 and program.rows < program.tokens  # asked here, before any thread changes it
    _norm_rows(program, team, record.attention_gain, record.attention_bias)
    _project_heads(program, team, layer)
    append(program, team, layer)
    if narrow:
        _narrow(program, team)
    attend(program, team, layer)
    w_o, w_down = matrix_of(program, layer, W_O), matrix_of(program, layer, W_DOWN)
    gain, bias = record.attention_post_gain, record.attention_post_bias
    if record.parallel:
        _open_network(program, team, layer)
        _project_back(program, team, w_o, program.mixed, program.mixed_stride, gain, bias)
    else:
        _project_back(program, team, w_o, program.mixed, program.mixed_stride, gain, bias)
        _open_network(program, team, layer)
    if record.experts:
        mix(program, team, layer)
    else:
        gain, bias = record.mlp_post_gain, record.mlp_post_bias
        _project_back(program, team, w_down, program.gate, program.gate_stride, gain, bias)


@inlined
def _finish_logits(program, first, width):
    """Scale and bound the logits first .. first + width - 1 of every wanted row."""
    for r in range(program.rows):
        at = program.logits + r * program.logits_stride + 4 * first
        for i in range(0, width, LANES):
            part = load_part(at + 4 * i, width - i) * splat(program.logit_scale)
            if program.logit_softcap != 0:
                part = cap(part, program.logit_softcap)
            store_part(at + 4 * i, part, width - i)


@jit
def _finish(program, team):
    """Normalise the wanted rows, and score the vocabulary for them where logits are wanted."""
    wanted = words_at(program.wanted, program.rows)
    for r in tasks(team, program.rows):
        out, x = program.normed + r * program.normed_stride, program.x + wanted[r] * program.x_stride
        normalise(program, program.final_gain, program.final_bias, x, out, program.hidden)
        if program.states:
            place = (program.layers * program.tokens + r) * 4 * program.hidden
            copy_row(program.states + place, out, program.hidden)
        if program.int8:
            round_row(program, r, out, program.hidden)
    if program.logits:
        head = matrix_of(program, program.layers, 1)
        for tile in tasks(team, tiles_of(head)):
            multiply(program, team, head, tile, 0, program.normed, program.normed_stride, program.rows,
                     program.logits, program.logits_stride)
            if program.logit_scale != 1 or program.logit_softcap != 0:
                _finish_logits(program, ROWS * tile, min(ROWS, head.rows - ROWS * tile))


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
