"""Elementary functions on sixteen lanes, and the two norms: what a decoder needs between its matrices.

Every row is summed in one fixed order, sixteen partial sums by index modulo 16 folded by halves at the end, so that
a row's bits depend on nothing but the row.
"""

from gpu.executor.jit import inlined
from gpu.executor.vector import (
    LANES,
    fma,
    fold_sum,
    is_nan,
    keep,
    less,
    load_part,
    power_of_two,
    round_even,
    select,
    splat,
    store_part,
    vmax,
    vsqrt,
)  # fmt: skip

__all__ = ["ACTIVATIONS", "GATED", "activate", "activate_gated", "cap", "exp", "layer_norm_row", "rms_norm_row", "tanh"]

ACTIVATIONS = ("relu", "gelu_erf", "gelu_tanh", "gelu_quick", "silu")
GATED = (*ACTIVATIONS, "swiglu_clamped")  # those of a gate
_QUICK, _CLAMPED = ACTIVATIONS.index("gelu_quick"), GATED.index("swiglu_clamped")


@inlined
def exp(x):
    """Return e to the x: 0 below -87.3, at most 2.4e38 from 88.4 on, NaN for NaN.

    Math:       x = n ln 2 + r, |r| <= ln 2 / 2, exp x = 2^n P(r), P of degree 6; ln 2 in two parts
    Numerics:   relative error below 1e-7
    Source:     Cephes expf (Moshier), its coefficients
    """
    bounded = select(less(splat(88.37), x), splat(88.37), vmax(x, splat(-87.4)))
    n = round_even(bounded * splat(1.44269504088896341))
    r = fma(n, splat(2.12194440e-4), fma(n, splat(-0.693359375), bounded))
    p = fma(splat(1.9875691500e-4), r, splat(1.3981999507e-3))
    p = fma(p, r, splat(8.3334519073e-3))
    p = fma(p, r, splat(4.1665795894e-2))
    p = fma(p, r, splat(1.6666665459e-1))
    p = fma(p, r, splat(5.0000001201e-1))
    p = fma(p, r * r, r) + splat(1.0)
    value = select(less(x, splat(-87.3)), splat(0.0), p * power_of_two(n))
    return select(is_nan(x), x, value)


@inlined
def tanh(x):
    """Return the hyperbolic tangent.

    Math:       1 - 2 / (e^2x + 1); an odd polynomial of degree 11 where |x| < 0.625, since there that cancels
    Numerics:   relative error below 2e-7
    Source:     Cephes tanhf (Moshier), its coefficients
    """
    square = x * x
    p = fma(splat(-5.70498872745e-3), square, splat(2.06390887954e-2))
    p = fma(p, square, splat(-5.37397155531e-2))
    p = fma(p, square, splat(1.33314422036e-1))
    p = fma(p, square, splat(-3.33332819422e-1))
    value = splat(1.0) - splat(2.0) / (exp(x + x) + splat(1.0))
    return select(less(square, splat(0.390625)), fma(p * square, x, x), value)


@inlined
def cap(x, softcap):
    """Return softcap tanh(x / softcap)."""
    return splat(softcap) * tanh(x / splat(softcap))


@inlined
def _gelu_erf(x):
    """Return x (1 + erf(x / sqrt 2)) / 2.

    Math:       erfc z = t exp(-z^2 + P(t)), t = 1 / (1 + z/2), for z >= 0; x Phi(x) = x erfc(-x / sqrt 2) / 2
    Numerics:   relative error of erfc below 1.2e-7 in exact arithmetic
    Source:     Numerical Recipes, erfcc
    """
    positive = less(splat(0.0), x)
    z = select(positive, x, splat(0.0) - x) * splat(0.70710678118654752)
    t = splat(1.0) / fma(splat(0.5), z, splat(1.0))
    p = fma(splat(0.17087277), t, splat(-0.82215223))
    p = fma(p, t, splat(1.48851587))
    p = fma(p, t, splat(-1.13520398))
    p = fma(p, t, splat(0.27886807))
    p = fma(p, t, splat(-0.18628806))
    p = fma(p, t, splat(0.09678418))
    p = fma(p, t, splat(0.37409196))
    p = fma(p, t, splat(1.00002368))
    p = fma(p, t, splat(-1.26551223))
    tail = splat(0.5) * t * exp(p - z * z)
    return x * select(positive, splat(1.0) - tail, tail)


@inlined
def activate(x, code):
    """Return the activation of that index in ``ACTIVATIONS``.

    Math:       silu x s(x); gelu_tanh x s(2 sqrt(2/pi) (x + 0.044715 x^3)), since (1 + tanh u) / 2 = s(2u);
                gelu_quick x s(1.702 x); s the logistic function
    """
    if code == 0:
        return select(less(x, splat(0.0)), splat(0.0), x)
    if code == 1:
        return _gelu_erf(x)
    u = x
    if code == 2:
        u = splat(1.5957691216057308) * fma(splat(0.044715) * x, x * x, x)
    elif code == 3:
        u = splat(1.702) * x
    return x / (splat(1.0) + exp(splat(0.0) - u))


@inlined
def activate_gated(x, up, code, limit):
    """Return the activation of that index in ``GATED`` of a gate, times ``up``; ``limit`` is that of the clamped one.

    Math:       act(x) up;  swiglu_clamped: g s(1.702 g) (u + 1), g = min(x, limit), u = max(-limit, min(up, limit))
    """
    if code == _CLAMPED:
        most, least = splat(limit), splat(-limit)
        x, up = select(less(most, x), most, x), select(less(most, up), most, up)
        return activate(x, _QUICK) * (select(less(up, least), least, up) + splat(1.0))
    return activate(x, code) * up


@inlined
def rms_norm_row(x, gain, out, width, eps):
    """Write x / sqrt(mean x^2 + eps) * gain for one row of ``width`` floats.

    ``x``, ``gain`` and ``out`` are addresses; ``out`` may be ``x``.
    """
    total = splat(0.0)
    for i in range(0, width, LANES):
        part = load_part(x + 4 * i, width - i)
        total = fma(part, part, total)
    root = vsqrt(splat(fold_sum(total)) / splat(width) + splat(eps))
    for i in range(0, width, LANES):
        part = load_part(x + 4 * i, width - i) / root
        store_part(out + 4 * i, part * load_part(gain + 4 * i, width - i), width - i)


@inlined
def layer_norm_row(x, gain, bias, out, width, eps):
    """Write (x - mean) / sqrt(variance + eps) * gain + bias for one row, centred twice; ``bias`` 0 is none."""
    total = splat(0.0)
    for i in range(0, width, LANES):
        total = total + load_part(x + 4 * i, width - i)
    mean = splat(fold_sum(total)) / splat(width)
    total = splat(0.0)
    for i in range(0, width, LANES):  # what rounding the mean left behind
        total = total + keep(load_part(x + 4 * i, width - i) - mean, 0, width - i, splat(0.0))
    rest = splat(fold_sum(total)) / splat(width)
    total = splat(0.0)
    for i in range(0, width, LANES):
        part = keep(load_part(x + 4 * i, width - i) - mean - rest, 0, width - i, splat(0.0))
        total = fma(part, part, total)
    root = vsqrt(splat(fold_sum(total)) / splat(width) + splat(eps))
    for i in range(0, width, LANES):
        part = (load_part(x + 4 * i, width - i) - mean - rest) / root * load_part(gain + 4 * i, width - i)
        if bias != 0:
            part = part + load_part(bias + 4 * i, width - i)
        store_part(out + 4 * i, part, width - i)
