"""What every operation does and moves, by the sizes of its arrays.

A formula is written as in the operation's docstring: letters are sizes, side by side they are multiplied. ``b`` is the
bytes of an element, ``rest`` the elements of the axes that a signature writes as ``...``. Counted is what cannot be
saved: every input read once, every result written once. exp, log and the like are not counted as operations; a
comparison is one. Small beside the rest, and left out: ids and positions, biases and masks.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from math import inf, log2

from refimpl.bottleneck.roofline import Cost
from refimpl.contract import UsageError, host
from refimpl.media.costs import ROWS

__all__ = ["FORMULAS", "cost"]

_EACH = {  # by the axes of an array: operations for each number of it, and numbers moved
    "rest": {
        "softmax": (4, 2), "log_softmax": (4, 2), "logsumexp": (3, 1), "relu": (1, 2), "sigmoid": (5, 2),
        "softplus": (4, 2), "silu": (6, 2), "gelu_erf": (3, 2), "gelu_tanh": (10, 2), "gelu_quick": (7, 2),
        "swiglu": (7, 3), "geglu": (11, 3), "swiglu_clamped": (11, 3), "relu_backward": (1, 3), "sgd_step": (4, 5),
    },
    "V": {
        "repetition_penalty": (1, 2), "presence_penalty": (1, 2), "frequency_penalty": (2, 2), "logit_bias": (0, 2),
        "suppress_tokens": (0, 2), "force_tokens": (0, 1), "sequence_bias": (0, 2), "bad_words": (0, 2),
        "exponential_decay": (1, 2), "greedy": (1, 2), "temperature": (1, 2), "top_k": (1, 2), "min_p": (1, 2),
        "epsilon_cutoff": (1, 2), "eta_cutoff": (2, 2), "top_n_sigma": (5, 2), "draw": (1, 1), "draw_race": (1, 2),
        "residual_probs": (3, 3),
    },
    "rest D": {"l2_norm": (3, 2)},
    "T V": {"cross_entropy": (3, 1), "cross_entropy_backward": (5, 2)},
    "T D": {"embedding": (0, 2), "learned_position": (1, 3)},
    "N T S": {"alibi_bias": (1, 1), "t5_bias": (0, 1)},
}
_TABLE = (
    ("linear", "2 T O D", "b (T D + O D + T O)"),
    ("linear_backward", "4 T D O", "b (2 T D + 2 O D + T O)"),
    ("layer_norm", "8 rest D", "b (2 rest D + 2 D)"),
    ("rms_norm", "5 rest D", "b (2 rest D + D)"),
    ("add_rms_norm", "6 rest D", "b (4 rest D + D)"),
    ("gated_rms_norm", "12 rest D", "b (3 rest D + D)"),
    ("group_norm", "8 C rest", "b (2 C rest + 2 C)"),
    ("conv1d", "2 T O taps C / groups", "b (T C + O taps C / groups + T O)"),
    ("conv2d", "2 O out_y out_x ky kx C / groups", "b (C Y X + O ky kx C / groups + O out_y out_x)"),
    ("conv_transpose2d", "2 C Y X ky kx O / groups", "b (C Y X + C ky kx O / groups + O out_y out_x)"),
    ("upsample_nearest", "0", "b C Y X (1 + scale_y scale_x)"),
    ("rope", "6 T N J", "2 b T N H + 8 T J"),
    ("attention flash_attention flash_step", "2 T S N (H + H2)", "b (T N + S K) (H + H2)"),
    ("paged_attention", "2 T S N (H + H2) / R", "b (T N + S K) (H + H2)"),
    ("merge_states", "4 T N H2", "3 b T N H2 + 12 T N"),
    ("cache_append", "0", "4 b T K H"),
    ("paged_append ring_append", "0", "2 b T K (H + H2)"),
    ("ring_read", "0", "2 b S K (H + H2)"),
    ("quantized_append", "3 T K H", "b T K H + T K H"),
    ("quantized_read", "S K H", "S K H + b S K H"),
    ("copy_blocks", "0", "2 b copies block_size K (H + H2)"),
    ("slot_mapping", "0", "8 T"),
    ("expert_permutation", "0", "8 T A"),
    ("mlp", "4 T D F", "b (2 D F + 2 T D)"),
    ("gated_mlp", "6 T D F", "b (3 D F + 2 T D)"),
    ("add_shared_expert", "6 T D F", "b (3 D F + 3 T D)"),
    ("moe grouped_moe", "6 T A D F", "b (3 min(E, T A) D F + 2 T D)"),
    ("indexed_moe", "6 T A D F", "b (3 T A D F + 2 T D)"),
    ("grouped_linear", "2 rows O D", "b (rows D + min(E, rows) O D + rows O)"),
    ("indexed_linear", "2 T A O D", "b (T D + T A O D + T A O)"),
    ("softmax_top_k", "T E (4 + k)", "b T E + T k (b + 4)"),
    ("top_k_softmax sigmoid_group_top_k sqrt_softplus_top_k top_k_sigmoid", "T E k", "b T E + T k (b + 4)"),
    ("hash_route", "T A", "2 T A (b + 4)"),
    ("philox", "20 counters", "32 counters"),
    ("uniform", "20", "b"),
    ("exponential", "20 size", "b size"),
    ("top_p typical top_h", "V log2(V)", "2 b V"),
    ("no_repeat_ngram", "n ids", "2 b V + 4 ids"),
    ("accepted_length", "draft", "2 b draft"),
    ("dequantize", "2 O D", "O row_bytes + 4 O D"),
    ("quantize", "3 O D", "b O D + O row_bytes"),
    ("quantize_int8", "3 T D", "b T D + T D + T D / 8"),
    ("linear_int8", "2 T O D + 6 T O D / 32", "b (T D + T O) + O row_bytes"),
    ("quantize_absmax", "4 O D", "b O D + O D"),
    ("quantize_linear", "3 rest", "b rest + rest"),
    ("dequantize_linear", "2 rest", "rest + b rest"),
    ("quantize_mxfp4", "4 O D", "b O D + 17 O D / 32"),
    ("dequantize_mxfp4", "2 O row_bytes", "17 O row_bytes / 16 + 8 O row_bytes"),
    ("quantize_nvfp4", "5 O D", "2 b O D + 9 O D / 16"),
    ("dequantize_nvfp4", "2 O row_bytes", "9 O row_bytes / 8 + 8 O row_bytes"),
)
FORMULAS: Mapping[str, tuple[str, str]] = {
    name: (f"{flop} {axes}", f"{moved} b {axes}") for axes, ops in _EACH.items() for name, (flop, moved) in ops.items()
} | {name: (flops, moved) for names, flops, moved in (*_TABLE, *ROWS) for name in names.split()}
"""By operation: operations and bytes. S of paged_attention is the tokens of all R sequences, which are taken as alike;
experts of a mixture are those that tokens reach, at most one for each choice of each token."""

_CODES = {  # side by side becomes *
    op: [compile(re.sub(r"(?<=[\w)]) (?=[\w(])", "*", text), op, "eval") for text in texts]
    for op, texts in FORMULAS.items()
}


@host
def cost(op: str, *, b: float = 2, **sizes: float) -> Cost:
    """Return what an operation does and moves, by its name, the bytes of an element, and its sizes.

    >>> cost("linear", T=1, O=4096, D=4096)
    Cost(flops=33554432, bytes=33570816)
    """
    if op not in FORMULAS:
        raise UsageError(f"there is no operation {op!r}; the operations are {', '.join(FORMULAS)}")
    known = {**sizes, "b": b, "min": min, "log2": log2}
    with suppress(ArithmeticError, NameError, TypeError, ValueError):  # one of 0 divides, is absent, no number
        if all(0 <= size < inf for size in (b, *sizes.values())):
            return Cost(*(eval(code, {"__builtins__": {}}, known) for code in _CODES[op]))
    needed = ", ".join(sorted({name for code in _CODES[op] for name in code.co_names} - {"b", "min", "log2"}))
    raise UsageError(f"the cost of {op} needs the sizes {needed}, finite and not negative; got {sizes}, b={b}")
