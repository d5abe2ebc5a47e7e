"""A mixture of experts on the CPU: route the tokens, sort their choices by expert, and let each expert read its own.

A choice is a token with one of its experts. In the order of experts the rows of an expert lie side by side, so that it
is one matrix product over them, tile by tile; only the chosen experts' weights are read. What a choice gives goes back
to its token, which sums its choices in the order in which the router made them: its bits are its own.
"""

from gpu.executor.elementary import exp
from gpu.executor.jit import inlined, jit
from gpu.executor.program import group_at, words_at
from gpu.executor.router import route_row
from gpu.executor.rows import add_row, copy_row, normalise, round_row, scale_row
from gpu.executor.team import tasks
from gpu.executor.vector import LANES, float_at, fma, load_part, splat, splat_at, store_part

__all__ = ["choose", "mix"]

_FEW = 4  # tokens up to which one thread alone is sooner than threads that wait for each other

@jit
def _sort(program, team, record):
    """Give every choice its place in the order of experts, and list the experts that have any."""
    choices, count = program.tokens * record.active, 0
    ids, places = words_at(program.ids, choices), words_at(program.places, choices)
    order, sizes = words_at(program.order, choices), words_at(team.scratch, record.experts)
    sizes[:] = 0
    for choice in range(choices):
        sizes[ids[choice]] += 1
    first = 0
    for expert in range(record.experts):
        if sizes[expert]:
            group = group_at(program, count)
            group.expert, group.first, group.count = expert, first, sizes[expert]
            count += 1
        first, sizes[expert] = first + sizes[expert], first
    for choice in range(choices):
        place = sizes[ids[choice]]
        sizes[ids[choice]] += 1
        places[choice], order[place] = place, choice
    program.group_count = count


@inlined
def _choose(program, team, record, t):
    """Choose a token's experts by its row of ``logit``."""
    ids, shares = program.ids + 8 * t * record.active, program.shares + 4 * t * record.active
    route_row(record, program.logit + t * program.logit_stride, ids, shares, team.scratch)


@inlined
def _gather(program, record, place):
    """Copy the token of a choice to its place in the order of experts."""
    choice = words_at(program.order, place + 1)[place]
    row = program.chosen + place * program.chosen_stride
    copy_row(row, program.normed + choice // record.active * program.normed_stride, program.hidden)
    if record.weight_inputs:
        scale_row(row, program.hidden, float_at(program.shares + 4 * choice))
    if program.int8:
        round_row(program, place, row, program.hidden)


@jit
def choose(program, team, record, given):
    """Choose every token's experts, if they are not given, sort the choices, and gather what the experts read."""
    choices = program.tokens * record.active
    if program.tokens <= _FEW:
        for _ in tasks(team, 1):
            for t in range(0 if given else program.tokens):
                _choose(program, team, record, t)
            _sort(program, team, record)
            for place in range(choices):
                _gather(program, record, place)
    else:
        for t in tasks(team, 0 if given else program.tokens):
            _choose(program, team, record, t)
        for _ in tasks(team, 1):
            _sort(program, team, record)
        for place in tasks(team, choices):
            _gather(program, record, place)


@inlined
def _sum_choices(program, record, t, out):
    """Write the weighed sum of a token's choices, and add what the shared expert left there, times its own weight."""
    places = words_at(program.places, program.tokens * record.active)
    share = splat(1.0)
    if record.shared_gate:
        share = share / (share + exp(splat(0.0) - splat_at(program.share + t * program.share_stride)))
    for i in range(0, program.hidden, LANES):
        left, total = program.hidden - i, splat(0.0)
        for choice in range(t * record.active, (t + 1) * record.active):
            part = load_part(program.chosen + places[choice] * program.chosen_stride + 4 * i, left)
            weight = splat(1.0) if record.weight_inputs else splat_at(program.shares + 4 * choice)
            total = fma(weight, part, total)
        if record.width:
            total = fma(share, load_part(out + 4 * i, left), total)
        store_part(out + 4 * i, total, left)


@jit
def mix(program, team, record):
    """Add what a token's experts gave to the residual stream."""
    for t in tasks(team, program.tokens):
        out = program.normed + t * program.normed_stride
        _sum_choices(program, record, t, out)
        normalise(program, record.mlp_post_gain, record.mlp_post_bias, out, out, program.hidden)
        add_row(program.x + t * program.x_stride, out, program.hidden, program.residual_scale)
