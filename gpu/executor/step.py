"""One step of a decoder on the CPU: packed tokens of several sequences through every layer, in one parallel region.

All threads run ``run_step`` together and share each phase's tasks (``tasks`` in threads.py). A task is a token row, a
tile of 32 output rows of a matrix over all tokens, or a tile of queries with one key/value head. A number is computed
by one task in one order, whatever the other tokens, the chunk, the pages and the threads: a request's bits are its own.
"""

from gpu.executor.attend import append, attend
from gpu.executor.jit import jit, spliced
from gpu.executor.linear import embedding_row
from gpu.executor.network import add_projected, close_network, multiply_by, open_network
from gpu.executor.program import (
    SLOTS,
    W_O,
    W_Q,
    W_V,
    layer_at,
    matrix_at,
    program_at,
    team_at,
    words_at,
)  # fmt: skip
from gpu.executor.projection import FINISH, KEEP
from gpu.executor.rows import add_row, copy_row, normalise, round_row, scale_row
from gpu.executor.team import tasks

__all__ = ["PHASES_PER_LAYER", "run_step"]

PHASES_PER_LAYER = 24


@jit
def _embed(program, team):
    """Look up the tokens' embeddings, scale them, and add those of their positions where they are learned."""
    ids = words_at(program.token_ids, program.tokens)
    positions = words_at(program.positions, program.tokens)
    table = matrix_at(program, SLOTS * program.layers)
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


@spliced
def _start_network(program, team, record, first):
    """Normalise what the network reads, and let it read."""
    _norm_rows(program, team, record.mlp_gain, record.mlp_bias)
    open_network(program, team, record, first, False)


@spliced
def _run_layer(program, team, layer):
    """Run every token through one layer: x + attend(norm(x)), then x + network(norm(x))."""
    record, first = layer_at(program, layer), SLOTS * layer
    narrow = layer == program.layers - 1 and program.rows < program.tokens  # asked here, before any thread changes it
    _norm_rows(program, team, record.attention_gain, record.attention_bias)
    multiply_by(program, team, record, first + W_Q, first + W_V, KEEP, 0)
    append(program, team, layer)
    if narrow:
        _narrow(program, team)
    attend(program, team, layer)
    if record.parallel:
        _start_network(program, team, record, first)
    add_projected(program, team, record, first + W_O, record.attention_post_gain, record.attention_post_bias)
    if record.parallel == 0:
        _start_network(program, team, record, first)
    close_network(program, team, record, first)


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
    if program.logits:
        head = SLOTS * program.layers + 1
        multiply_by(program, team, layer_at(program, program.layers - 1), head, head, FINISH, 0)
