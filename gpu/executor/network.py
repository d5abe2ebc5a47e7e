"""The network of a layer: a feed-forward block, or a mixture of experts and the expert that every token passes.

It runs in two parts, so that in a parallel layer it reads what attention reads: ``open_network`` goes as far as it can
without touching the residual stream, ``close_network`` adds what it gives.
"""

import numpy as np

from gpu.executor.experts import choose, mix
from gpu.executor.jit import jit, spliced
from gpu.executor.program import ROUTER, SHARE, W_DOWN, W_GATE, W_UP, layer_at, matrix_at, program_at, team_at
from gpu.executor.projection import ACTIVATE, ADD, KEEP, project
from gpu.executor.rows import add_normed, round_rows

__all__ = ["add_projected", "close_network", "multiply_by", "open_network", "run_network"]


@spliced
def multiply_by(program, team, record, first, last, after, grouped):
    """Call ``project`` with numbers that are not literals, for each of which it would be compiled anew."""
    project(program, team, record, np.int64(first), np.int64(last), np.int64(after), np.int64(grouped))


@spliced
def add_projected(program, team, record, index, gain, bias):
    """Add what a matrix gives to the residual stream, normalised where there is a gain."""
    round_rows(program, team, matrix_at(program, index), program.tokens)
    multiply_by(program, team, record, index, index, KEEP if gain else ADD, 0)
    if gain:
        add_normed(program, team, gain, bias)


@spliced
def open_network(program, team, record, first, given):
    """Run what reads ``normed``: the network of every token, and the experts, chosen here if they are not given."""
    if record.width:
        multiply_by(program, team, record, first + W_GATE, first + W_UP, ACTIVATE, 0)
    if record.experts:
        if not given:
            multiply_by(program, team, record, first + ROUTER, first + SHARE, KEEP, 0)
        choose(program, team, record, given)
        experts = record.expert_matrices
        multiply_by(program, team, record, experts, experts + 1, ACTIVATE, 1)
        round_rows(program, team, matrix_at(program, experts + 2), program.tokens * record.active)
        multiply_by(program, team, record, experts + 2, experts + 2, KEEP, 1)


@spliced
def close_network(program, team, record, first):
    """Add what the network gives to the residual stream."""
    if record.experts == 0:
        add_projected(program, team, record, first + W_DOWN, record.mlp_post_gain, record.mlp_post_bias)
    else:
        if record.width:
            round_rows(program, team, matrix_at(program, first + W_DOWN), program.tokens)
            multiply_by(program, team, record, first + W_DOWN, first + W_DOWN, KEEP, 0)
        mix(program, team, record)


@jit
def run_network(worker, workers, address):
    """Run the network of the first layer for choices that are given: what ``operations`` asks for."""
    program = program_at(address)
    team = team_at(program, worker)
    record = layer_at(program, 0)
    open_network(program, team, record, 0, True)
    close_network(program, team, record, 0)
