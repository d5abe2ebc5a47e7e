"""Costs against traffic: what every kernel moves on the interpreter is what its operation's cost says, or known more.

Counted are sectors of 32 bytes, each time that one is asked for. Caches of a GPU serve what is asked for again; a
cost counts every byte once. So a kernel never moves less, and one that touches each byte once moves as much.
"""

import functools
import importlib
import operator
from collections.abc import Callable
from typing import Any

import pytest

from gpu import device
from gpu.registry import Variant, variants
from refimpl.bottleneck.cost import cost
from refimpl.sizes import sizes
from tests.mirror.tree import modules, public_functions, roles

OPS = [f for m in modules("refimpl") for f in public_functions(m) if roles(f.node) == ["op"]]
ONCE = 1.01  # a broken sector at an end
MORE: dict[str, dict[str, float]] = {
    "a row is read in passes: its largest, the sum, the result": {
        "softmax": 2.0, "log_softmax": 2.0, "logsumexp": 2.02, "l2_norm": 1.5, "cross_entropy": 2.01,
        "cross_entropy_backward": 2.15,
    },
    "a row is read in passes, and the gain again for each row": {
        "layer_norm": 2.7, "group_norm": 2.7, "adaln": 3.5, "rms_norm": 1.9, "add_rms_norm": 1.5, "gated_rms_norm": 1.6,
    },
    "activations are read again by every warp, block or tile of the weights": {
        "linear": 2.9, "mlp": 2.6, "gated_mlp": 2.4, "linear_int8": 2.9, "grouped_linear": 1.4, "indexed_linear": 2.1,
        "indexed_moe": 2.6, "add_shared_expert": 2.5,
    },
    "rows are copied to their experts and back, and tiles read weights again": {"moe": 4.2, "grouped_moe": 4.2},
    "a thread makes one output, and reads all that goes into it": {
        "linear_backward": 18.0, "conv1d": 9.4, "conv2d": 52.0, "conv3d": 158.0,
        "conv_transpose2d": 46.0,
    },
    "neighbours in a row come from one element": {"upsample_nearest": 1.2},
    "a patch is no row: its sectors are shared with the next one's": {"patchify": 1.51, "unpatchify": 4.6},
    "the gate is read again for every token": {"gated_residual": 1.34},
    "frequencies, which a cost leaves out, are read again for every timestep, in float64": {"timestep_embedding": 2.13},
    "tables are read again for every head": {"rope": 2.0, "t5_bias": 2.8, "alibi_bias": 1.07},
    "keys and values are read again by every tile of queries": {
        "attention": 6.2, "flash_attention": 6.2, "flash_step": 11.8,
    },
    "keys and values are scaled by head: scales, a second pass": {"quantized_append": 1.9, "quantized_read": 1.2},
    "each thread walks a row, so that a sector is asked for again for each of its elements": {
        "philox": 4.5, "softmax_top_k": 9.5, "top_k_softmax": 8.6, "sigmoid_group_top_k": 33.0,
        "sqrt_softplus_top_k": 16.0, "top_k_sigmoid": 1.3, "hash_route": 12.0, "expert_permutation": 14.0,
    },
    "a scale, or a log-sum-exp, is read again by every thread of its block": {
        "quantize_mxfp4": 1.33, "dequantize_mxfp4": 1.33, "quantize_nvfp4": 1.3, "dequantize_nvfp4": 1.54,
        "merge_states": 1.2, "quantize_int8": 1.2,
    },
    "the shape of a scale's block is an array, read by every thread": {
        "quantize_linear": 2.41, "dequantize_linear": 2.41, "quantize_absmax": 3.3,
    },
    "fields of a block are written one after the other, to sectors that they share": {"quantize": 1.19},
    "a sector is read for one number": {"uniform": 32.0, "accepted_length": 10.0},
    "ids, slots and block tables, which a cost leaves out, or bits that say where a logit changes": {
        "repetition_penalty": 1.25, "presence_penalty": 1.25, "frequency_penalty": 1.25, "suppress_tokens": 1.25,
        "exponential_decay": 1.25, "force_tokens": 1.5, "no_repeat_ngram": 1.33, "embedding": 1.07,
        "slot_mapping": 1.13, "exponential": 1.75, "paged_append": 1.02, "paged_attention": 1.05, "copy_blocks": 1.04,
    },
    "logits are read in passes: the largest, then what it decides": {
        "greedy": 1.13, "temperature": 1.76, "min_p": 1.76, "epsilon_cutoff": 2.01, "eta_cutoff": 2.01,
        "top_n_sigma": 3.01, "draw": 2.24, "draw_race": 1.51, "residual_probs": 1.67,
    },
    "weights are read by every thread": {"linear_combination": 1.2, "guided_combination": 1.13},
    "a picture is read in passes: its means, its spreads, the result": {"rescale_guidance": 2.2},
    "a quantile is found by halving the range of its bits: 31 passes that count": {"threshold_x0": 17.3},
    "the cut is found by passes over the logits": {"top_k": 4.2, "top_p": 7.7, "typical": 9.9, "top_h": 7.9},
}
FACTORS = {op: (factor, why) for why, factors in MORE.items() for op, factor in factors.items()}
OTHER_WORK = {("rope", "append"): 5.0}
"""A variant that does more than its operation: the new keys and values are appended too."""
LESS = {"learned_position": 0.8}
"""Its workload's table is narrower than its activations."""
EXTRA: dict[str, Callable[[dict[str, Any], Any], dict[str, int]]] = {
    "dequantize": lambda args, out: {"D": out.shape[1]},
    "quantize": lambda args, out: {"row_bytes": out.shape[1]},
    "linear_int8": lambda args, out: {"O": len(args["blocks"]), "D": args["x"].shape[1]},
    "paged_attention": lambda args, out: {"S": int(args["context_lens"].sum())},
    "quantized_read": lambda args, out: {"S": args["length"]},
    "ring_read": lambda args, out: {"S": len(args["k_cache"])},
    "conv2d": lambda args, out: dict(zip(("out_y", "out_x"), out.shape[1:], strict=True)),
    "conv3d": lambda args, out: dict(zip(("out_frames", "out_y", "out_x"), out[0].shape[1:], strict=True)),
    "conv_transpose2d": lambda args, out: dict(zip(("O", "out_y", "out_x"), out.shape, strict=True)),
    "upsample_nearest": lambda args, out: dict(zip(("scale_y", "scale_x"), args["scale"], strict=True)),
    "dequantize_linear": lambda args, out: {"rest": out.size},
    "uniform": lambda args, out: {"b": 4},
    "exponential": lambda args, out: {"b": 4},
}
"""Sizes that no array of the arguments has, by operation."""


