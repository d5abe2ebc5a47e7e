"""From logits to a token: a chain of steps over the logits, and a draw whose noise is an argument.

Every step takes logits and gives logits. A chain is data, a tuple of (name, value) pairs, so that any order can be
expressed:

    (("repetition_penalty", 1.1), ("temperature", 0.8), ("top_k", 40), ("top_p", 0.95))
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from refimpl.basics.activation import log_softmax, softmax
from refimpl.contract import Array, Float, UsageError, host, op, require, whole, widen
from refimpl.llm import bans, cuts, penalties, tail_cuts

__all__ = ["Chain", "apply_chain", "draw", "draw_race", "sample", "sampling_chain", "settings_chain"]

Chain: TypeAlias = tuple[tuple[str, Any], ...]
"""Steps by name, each with its value; ("greedy", None) has none."""

_ALONE: tuple[Any, ...] = (
    penalties.logit_bias, cuts.temperature, cuts.top_p, cuts.min_p, tail_cuts.typical, tail_cuts.top_h,
    tail_cuts.epsilon_cutoff, tail_cuts.eta_cutoff, tail_cuts.top_n_sigma,
)  # fmt: skip
_OF_TEXT: tuple[Any, ...] = penalties.repetition_penalty, bans.sequence_bias, bans.no_repeat_ngram, bans.bad_words
_OF_OUTPUT: tuple[Any, ...] = penalties.presence_penalty, penalties.frequency_penalty


def _fair(probs: Array) -> Array:
    """Return probabilities in float64, if one can be drawn from."""
    require(probs.ndim == 1, "C2", f"probabilities are one row, got shape {probs.shape}")
    wide = widen(probs).astype(np.float64)
    largest = wide.max(initial=0.0)
    fair = bool(0 < largest < np.inf) and bool((wide >= 0).all())
    require(fair, "C2", f"probabilities are finite and not negative, and one is positive; the largest is {largest}")
    return wide


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
    wide = _fair(probs)
    units = np.rint(np.ldexp(wide, 40 - np.frexp(wide.max())[1]))
    running = np.cumsum(units.astype(np.int64))
    target = int(float(u) * 2**53) * int(running[-1]) >> 53
    return int(np.searchsorted(running, target, side="right"))


@op
def draw_race(probs: Float[Array, " V"], noise: Float[Array, " V"]) -> int:
    """Draw a token by an exponential race: each arrives after a time, and the first one wins.

    Math: argmin e_i / p_i over the p_i > 0; of equals the lowest i. With e of ``exponential`` token i wins with
        probability p_i / (p_0 + ... + p_{V-1}): the law of ``draw``, other tokens. Its logarithm is Gumbel-max.
    Cost: V divisions; reads V probabilities and V numbers.
    Numerics: divided in float64. A probability of 0 is never drawn, whatever the noise.
    Constraints:
        (C1) noise is finite and not negative, a number for each token.
        (C2) probabilities are one row, finite and not negative, and one is positive.
    Source: Devroye, Non-uniform random variate generation, 1986, VI.2; as vLLM and gpt-fast draw.

    >>> draw_race(np.array([0.0, 0.25, 0.75]), np.array([0.0, 1.0, 2.0]))
    2
    """
    wide, times = _fair(probs), widen(noise).astype(np.float64)
    timed = times.shape == wide.shape and bool((times >= 0).all()) and bool(np.isfinite(times).all())
    require(timed, "C1", f"noise is {wide.shape} finite numbers, not negative, got shape {times.shape}")
    runners = np.flatnonzero(wide)
    with np.errstate(over="ignore"):
        return int(runners[np.argmin(times[runners] / wide[runners])])


@host
def sampling_chain(
    temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0, frequency_penalty: float = 0.0, logit_bias: Mapping[int, float] | None = None, *,
    no_repeat_ngram: int = 0, bad_words: Sequence[Sequence[int]] = (), suppress_tokens: Sequence[int] = (),
    min_tokens: int = 0, eos_ids: Sequence[int] = (), top_n_sigma: float = 0.0, top_h: float = 1.0,
    typical: float = 1.0, epsilon_cutoff: float = 0.0, eta_cutoff: float = 0.0,
) -> Chain:  # fmt: skip
    """Make the chain of the usual settings, in Hugging Face's order, without the steps that are off.

    Before ``min_tokens`` no token of ``eos_ids`` comes. Steps that Hugging Face has not stand with their like.

    >>> sampling_chain(0.8, top_p=0.95, repetition_penalty=1.1)
    (('repetition_penalty', 1.1), ('temperature', 0.8), ('top_p', 0.95))
    >>> sampling_chain(top_p=0.95, min_tokens=3, eos_ids=[2])
    (('min_tokens', (3, (2,))), ('greedy', None))
    """
    top_k, no_repeat_ngram = whole("top_k", top_k), whole("no_repeat_ngram", no_repeat_ngram)
    bias, least = tuple(sorted((logit_bias or {}).items())), (whole("min_tokens", min_tokens), tuple(eos_ids))
    steps: list[tuple[str, Any, Any]] = [  # name, value, the value that turns the step off
        ("logit_bias", bias, ()), ("repetition_penalty", repetition_penalty, 1),
        ("presence_penalty", presence_penalty, 0), ("frequency_penalty", frequency_penalty, 0),
        ("no_repeat_ngram", no_repeat_ngram, 0), ("bad_words", tuple(map(tuple, bad_words)), ()),
        ("min_tokens", least, (0, least[1])), ("suppress_tokens", tuple(suppress_tokens), ()),
    ]  # fmt: skip
    if temperature == 0:
        steps += [("greedy", None, "always on")]
    else:
        steps += [("temperature", temperature, 1), ("top_n_sigma", top_n_sigma, 0), ("top_h", top_h, 1)]
        steps += [("top_k", top_k, 0), ("top_p", top_p, 1), ("min_p", min_p, 0), ("typical", typical, 1)]
        steps += [("epsilon_cutoff", epsilon_cutoff, 0), ("eta_cutoff", eta_cutoff, 0)]
    return tuple((name, value) for name, value, off in steps if value != off)


@host
def settings_chain(chain: Chain | None, settings: Mapping[str, Any], eos_ids: Sequence[int] = ()) -> Chain:
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
    return sampling_chain(**{"eos_ids": eos_ids, **settings}) if chain is None else chain


def _reading(step: Callable[..., Array], ids: Array) -> Callable[[Array, Any], Array]:
    return lambda logits, value: step(logits, ids, value)


@host
def apply_chain(
    logits: Float[Array, " V"], prompt_ids: Sequence[int], output_ids: Sequence[int], chain: Chain
) -> Float[Array, " V"]:
    """Apply the steps of a chain one after the other.

    A step has the name of its operation and its value, or its values as a tuple; beside them ("min_tokens", (n, ids))
    and ("min_length", (n, ids)) suppress ids before there are n tokens of output, or of prompt and output;
    ("force_tokens", (n, ids)) forces them where there are n of both; ("exponential_decay", (n, factor, ids)) counts
    what is beyond n tokens of output.

    >>> apply_chain(np.array([3.0, 2.0, 1.0]), [0], [], (("repetition_penalty", 3.0), ("top_k", 1)))
    array([-inf,   2., -inf])
    >>> apply_chain(np.array([3.0, 2.0, 1.0]), [0], [1], (("min_tokens", (2, (0,))), ("top_k", (1, "all"))))
    array([-inf,   2., -inf])
    """
    def row(ids: Sequence[int]) -> Array:
        return np.array(ids, np.int64)

    def suppress(x: Array, ids: Sequence[int], acts: bool = True) -> Array:
        return bans.suppress_tokens(x, row(ids)) if acts else x

    output, text = row(output_ids), np.concatenate([row(prompt_ids), row(output_ids)])

    steps: dict[str, Callable[[Array, Any], Array]] = {
        **{step.__name__: step for step in _ALONE},
        **{step.__name__: _reading(step, text) for step in _OF_TEXT},
        **{step.__name__: _reading(step, output) for step in _OF_OUTPUT},
        "suppress_tokens": suppress,
        "min_length": lambda x, value: suppress(x, value[1], len(text) < value[0]),
        "min_tokens": lambda x, value: suppress(x, value[1], len(output) < value[0]),
        "force_tokens": lambda x, value: bans.force_tokens(x, row(value[1])) if len(text) == value[0] else x,
        "exponential_decay": lambda x, value: bans.exponential_decay(
            x, row(value[2]), value[1], max(len(output) - value[0], 0)
        ),
        "greedy": lambda x, _: cuts.greedy(x),
        "top_k": lambda x, k: cuts.top_k(x, *(k if isinstance(k, tuple) else (k,))),
        "log_softmax": lambda x, _: log_softmax(x),
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
    require(logits.ndim == 1 and bool(np.isfinite(largest)), "C1", f"a row's largest logit is finite, got {largest}")
    left = np.flatnonzero(logits > -np.inf)  # cut tokens have probability 0 and change no running sum
    return int(left[draw(softmax(logits[left]), u)])
