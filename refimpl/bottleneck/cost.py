"""What every operation does and moves, by the sizes of its arrays.

A formula is written as in the operation's docstring: letters are sizes, side by side they are multiplied. ``b`` is the
bytes of an element, ``rest`` the elements of the axes that a signature writes as ``...``. Counted is what cannot be
saved: every input read once, every result written once. exp, log and the like are not counted as operations; a
comparison is one. Small beside the rest, and left out: ids and positions, biases and masks.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache
from math import log2, prod
from types import CodeType
from typing import Any, get_args

from refimpl.bottleneck.roofline import Cost
from refimpl.contract import UsageError, host

__all__ = ["FORMULAS", "cost", "sizes"]

_TABLE = (
    # 2.1
    ("linear", "2 T O D", "b (T D + O D + T O)"),
    ("softmax log_softmax", "4 rest", "2 b rest"),
    ("logsumexp", "3 rest", "b rest"),
    ("relu", "rest", "2 b rest"),
    ("sigmoid", "5 rest", "2 b rest"),
    ("softplus", "4 rest", "2 b rest"),
    ("silu", "6 rest", "2 b rest"),
    ("gelu_erf", "3 rest", "2 b rest"),
    ("gelu_tanh", "10 rest", "2 b rest"),
    ("gelu_quick", "7 rest", "2 b rest"),
    ("swiglu", "7 rest", "3 b rest"),
    ("geglu swiglu_clamped", "11 rest", "3 b rest"),
    ("layer_norm", "8 rest D", "b (2 rest D + 2 D)"),
    ("rms_norm", "5 rest D", "b (2 rest D + D)"),
    ("add_rms_norm", "6 rest D", "b (4 rest D + D)"),
    ("gated_rms_norm", "12 rest D", "b (3 rest D + D)"),
    ("l2_norm", "3 rest D", "2 b rest D"),
    ("group_norm", "8 C rest", "b (2 C rest + 2 C)"),
    ("conv1d", "2 T O taps C / groups", "b (T C + O taps C / groups + T O)"),
    ("conv2d", "2 O out_y out_x ky kx C / groups", "b (C Y X + O ky kx C / groups + O out_y out_x)"),
    ("conv_transpose2d", "2 C Y X ky kx O / groups", "b (C Y X + C ky kx O / groups + O out_y out_x)"),
    ("upsample_nearest", "0", "b C Y X (1 + scale_y scale_x)"),
    ("cross_entropy", "3 T V", "b T V"),
    ("cross_entropy_backward", "5 T V", "2 b T V"),
    ("linear_backward", "4 T D O", "b (2 T D + 2 O D + T O)"),
    ("relu_backward", "rest", "3 b rest"),
    ("sgd_step", "4 rest", "5 b rest"),
    # 2.2
    ("embedding", "0", "2 b T D"),
    ("learned_position", "T D", "3 b T D"),
    ("rope", "6 T N J", "2 b T N H + 8 T J"),
    ("alibi_bias", "N T S", "b N T S"),
    ("t5_bias", "0", "b N T S"),
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
    ("mlp", "4 T D F", "b (2 D F + 2 T D)"),
    ("gated_mlp", "6 T D F", "b (3 D F + 2 T D)"),
    ("softmax_top_k", "T E (4 + k)", "b T E + T k (b + 4)"),
    ("top_k_softmax sigmoid_group_top_k sqrt_softplus_top_k top_k_sigmoid", "T E k", "b T E + T k (b + 4)"),
    ("hash_route", "T A", "2 T A (b + 4)"),
    ("expert_permutation", "0", "8 T A"),
    ("grouped_linear", "2 rows O D", "b (rows D + min(E, rows) O D + rows O)"),
    ("indexed_linear", "2 T A O D", "b (T D + T A O D + T A O)"),
    ("moe grouped_moe", "6 T A D F", "b (2 T D + 3 min(E, T A) D F)"),
    ("indexed_moe", "6 T A D F", "b (2 T D + 3 T A D F)"),
    ("add_shared_expert", "6 T D F", "b (3 T D + 3 D F)"),
    ("philox", "20 counters", "32 counters"),
    ("uniform", "20", "b"),
    ("repetition_penalty presence_penalty exponential_decay greedy temperature top_k min_p", "V", "2 b V"),
    ("frequency_penalty", "2 V", "2 b V"),
    ("logit_bias suppress_tokens sequence_bias bad_words", "0", "2 b V"),
    ("force_tokens", "0", "b V"),
    ("no_repeat_ngram", "n ids", "2 b V + 4 ids"),
    ("top_p typical top_h", "V log2(V)", "2 b V"),
    ("epsilon_cutoff", "V", "2 b V"),
    ("eta_cutoff", "2 V", "2 b V"),
    ("top_n_sigma", "5 V", "2 b V"),
    ("exponential", "20 size", "b size"),
    ("draw", "V", "b V"),
    ("draw_race", "V", "b V + 8 V"),
    ("accepted_length", "draft", "2 b draft"),
    ("residual_probs", "3 V", "3 b V"),
    ("dequantize", "2 O D", "O row_bytes + 4 O D"),
    ("quantize_int8", "3 T D", "b T D + T D + T D / 8"),
    ("linear_int8", "2 T O D + 6 T O D / 32", "b (T D + T O) + O row_bytes"),
    ("quantize", "3 O D", "b O D + O row_bytes"),
    ("quantize_absmax", "4 O D", "b O D + O D"),
    ("quantize_linear", "3 rest", "b rest + rest"),
    ("dequantize_linear", "2 rest", "rest + b rest"),
    ("quantize_mxfp4", "4 O D", "b O D + 17 O D / 32"),
    ("dequantize_mxfp4", "2 O row_bytes", "17 O row_bytes / 16 + 8 O row_bytes"),
    ("quantize_nvfp4", "5 O D", "2 b O D + 9 O D / 16"),
    ("dequantize_nvfp4", "2 O row_bytes", "9 O row_bytes / 8 + 8 O row_bytes"),
)
FORMULAS: Mapping[str, tuple[str, str]] = {name: (f, moved) for names, f, moved in _TABLE for name in names.split()}
"""By operation: operations and bytes. S of paged_attention is the tokens of all R sequences, which are taken as alike;
experts of a mixture are those that tokens reach, at most one for each choice of each token."""

_FUNCTIONS: Mapping[str, Any] = {"min": min, "log2": log2}


@cache
def _compiled(formula: str) -> CodeType:
    return compile(re.sub(r"(?<=[\w)]) (?=[\w(])", "*", formula), formula, "eval")


@host
def cost(op: str, *, b: float = 2, **sizes: float) -> Cost:
    """Return what an operation does and moves, by its name, the bytes of an element, and its sizes.

    >>> cost("linear", T=1, O=4096, D=4096)
    Cost(flops=33554432, bytes=33570816)
    """
    if op not in FORMULAS:
        raise UsageError(f"there is no operation {op!r}; the operations are {', '.join(FORMULAS)}")
    known, codes = {"b": b, **sizes}, [_compiled(formula) for formula in FORMULAS[op]]
    absent = sorted({name for code in codes for name in code.co_names} - set(known) - set(_FUNCTIONS))
    if absent:
        raise UsageError(f"the cost of {op} needs the sizes {', '.join(absent)}")
    return Cost(*(eval(code, {"__builtins__": {}}, {**_FUNCTIONS, **known}) for code in codes))


@host
def sizes(op: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, int]:
    """Read the sizes of a call off its arrays, by the letters of the signature; ``b`` is that of the first floats.

    >>> import numpy as np
    >>> from refimpl.basics.linear import linear
    >>> x, w = np.ones((3, 8), np.float32), np.ones((5, 8), np.float32)
    >>> sizes(linear, {"x": x, "w": w})
    {'b': 4, 'T': 3, 'D': 8, 'O': 5}
    """
    found = dict[str, int]()
    for name, parameter in inspect.signature(op).parameters.items():
        annotation, value = parameter.annotation, arguments.get(name, parameter.default)
        kind = next((kind for kind in (annotation, *get_args(annotation)) if hasattr(kind, "dim_str")), None)
        if type(value) is int:
            found[name] = value
        elif kind is not None and hasattr(value, "shape"):
            if kind.__name__.startswith("Float"):
                found.setdefault("b", value.dtype.itemsize)
            for axis, size in _bind(kind.dim_str.split(), value.shape).items():
                found.setdefault(axis, size)
    return found


def _bind(axes: list[str], shape: tuple[int, ...]) -> dict[str, int]:
    """Give every axis its size; ``...`` or ``*name`` takes the elements of all axes that the others leave."""
    many = next((place for place, axis in enumerate(axes) if axis.startswith(("...", "*"))), None)
    if many is None:
        return dict(zip(axes, shape, strict=True))
    end = len(shape) - len(axes) + many + 1
    taken = {axes[many].lstrip("*#").replace("...", "rest"): prod(shape[many:end])}
    return dict(zip(axes[:many] + axes[many + 1 :], shape[:many] + shape[end:], strict=True)) | taken
