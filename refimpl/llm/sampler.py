"""From logits to a token: a chain of steps over the logits, and a draw whose noise is an argument.

Every step takes logits and gives logits. A chain is data, a tuple of (name, value) pairs, so that any order can be
expressed:

    (("repetition_penalty", 1.1), ("temperature", 0.8), ("top_k", 40), ("top_p", 0.95))
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from refimpl.basics.activation import softmax
from refimpl.contract import Array, Float, UsageError, host, op, require, whole, widen
from refimpl.llm import cuts, penalties

__all__ = ["Chain", "apply_chain", "draw", "sample", "sampling_chain", "settings_chain"]

Chain: TypeAlias = tuple[tuple[str, Any], ...]
"""Steps by name, each with its value; ("greedy", None) has none."""


@op
def draw(probs: Float[Array, " V"], u: float) -> int:
    """Draw a token by inverting the cumulative distribution at u.

    Math: min {i : p_0 + ... + p_i > u (p_0 + ... + p_{V-1})}.
    Cost: V additions; one read.
    Numerics: p rounded to a multiple of 2^-40 of the power of two above the largest, u down to one of 2^-53, as
        ``uniform`` gives it: sums of integers, exact in any order (up to 2^22 tokens). What rounds to 0 is never drawn.
    Constraints:
        (C1) u is in [0, 1).
        (C2) probabilities are one row, finite and not negative, and one is positive.
    Source: Devroye, Non-uniform random variate generation, 1986, III.2.

    >>> draw(np.array([0.0, 0.25, 0.75]), 0.0), draw(np.array([0.0, 0.25, 0.75]), 0.25)
    (1, 2)
    """
    require(0 <= u < 1, "C1", f"u is in [0, 1), got {u}")
    require(probs.ndim == 1, "C2", f"probabilities are one row, got shape {probs.shape}")
    wide = widen(probs).astype(np.float64)
    largest = wide.max(initial=0.0)
    fair = bool(0 < largest < np.inf) and bool((wide >= 0).all())
    require(fair, "C2", f"probabilities are finite and not negative, and one is positive; the largest is {largest}")
    units = np.rint(np.ldexp(wide, 40 - np.frexp(largest)[1]))
    running = np.cumsum(units.astype(np.int64))
    target = int(u * 2**53) * int(running[-1]) >> 53
    return int(np.searchsorted(running, target, side="right"))


@host
def sampling_chain(
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[int, float] | None = None,
) -> Chain:
    """Make the chain of the usual settings, in Hugging Face's order, without the steps that are off.

    >>> sampling_chain(0.8, top_p=0.95, repetition_penalty=1.1)
    (('repetition_penalty', 1.1), ('temperature', 0.8), ('top_p', 0.95))
    >>> sampling_chain(top_p=0.95)
    (('greedy', None),)
    """
    top_k = whole("top_k", top_k)
    steps: list[tuple[str, Any, Any]] = [  # name, value, the value that turns the step off
        ("logit_bias", tuple(sorted((logit_bias or {}).items())), ()),
        ("repetition_penalty", repetition_penalty, 1),
        ("presence_penalty", presence_penalty, 0),
        ("frequency_penalty", frequency_penalty, 0),
    ]
    if temperature == 0:
        steps += [("greedy", None, "always on")]
    else:
        steps += [("temperature", temperature, 1), ("top_k", top_k, 0), ("top_p", top_p, 1), ("min_p", min_p, 0)]
    return tuple((name, value) for name, value, off in steps if value != off)


@host
def settings_chain(chain: Chain | None, settings: Mapping[str, Any]) -> Chain:
    """Return the chain, or without one make that of the settings by their names in ``sampling_chain``.

    >>> settings_chain(None, {"temperature": 0.8})
    (('temperature', 0.8),)
    >>> settings_chain(None, {"temprature": 0.8})
    Traceback (most recent call last):
    ...
    refimpl.contract.UsageError: there is no setting 'temprature'; those of sampling are temperature, top_k, ...
    """
    known = inspect.signature(sampling_chain).parameters
    for name in settings:
        if name not in known:
            raise UsageError(f"there is no setting {name!r}; those of sampling are {', '.join(known)}")
        if chain is not None:
            raise UsageError(f"a chain and {name}: the chain already says all of sampling, give one of them")
    return sampling_chain(**settings) if chain is None else chain


@host
def apply_chain(
    logits: Float[Array, " V"], prompt_ids: Sequence[int], output_ids: Sequence[int], chain: Chain
) -> Float[Array, " V"]:
    """Apply the steps of a chain one after the other.

    >>> apply_chain(np.array([3.0, 2.0, 1.0]), [0], [], (("repetition_penalty", 3.0), ("top_k", 1)))
    array([-inf,   2., -inf])
    """

    def ids(*parts: Sequence[int]) -> Array:
        return np.concatenate([np.array(part, np.int64) for part in parts])

    steps: dict[str, Callable[[Array, Any], Array]] = {
        "logit_bias": penalties.logit_bias,
        "repetition_penalty": lambda x, penalty: penalties.repetition_penalty(x, ids(prompt_ids, output_ids), penalty),
        "presence_penalty": lambda x, penalty: penalties.presence_penalty(x, ids(output_ids), penalty),
        "frequency_penalty": lambda x, penalty: penalties.frequency_penalty(x, ids(output_ids), penalty),
        "greedy": lambda x, _: cuts.greedy(x),
        "temperature": cuts.temperature,
        "top_k": cuts.top_k,
        "top_p": cuts.top_p,
        "min_p": cuts.min_p,
    }
    for name, value in chain:
        require(name in steps, "C1", f"the steps of a chain are {', '.join(steps)}, got {name!r}")
        logits = steps[name](logits, value)
    return logits


@host
def sample(
    logits: Float[Array, " V"], prompt_ids: Sequence[int], output_ids: Sequence[int], chain: Chain, u: float
) -> int:
    """Apply a chain and draw a token with the noise u in [0, 1).

    >>> sample(np.array([3.0, 2.0, 1.0]), [], [], sampling_chain(temperature=0.0), u=0.9)
    0
    """
    logits = widen(apply_chain(logits, prompt_ids, output_ids, chain)).astype(np.float64)
    largest = logits.max(initial=-np.inf)
    require(bool(np.isfinite(largest)), "C1", f"the largest logit is finite, got {largest}")
    left = np.flatnonzero(logits > -np.inf)  # cut tokens have probability 0 and change no running sum
    return int(left[draw(softmax(logits[left]), u)])
