"""Biases by distance: slopes as the paper's code halves them, buckets in whole numbers, scores one by one."""

import numpy as np

from golden.values import Array

__all__ = ["alibi_bias", "alibi_slopes", "t5_bias", "t5_buckets"]


def alibi_slopes(num_heads: int) -> Array:
    power = 1
    while 2 * power <= num_heads:
        power *= 2
    start = 2.0 ** -(8 / power)
    slopes = [start * start**n for n in range(power)]
    if power < num_heads:
        slopes += alibi_slopes(2 * power)[0::2][: num_heads - power].tolist()
    return np.array(slopes)


def alibi_bias(slopes: Array, T: int, S: int) -> Array:
    bias = np.zeros((len(slopes), T, S))
    for n, t, s in np.ndindex(bias.shape):
        bias[n, t, s] = -slopes[n] * abs(S - T + t - s)
    return bias


def t5_buckets(ahead: Array, num_buckets: int, *, max_distance: int = 128, bidirectional: bool = True) -> Array:
    buckets = np.zeros(np.shape(ahead), np.int64)
    for at, a in np.ndenumerate(np.asarray(ahead)):
        buckets[at] = _bucket(int(a), num_buckets, max_distance, bidirectional)
    return buckets


def t5_bias(table: Array, T: int, S: int, *, max_distance: int = 128, bidirectional: bool = True) -> Array:
    bias = np.zeros((table.shape[1], T, S))
    for n, t, s in np.ndindex(bias.shape):
        bias[n, t, s] = table[_bucket(s - (S - T + t), len(table), max_distance, bidirectional), n]
    return bias


def _bucket(ahead: int, num_buckets: int, max_distance: int, bidirectional: bool) -> int:
    each = num_buckets // 2 if bidirectional else num_buckets
    first = each if bidirectional and ahead > 0 else 0
    distance = abs(ahead) if bidirectional else max(-ahead, 0)
    exact, steps = each // 2, each - each // 2
    if distance < exact:
        return first + distance
    step = 0  # floor of log(distance / exact) to the base of (max_distance / exact)^(1 / steps)
    while step < steps - 1 and distance**steps * exact ** (step + 1) >= max_distance ** (step + 1) * exact**steps:
        step += 1
    return first + exact + step
