"""Steps of solvers and guidance, number by number, from their definitions."""

import math
import statistics

import numpy as np

from golden.values import Array

__all__ = [
    "clip_x0", "guide", "guided_combination", "linear_combination", "rescale_guidance", "scale_by_exp", "threshold_x0",
]  # fmt: skip


def _each(shape: tuple[int, ...], numbers: list[float]) -> Array:
    return np.array(numbers, np.float64).reshape(shape)


def linear_combination(terms: Array, weights: Array) -> Array:
    columns = terms.reshape(len(terms), -1).T.tolist()
    pairs = [[(w, x) for w, x in zip(weights.tolist(), column, strict=True) if w != 0] for column in columns]
    return _each(terms.shape[1:], [math.fsum(w * x for w, x in column) for column in pairs])


def guide(cond: Array, uncond: Array, guidance_scale: float) -> Array:
    if guidance_scale == 1:
        return cond
    if guidance_scale == 0:
        return uncond
    pairs = zip(cond.ravel().tolist(), uncond.ravel().tolist(), strict=True)
    return _each(cond.shape, [guidance_scale * c + (1 - guidance_scale) * u for c, u in pairs])


def guided_combination(
    terms: Array, weights: Array, cond: Array, uncond: Array, guidance_scale: float, weight: float
) -> Array:
    guided = guide(cond, uncond, guidance_scale)
    return linear_combination(np.stack([*terms, guided]), np.append(weights, weight))


def scale_by_exp(x: Array, exponent: Array, scale: float) -> Array:
    pairs = zip(x.ravel().tolist(), exponent.ravel().tolist(), strict=True)
    return _each(x.shape, [a * math.exp(scale * b) for a, b in pairs])


def rescale_guidance(guided: Array, cond: Array, rescale: float) -> Array:
    spread = statistics.pstdev(guided.ravel().tolist())
    if spread == 0:
        return guided
    ratio = statistics.pstdev(cond.ravel().tolist()) / spread
    return _each(guided.shape, [rescale * ratio * x + (1 - rescale) * x for x in guided.ravel().tolist()])


def clip_x0(x0: Array, largest: float) -> Array:
    return _each(x0.shape, [x if x != x else math.copysign(min(abs(x), largest), x) for x in x0.ravel().tolist()])


def threshold_x0(x0: Array, quantile: float, largest: float = 1.0) -> Array:
    if any(x != x for x in x0.ravel().tolist()):
        return np.full(x0.shape, math.nan)
    sizes = sorted(abs(x) for x in x0.ravel().tolist())
    place = quantile * (len(sizes) - 1)
    below, above = sizes[math.floor(place)], sizes[math.ceil(place)]
    s = below if below == above else below + (above - below) * (place - math.floor(place))
    s = min(max(s, 1.0), largest)
    return _each(x0.shape, [math.copysign(min(abs(x), s), x) / s for x in x0.ravel().tolist()])
