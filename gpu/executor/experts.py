"""A mixture of experts on the CPU: route the tokens, sort their choices by expert, and let each expert read its own.

A choice is a token with one of its experts. In the order of experts the rows of an expert lie side by side, so that it
is one matrix product over them, tile by tile; only the chosen experts' weights are read. What a choice gives goes back
to its token, which sums its choices in the order in which the router made them: its bits are its own.
"""

from gpu.executor.elementary import exp
from gpu.executor.jit import inlined, jit
from gpu.executor.program import ROUTER, SHARE, W_DOWN, group_at, layer_at, matrix_at, matrix_of, words_at
from gpu.executor.router import route_row
from gpu.executor.rows import activate_tile, add_row, copy_row, multiply, normalise, round_row, scale_row, tiles_of
from gpu.executor.team import tasks
from gpu.executor.vector import LANES, float_at, fma, load_part, splat, splat_at, store_part

__all__ = ["mix", "route", "widen_experts"]

_GATE, _UP, _DOWN = range(3)  # of an expert's matrices


@inlined
def _expert(program, record, expert, kind):
    """Return the record of an expert's matrix."""
    return matrix_at(program, record.expert_matrices + 3 * expert + kind)


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


@jit
def route(program, team, layer):
    """Choose every token's experts by its row of ``normed``, and sort the choices."""
    record, x, stride, tokens = layer_at(program, layer), program.normed, program.normed_stride, program.tokens
    router, share = matrix_of(program, layer, ROUTER), matrix_of(program, layer, SHARE)
    last = tiles_of(router)
    for task in tasks(team, last + tiles_of(share)):
        if task < last:
            multiply(program, team, router, task, 0, x, stride, tokens, program.logit, program.logit_stride)
        else:
            multiply(program, team, share, task - last, 0, x, stride, tokens, program.share, program.share_stride)
    for t in tasks(team, tokens):
        ids, shares = program.ids + 8 * t * record.active, program.shares + 4 * t * record.active
        route_row(record, program.logit + t * program.logit_stride, ids, shares, team.scratch)
    for _ in tasks(team, 1):
        _sort(program, team, record)


@jit
def _gather(program, team, record):
    """Copy the token of every choice to its place in the order of experts."""
    choices = program.tokens * record.active
    order = words_at(program.order, choices)
    for place in tasks(team, choices):
        row = program.chosen + place * program.chosen_stride
        copy_row(row, program.normed + order[place] // record.active * program.normed_stride, program.hidden)
        if record.weight_inputs:
            scale_row(row, program.hidden, float_at(program.shares + 4 * order[place]))
        if program.int8:
            round_row(program, place, row, program.hidden)


@jit
def widen_experts(program, team, layer):
    """Let every expert read its choices' rows, and leave what it gives in ``chosen``."""
    record = layer_at(program, layer)
    _gather(program, team, record)
    first = _expert(program, record, 0, _GATE)
    tiles, width = tiles_of(first), first.rows
    rows, stride = program.chosen, program.chosen_stride
    gate, gate_stride = program.chosen_gate, program.chosen_gate_stride
    up, up_stride = program.chosen_up, program.chosen_up_stride
    for task in tasks(team, program.group_count * tiles):
        group, tile = group_at(program, task // tiles), task % tiles
        w_gate, w_up = _expert(program, record, group.expert, _GATE), _expert(program, record, group.expert, _UP)
        multiply(program, team, w_gate, tile, group.first, rows, stride, group.count, gate, gate_stride)
        multiply(program, team, w_up, tile, group.first, rows, stride, group.count, up, up_stride)
        activate_tile(record, tile, width, group.first, group.count, gate, gate_stride, up, up_stride)
    if program.int8:
        for place in tasks(team, program.tokens * record.active):
            round_row(program, place, gate + place * gate_stride, width)
    tiles = tiles_of(_expert(program, record, 0, _DOWN))
    for task in tasks(team, program.group_count * tiles):
        group = group_at(program, task // tiles)
        w_down = _expert(program, record, group.expert, _DOWN)
        multiply(program, team, w_down, task % tiles, group.first, gate, gate_stride, group.count, rows, stride)


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
def mix(program, team, layer):
    """Add the mixture, and the shared expert beside it, to the residual stream."""
    record, w_down, gate = layer_at(program, layer), matrix_of(program, layer, W_DOWN), program.gate
    if record.width:
        if w_down.int8:
            for t in tasks(team, program.tokens):
                round_row(program, t, gate + t * program.gate_stride, w_down.width)
        for tile in tasks(team, tiles_of(w_down)):
            multiply(program, team, w_down, tile, 0, gate, program.gate_stride, program.tokens,
                     program.normed, program.normed_stride)
    for t in tasks(team, program.tokens):
        out = program.normed + t * program.normed_stride
        _sum_choices(program, record, t, out)
        if record.mlp_post_gain:
            normalise(program, record.mlp_post_gain, record.mlp_post_bias, out, out, program.hidden)
        add_row(program.x + t * program.x_stride, out, program.hidden, program.residual_scale)
