"""What a denoiser's output says: four ways to write the same, and an estimate of x0 held in its range."""

from math import hypot

import numpy as np

from refimpl.contract import Array, Float, UsageError, host, op, require, widen

__all__ = ["PREDICTIONS", "clip_x0", "noise_weights", "threshold_x0", "x0_weights"]

PREDICTIONS = ("epsilon", "v_prediction", "sample", "flow_prediction", "edm")


@host
def x0_weights(alpha: float, sigma: float, prediction: str) -> tuple[float, float]:
    """Return the weights of x and of the model's output whose sum is x0.

    With r^2 = alpha^2 + sigma^2: epsilon is the noise; v is (alpha noise - sigma x0) / r; edm is -v; sample is x0
    itself; flow is noise - x0.

    Source: Ho et al., 2020 (epsilon); Salimans, Ho, Progressive distillation, 2022 (v); Lipman et al., 2022 (flow).

    >>> x0_weights(0.6, 0.8, "v_prediction"), x0_weights(0.75, 0.25, "flow_prediction")
    ((0.6, -0.8), (1.0, -0.25))
    """
    r2 = alpha**2 + sigma**2
    match prediction:
        case "epsilon" if alpha > 0:
            return 1 / alpha, -sigma / alpha
        case "epsilon":
            raise UsageError("a model that predicts epsilon says nothing of x0 where all is noise (zero terminal SNR)")
        case "v_prediction":
            return alpha / r2, -sigma / hypot(alpha, sigma)
        case "edm":
            return alpha / r2, sigma / hypot(alpha, sigma)
        case "sample":
            return 0.0, 1.0
        case "flow_prediction":
            return 1 / (alpha + sigma), -sigma / (alpha + sigma)
    raise UsageError(f"a model predicts one of {', '.join(PREDICTIONS)}, not {prediction!r}")


@host
def noise_weights(alpha: float, sigma: float, prediction: str) -> tuple[float, float]:
    """Return the weights of x and of the model's output whose sum is the noise.

    >>> noise_weights(0.6, 0.8, "v_prediction"), noise_weights(0.75, 0.25, "flow_prediction")
    ((0.8, 0.6), (1.0, 0.75))
    """
    if prediction == "epsilon":
        return 0.0, 1.0
    if prediction == "sample":
        if sigma == 0:
            raise UsageError("a model that predicts the sample says nothing of the noise where there is none")
        return 1 / sigma, -alpha / sigma
    if prediction in ("v_prediction", "edm"):
        sign = 1 if prediction == "v_prediction" else -1
        return sigma / (alpha**2 + sigma**2), sign * alpha / hypot(alpha, sigma)
    x, output = x0_weights(alpha, sigma, prediction)  # flow: noise = x0 + output
    return x, output + 1


@op
def clip_x0(x0: Float[Array, "*image"], largest: float) -> Float[Array, "*image"]:
    """Cut an estimate of the picture at the range of its values.

    Math: min(max(x0, -largest), largest); NaN stays NaN.
    Cost: 2 image flop over 2 image elements: bound by memory.
    Numerics: exact in every dtype that holds largest.
    Constraints:
        (C1) largest is a positive number.
    Source: Ho et al., 2020, section 3.4 of the code; Saharia et al., Imagen, 2022, section 2.3 (static thresholding).

    >>> clip_x0(np.array([-3.0, 0.5]), 1.0)
    array([-1. ,  0.5])
    """
    require(largest > 0, "C1", f"values are cut at a positive number, not {largest}")
    return np.clip(widen(x0), -largest, largest).astype(x0.dtype, copy=False)


@op
def threshold_x0(x0: Float[Array, "*image"], quantile: float, largest: float = 1.0) -> Float[Array, "*image"]:
    """Bring an estimate of the picture into its range by a quantile of its own values.

    Math: s = min(max(quantile of abs(x0), 1), largest); min(max(x0, -s), s) / s. The quantile lies at place
        (n - 1) quantile among the sorted values, linear between neighbours.
    Cost: image log2(image) flop to sort, over 2 image elements: bound by memory.
    Numerics: float32 or wider, one cast. A NaN anywhere is NaN everywhere.
    Constraints:
        (C1) quantile is in 0..1, and largest is at least 1.
        (C2) there is at least one value.
    Source: Saharia et al., Imagen, 2022, section 2.3 (dynamic thresholding).

    >>> threshold_x0(np.array([-4.0, 1.0, 2.0]), 0.5, largest=3.0)
    array([-1. ,  0.5,  1. ])
    """
    require(0 <= quantile <= 1 <= largest, "C1", f"a quantile {quantile} in 0..1 and a largest {largest} from 1")
    require(x0.size > 0, "C2", f"a quantile of nothing: x0 is {x0.shape}")
    wide = widen(x0)
    place = (wide.size - 1) * quantile
    low, high = np.sort(abs(wide), axis=None)[[int(place), min(int(place) + 1, wide.size - 1)]].astype(np.float64)
    quantiles = low if low == high else low + (high - low) * (place - int(place))
    s = wide.dtype.type(np.nan if np.isnan(wide).any() else min(max(quantiles, 1.0), largest))
    return np.asarray(np.clip(wide, -s, s) / s).astype(x0.dtype, copy=False)
