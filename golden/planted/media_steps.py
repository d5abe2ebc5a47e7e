"""Faults of solver steps and guidance."""

import numpy as np

from golden.derive import media_steps
from golden.values import Array

__all__ = [
    "clipped_at_one", "first_term_alone", "guidance_of_the_paper", "guided_as_unconditional", "guided_twice",
    "hidden_term_read", "log_variance", "nan_clipped", "nearest_quantile", "quantile_below_one", "rescaled_by_range",
    "nan_left_out", "rescaled_fully", "spread_of_sample", "swapped_branches", "thresholded_unscaled", "unguided",
    "w_taken_for_s", "weights_in_reverse", "zero_spread_divided",
]  # fmt: skip


def weights_in_reverse(terms: Array, weights: Array) -> Array:
    """The newest estimate gets the oldest one's weight."""
    return media_steps.linear_combination(terms, weights[::-1])


def first_term_alone(terms: Array, weights: Array) -> Array:
    """History is forgotten."""
    return media_steps.linear_combination(terms[:1], weights[:1])


def hidden_term_read(terms: Array, weights: Array) -> Array:
    """0 times what is not there: NaN."""
    return np.asarray(np.tensordot(weights, terms, 1))


def guidance_of_the_paper(cond: Array, uncond: Array, guidance_scale: float) -> Array:
    """w of Ho and Salimans, which is s - 1."""
    return media_steps.guide(cond, uncond, guidance_scale + 1)


def w_taken_for_s(cond: Array, uncond: Array, guidance_scale: float) -> Array:
    """The paper's number in the formula of the others."""
    return media_steps.guide(cond, uncond, guidance_scale - 1)


def swapped_branches(cond: Array, uncond: Array, guidance_scale: float) -> Array:
    """Away from the prompt."""
    return media_steps.guide(uncond, cond, guidance_scale)


def unguided(
    terms: Array, weights: Array, cond: Array, uncond: Array, guidance_scale: float, weight: float
) -> Array:
    """The conditional output alone."""
    return media_steps.guided_combination(terms, weights, cond, uncond, 1.0, weight)


def guided_twice(
    terms: Array, weights: Array, cond: Array, uncond: Array, guidance_scale: float, weight: float
) -> Array:
    """The guided output is guided once more."""
    guided = media_steps.guide(cond, uncond, guidance_scale)
    return media_steps.guided_combination(terms, weights, guided, uncond, guidance_scale, weight)


def log_variance(x: Array, exponent: Array, scale: float) -> Array:
    """The logarithm of the variance taken for that of the spread."""
    return media_steps.scale_by_exp(x, exponent, 2 * scale)


def rescaled_fully(guided: Array, cond: Array, rescale: float) -> Array:
    """All contrast is taken back, whatever was asked."""
    return media_steps.rescale_guidance(guided, cond, 1.0)


def rescaled_by_range(guided: Array, cond: Array, rescale: float) -> Array:
    """The largest values instead of the spreads."""
    ratio = np.abs(cond).max() / np.abs(guided).max()
    return np.asarray(guided * (rescale * ratio + 1 - rescale))


def spread_of_sample(guided: Array, cond: Array, rescale: float) -> Array:
    """Spreads about 0 instead of about the mean."""
    ratio = np.sqrt((cond**2).mean() / (guided**2).mean())
    return np.asarray(guided * (rescale * ratio + 1 - rescale))


def zero_spread_divided(guided: Array, cond: Array, rescale: float) -> Array:
    """Division by a spread of zero."""
    with np.errstate(all="ignore"):
        return np.asarray(guided * (rescale * cond.std() / guided.std() + 1 - rescale))


def clipped_at_one(x0: Array, largest: float) -> Array:
    """The range is -1..1, whatever was asked."""
    return media_steps.clip_x0(x0, 1.0)


def nan_clipped(x0: Array, largest: float) -> Array:
    """fmin and fmax hide NaN."""
    return np.asarray(np.fmax(np.fmin(x0, largest), -largest))


def nearest_quantile(x0: Array, quantile: float, largest: float = 1.0) -> Array:
    """A quantile that is one of the values."""
    s = min(max(float(np.quantile(np.abs(x0), quantile, method="lower")), 1.0), largest)
    return np.asarray(np.clip(x0, -s, s) / s)


def quantile_below_one(x0: Array, quantile: float, largest: float = 1.0) -> Array:
    """A picture in its range is stretched."""
    s = min(float(np.quantile(np.abs(x0), quantile)), largest)
    return np.asarray(np.clip(x0, -s, s) / s)


def thresholded_unscaled(x0: Array, quantile: float, largest: float = 1.0) -> Array:
    """Cut, but not divided."""
    s = min(max(float(np.quantile(np.abs(x0), quantile)), 1.0), largest)
    return np.asarray(np.clip(x0, -s, s))


def guided_as_unconditional(
    terms: Array, weights: Array, cond: Array, uncond: Array, guidance_scale: float, weight: float
) -> Array:
    """A scale of 1 taken for off, and off for the unconditional branch."""
    return media_steps.guided_combination(terms, weights, cond, uncond, 0.0, weight)


def nan_left_out(x0: Array, quantile: float, largest: float = 1.0) -> Array:
    """The quantile of what is no NaN: the rest looks well."""
    s = min(max(float(np.nanquantile(np.abs(x0), quantile)), 1.0), largest)
    return np.asarray(np.clip(x0, -s, s) / s)
