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

_ATTENTION = ("2 T S N (H + H2)", "b (T N + S K) (H + H2)")
_LOGITS = ("V", "2 b V")

FORMULAS: Mapping[str, tuple[str, str]] = {
    # 2.1
    "linear": ("2 T O D", "b (T D + O D + T O)"),
    "softmax": ("4 rest", "2 b rest"),
    "log_softmax": ("4 rest", "2 b rest"),
    "logsumexp": ("3 rest", "b rest"),
    "relu": ("rest", "2 b rest"),
    "silu": ("6 rest", "2 b rest"),
    "gelu_erf": ("3 rest", "2 b rest"),
    "gelu_tanh": ("10 rest", "2 b rest"),
    "gelu_quick": ("7 rest", "2 b rest"),
    "swiglu": ("7 rest", "3 b rest"),
    "geglu": ("11 rest", "3 b rest"),
    "layer_norm": ("8 rest D", "b (2 rest D + 2 D)"),
    "rms_norm": ("5 rest D", "b (2 rest D + D)"),
    # 2.2
    "embedding": ("0", "2 b T D"),
    "learned_position": ("T D", "3 b T D"),
    "rope": ("6 T N J", "2 b T N H + 8 T J"),
    "attention": _ATTENTION,
    "cache_append": ("0", "4 b T K H"),
    "mlp": ("4 T D F", "b (2 D F + 2 T D)"),
    "gated_mlp": ("6 T D F", "b (3 D F + 2 T D)"),
    "philox": ("20 counters", "32 counters"),
    "uniform": ("20", "8"),
    "repetition_penalty": _LOGITS,
    "presence_penalty": _LOGITS,
    "frequency_penalty": ("2 V", "2 b V"),
    "logit_bias": ("0", "2 b V"),
    "greedy": _LOGITS,
    "temperature": _LOGITS,
    "top_k": _LOGITS,
    "top_p": ("V log2(V)", "2 b V"),
    "min_p": _LOGITS,
    "draw": ("V", "b V"),
    "accepted_length": ("draft", "2 b draft"),
    "residual_probs": ("3 V", "3 b V"),
    "dequantize": ("2 O D", "O row_bytes + 4 O D"),
    "quantize_int8": ("3 T D", "b T D + T D + T D / 8"),
    "linear_int8": ("2 T O D + 6 T O D / 32", "b (T D + T O) + O row_bytes"),
    # 2.5
    "flash_step": _ATTENTION,
    "merge_states": ("4 T N H2", "3 b T N H2 + 12 T N"),
    "flash_attention": _ATTENTION,
    "slot_mapping": ("0", "12 T"),
    "paged_append": ("0", "2 b T K (H + H2)"),
    "paged_attention": ("2 T S N (H + H2) / R", "b (T N + S K) (H + H2)"),
}
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
    for name, value in arguments.items():
        annotation = inspect.signature(op).parameters[name].annotation
        kind = next((kind for kind in (annotation, *get_args(annotation)) if hasattr(kind, "dim_str")), None)
        if isinstance(value, int):
            found[name] = value
        elif kind is not None and hasattr(value, "shape"):
            if kind.__name__.startswith("Float"):
                found.setdefault("b", value.dtype.itemsize)
            found |= _bind(kind.dim_str.split(), value.shape)
    return found


def _bind(axes: list[str], shape: tuple[int, ...]) -> dict[str, int]:
    """Give every axis its size; ``...`` or ``*name`` takes the elements of all axes that the others leave."""
    many = next((place for place, axis in enumerate(axes) if axis.startswith(("...", "*"))), None)
    if many is None:
        return dict(zip(axes, shape, strict=True))
    end = len(shape) - len(axes) + many + 1
    taken = {axes[many].lstrip("*#").replace("...", "rest"): prod(shape[many:end])}
    return dict(zip(axes[:many] + axes[many + 1 :], shape[:many] + shape[end:], strict=True)) | taken
