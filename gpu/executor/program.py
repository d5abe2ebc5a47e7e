"""What the compiled step reads: records of int64 that describe a model, its layers, its matrices and one step.

The host fills them (``cpu.py``): once what the model is, before each step what the step is. The step gets the address
of the one PROGRAM record and finds the rest from there.
"""

from collections.abc import Iterable

import numba
import numpy as np

from gpu.executor.jit import inlined
from gpu.executor.team import TEAM, pointer

__all__ = [
    "LAYER", "MATRICES", "MATRIX", "PROGRAM", "TILE", "W_DOWN", "W_GATE", "W_K", "W_O", "W_Q", "W_UP", "W_V",
    "layer_at", "matrix_at", "program_at", "team_at", "tile_at", "words_at",
]

MATRICES = ("w_q", "w_k", "w_v", "w_o", "w_gate", "w_up", "w_down")
W_Q, W_K, W_V, W_O, W_GATE, W_UP, W_DOWN = range(7)


def _record(names: str, floats: Iterable[str] = ()) -> np.dtype[np.void]:
    return np.dtype([(name, np.float64 if name in floats else np.int64) for name in names.split()])


MATRIX = _record("form address width rows bias int8")
"""The code of the format, the address of the packed tiles, the input width, the output rows, the address of the bias
(0: none), and whether its input is rounded to int8."""

LAYER = _record("attention_gain attention_bias mlp_gain mlp_bias q_gain k_gain window")
"""Addresses of float32 vectors (0: none); and the keys that a query sees, its own included."""

TILE = _record("row count first last part")
"""Queries that are attended together: token rows row .. row + count - 1 of a sequence, over splits first .. last - 1.

``part`` is -1, or the place of the split's parts in memory when several threads attend the splits of a query.
"""

PROGRAM = _record(
    # the model: flags and sizes
    "layers hidden ffn heads kv_heads group head_dim value_dim rope_pairs interleaved layer_norm gated activation int8 "
    "eps scale "
    # addresses of its tables; layers x 7 matrices, then embedding and head
    "layer_table matrices final_gain final_bias position_table position_stride "
    # geometry of a cache page, in bytes: of a layer, and of a key/value head in it
    "layer_bytes head_bytes "
    # buffers, an address and the bytes of a row each; rows rounded to int8; parts of attention; the threads' records
    "x x_stride normed normed_stride q q_stride k k_stride v v_stride mixed mixed_stride gate gate_stride "
    "up up_stride codes scales sums parts teams "
    # the step: tokens, and addresses of int64 for each (ids, positions, addresses of page tables), of their cosines
    # and sines; tiles of queries and those to merge; rows whose result is wanted, where it goes, and their own tiles
    "tokens ids positions tables cos sin tiles tile_count merges merge_count "
    "rows wanted states logits logits_stride last_tiles last_tile_count last_merges last_merge_count",
    floats=("eps", "scale"),
)


@inlined
def program_at(address):
    """Return the program at an address."""
    return numba.carray(pointer(address), 1, PROGRAM)[0]


@inlined
def team_at(program, worker):
    """Return the record of a thread."""
    return numba.carray(pointer(program.teams), worker + 1, TEAM)[worker]


@inlined
def layer_at(program, layer):
    """Return the record of a layer."""
    return numba.carray(pointer(program.layer_table), program.layers, LAYER)[layer]


@inlined
def matrix_at(program, index):
    """Return the record of a matrix: 7 layer + W_Q and so on; behind those the embedding and the head."""
    return numba.carray(pointer(program.matrices), 7 * program.layers + 2, MATRIX)[index]


@inlined
def tile_at(tiles, index):
    """Return a tile of the table at an address."""
    return numba.carray(pointer(tiles), index + 1, TILE)[index]


@inlined
def words_at(address, count):
    """Return ``count`` int64 at an address."""
    return numba.carray(pointer(address), count, np.int64)
