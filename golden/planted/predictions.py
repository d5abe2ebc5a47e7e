"""Wrong readings of a denoiser's output."""

from golden.derive import predictions

__all__ = ["epsilon_whatever", "flow_backwards", "sigma_of_k_diffusion", "swapped", "v_backwards"]

Weights = tuple[float, float]


def epsilon_whatever(alpha: float, sigma: float, prediction: str) -> Weights:
    """The output taken for the noise, whatever the model was trained to say."""
    return predictions.x0_weights(alpha, sigma, "epsilon")


def v_backwards(alpha: float, sigma: float, prediction: str) -> Weights:
    """v = sigma x0 - alpha noise."""
    other = {"v_prediction": "edm", "edm": "v_prediction"}.get(prediction, prediction)
    return predictions.x0_weights(alpha, sigma, other)


def flow_backwards(alpha: float, sigma: float, prediction: str) -> Weights:
    """The velocity from noise to picture: x0 - noise."""
    x, output = predictions.x0_weights(alpha, sigma, prediction)
    return x, -output


def sigma_of_k_diffusion(alpha: float, sigma: float, prediction: str) -> Weights:
    """sigma / alpha taken for sigma, and 1 for alpha: x was not scaled so."""
    return predictions.x0_weights(1.0, sigma / alpha, prediction)


def swapped(alpha: float, sigma: float, prediction: str) -> Weights:
    """The weights of the picture where those of the noise are asked for."""
    return predictions.x0_weights(alpha, sigma, prediction)
