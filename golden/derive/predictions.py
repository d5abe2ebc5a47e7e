"""What a denoiser's output says, from its definition: two equations in the picture and the noise, solved."""

from math import sqrt

__all__ = ["noise_weights", "x0_weights"]


def _said(alpha: float, sigma: float, prediction: str) -> tuple[float, float]:
    """Return of what the output is made: so many pictures, and so much noise."""
    r = sqrt(alpha * alpha + sigma * sigma)
    return {
        "epsilon": (0.0, 1.0), "sample": (1.0, 0.0), "v_prediction": (-sigma / r, alpha / r),
        "edm": (sigma / r, -alpha / r), "flow_prediction": (-1.0, 1.0),
    }[prediction]  # fmt: skip


def x0_weights(alpha: float, sigma: float, prediction: str) -> tuple[float, float]:
    """Cramer's rule over x = alpha x0 + sigma noise and output = a x0 + b noise."""
    a, b = _said(alpha, sigma, prediction)
    determinant = alpha * b - sigma * a
    return b / determinant, -sigma / determinant


def noise_weights(alpha: float, sigma: float, prediction: str) -> tuple[float, float]:
    """The other unknown of the same two equations."""
    a, b = _said(alpha, sigma, prediction)
    determinant = alpha * b - sigma * a
    return -a / determinant, alpha / determinant