def compare(variant: Variant) -> tuple[float, float]:
    """Run a variant's workload; return the bytes counted, and those of its operation's cost."""
    arguments = variant.workload()
    (module,) = [op.module.name for op in OPS if op.node.name == variant.op]
    known = sizes(getattr(importlib.import_module(module), variant.op), arguments)
    with device.use("emulated"), device.recording() as launches:
        result = variant.call(**arguments)
    moved = functools.reduce(operator.add, (launch.counters for launch in launches))
    counted = 32 * sum(asked for moves in (moved.loads, moved.stores) for asked, _ in moves.values())
    extra = EXTRA.get(variant.op, lambda *_: {})(arguments, result)
    return float(counted), cost(variant.op, **(known | extra)).bytes


@pytest.mark.parametrize("variant", variants(), ids=lambda variant: f"{variant.op}-{variant.name}")
def test_traffic_is_that_of_the_cost_or_known_to_be_more(variant: Variant) -> None:
    counted, wanted = compare(variant)
    most, why = FACTORS.get(variant.op, (ONCE, "every byte is touched once"))
    most = OTHER_WORK.get((variant.op, variant.name), most)
    assert counted >= LESS.get(variant.op, 0.995) * wanted, "it moves less than its cost: the cost is wrong"
    assert counted <= most * wanted, f"{counted / wanted:.2f} times its cost; {why}"


def test_kernels_that_move_each_byte_once_are_many() -> None:
    assert len({variant.op for variant in variants()} - set(FACTORS)) >= 20


def test_what_is_known_of_no_kernel_is_not_written_down() -> None:
    assert set(FACTORS) | set(LESS) <= {variant.op for variant in variants()}
