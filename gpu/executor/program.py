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
    "GROUP", "LAYER", "MATRICES", "MATRIX", "PROGRAM", "ROUTER", "SHARE", "SLOTS", "TILE", "W_DOWN", "W_GATE", "W_K",
    "W_O", "W_Q", "W_UP", "W_V", "floats_at", "group_at", "layer_at", "matrix_at", "program_at", "team_at", "tile_at",
    "words_at",
]  # fmt: skip

MATRICES = ("w_q", "w_k", "w_v", "w_o", "w_gate", "w_up", "w_down", "router", "share")
"""The matrices of a layer; in a mixture gate, up and down are those of the shared expert, and ``share`` weighs it."""
W_Q, W_K, W_V, W_O, W_GATE, W_UP, W_DOWN, ROUTER, SHARE = range(9)
SLOTS = len(MATRICES)  # of a layer in the table; that of layer L holds the embedding, and then the head


def _record(names: str, floats: Iterable[str] = ()) -> np.dtype[np.void]:
    return np.dtype([(name, np.float64 if name in floats else np.int64) for name in names.split()])


MATRIX = _record("form address width rows bias int8 source source_stride target target_stride")
"""The code of the format, the address of the packed tiles, the input width, the output rows, the address of the bias
(0: none), and whether its input is rounded to int8; the buffers that it reads and writes, and their strides."""

LAYER = _record(
    # addresses of float32 vectors, 0: none. A norm without a gain is not there; q and k are normed by heads, or by rows
    "attention_gain attention_bias attention_post_gain attention_post_bias mlp_gain mlp_bias mlp_post_gain "
    "mlp_post_bias q_gain q_bias k_gain k_bias by_rows sinks "
    # the keys that a query sees, its own included (negative: of its chunk); factor and bound (0: none) of its scores
    "window scale softcap "
    # cosines and sines of the step's tokens, how many pairs of a head they turn (0: none); factors of queries (0: none)
    "cos sin rope_pairs interleaved growth "
    # the network: does it read what attention reads; the width that every token passes (0: none); its activation
    "parallel width gated activation limit "
    # a mixture: its experts and those of a token (0: there is none); where the matrices of the experts begin
    "experts active expert_matrices weight_inputs shared_gate "
    # its router: see router.py
    "chooses_by correction groups top_groups weighs_by renormalise route_scale",
    floats=("scale", "softcap", "limit", "route_scale"),
)

TILE = _record("row count first last part")
"""Queries that are attended together: token rows row .. row + count - 1 of a sequence, over splits first .. last - 1.

``part`` is -1, or the place of the split's parts in memory when several threads attend the splits of a query.
"""

GROUP = _record("expert first count")
"""The choices of one expert: ``count`` places in the order of experts, from ``first`` on."""

PROGRAM = _record(
    # the model: flags and sizes
    "layers hidden heads kv_heads group head_dim value_dim layer_norm int8 "
    "eps embedding_scale residual_scale logit_scale logit_softcap "
    # addresses of its tables; layers x 9 matrices, then embedding and head, then the experts'
    "layer_table matrices final_gain final_bias position_table position_stride "
    # geometry of a cache page, in bytes: of a layer, and of a key/value head in it
    "layer_bytes head_bytes "
    # buffers, an address and the bytes of a row each; rows rounded to int8; parts of attention; the threads' records
    "x x_stride normed normed_stride q q_stride k k_stride v v_stride mixed mixed_stride gate gate_stride "
    "up up_stride codes scales sums parts teams "
    # of mixtures: the router's logits and the shared expert's; rows of choices in the order of experts
    "logit logit_stride share share_stride chosen chosen_stride chosen_gate chosen_gate_stride "
    "chosen_up chosen_up_stride "
    # for every choice its expert, its weight and its place in that order; for every place its choice; the groups
    "ids shares places order group_table group_count "
    # the step: tokens, and addresses of int64 for each (ids, positions, addresses of page tables)
    # tiles of queries and those to merge; rows whose result is wanted, where it goes, and their own tiles
    "tokens token_ids positions tables tiles tile_count merges merge_count "
    "rows wanted states logits last_tiles last_tile_count last_merges last_merge_count",
    floats=("eps", "embedding_scale", "residual_scale", "logit_scale", "logit_softcap"),
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
    """Return the record of a matrix by its place in the table: SLOTS layer + W_Q and so on."""
    return numba.carray(pointer(program.matrices), index + 1, MATRIX)[index]


@inlined
def tile_at(tiles, index):
    """Return a tile of the table at an address."""
    return numba.carray(pointer(tiles), index + 1, TILE)[index]


@inlined
def group_at(program, index):
    """Return a group of choices."""
    return numba.carray(pointer(program.group_table), index + 1, GROUP)[index]


@inlined
def words_at(address, count):
    """Return ``count`` int64 at an address."""
    return numba.carray(pointer(address), count, np.int64)


@inlined
def floats_at(address, count):
    """Return ``count`` float32 at an address."""
    return numba.carray(pointer(address), count, np.float32)
