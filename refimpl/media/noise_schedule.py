"""How much noise there is at each training step, and at which of them a solver stops. float64 numbers of the host."""

import numpy as np

from refimpl.contract import Array, UsageError, host

__all__ = [
    "alphas_bar", "betas", "check_counts", "cosine_betas", "previous_timesteps", "shift_snr", "timesteps",
    "zero_terminal_snr",
]


@host
def cosine_betas(count: int, largest: float = 0.999) -> Array:
    """Return the betas of the cosine schedule: alpha_bar(t) = cos^2((t + 0.008) / 1.008 pi / 2).

    Source: Nichol, Dhariwal, Improved denoising diffusion probabilistic models, 2021.

    >>> cosine_betas(2).round(3)
    array([0.506, 0.999])
    """
    bar = np.cos((np.arange(count + 1) / count + 0.008) / 1.008 * np.pi / 2) ** 2
    return np.minimum(1 - bar[1:] / bar[:-1], largest)


@host
def betas(schedule: str, count: int, start: float = 1e-4, end: float = 0.02) -> Array:
    """Return the noise that each training step adds [count]: linear, scaled_linear (in its square root), cosine.

    Source: Ho et al., 2020 (linear); Rombach et al., Latent diffusion, 2022 (scaled_linear).

    >>> betas("linear", 3, 0.1, 0.3)
    array([0.1, 0.2, 0.3])
    """
    match schedule:
        case "linear":
            return np.linspace(start, end, count)
        case "scaled_linear":
            return np.linspace(start**0.5, end**0.5, count) ** 2
        case "squaredcos_cap_v2":
            return cosine_betas(count)
    raise UsageError(f"beta_schedule is linear, scaled_linear or squaredcos_cap_v2, not {schedule!r}")


@host
def zero_terminal_snr(bar: Array) -> Array:
    """Move and stretch sqrt(alpha_bar) so that it ends in 0: nothing of the picture is left at the last step.

    Source: Lin et al., 2023, algorithm 1.

    >>> zero_terminal_snr(np.array([0.81, 0.25]))
    array([0.81, 0.  ])
    """
    root = np.sqrt(bar)
    return ((root - root[-1]) * root[0] / (root[0] - root[-1])) ** 2


@host
def shift_snr(bar: Array, scale: float) -> Array:
    """Divide the signal-to-noise ratio by ``scale``: alpha_bar / (scale + (1 - scale) alpha_bar).

    Source: Yang et al., CogVideoX, 2024, section 2.4; Hoogeboom et al., Simple diffusion, 2023.

    >>> shift_snr(np.array([0.5]), 3.0)
    array([0.25])
    """
    return bar / (scale + (1 - scale) * bar)


@host
def alphas_bar(step_betas: Array) -> Array:
    """Return what is left of the picture's power after each step: the running product of 1 - beta.

    >>> alphas_bar(np.array([0.5, 0.5]))
    array([0.5 , 0.25])
    """
    return np.cumprod(1 - step_betas)


@host
def timesteps(spacing: str, count: int, train: int, *, offset: int = 0, more: int = 0, whole: bool = True) -> Array:
    """Return the training steps at which a solver of ``count`` steps stops, the noisiest first [count].

    ``leading``: i floor(train / count) + offset; ``linspace``: both ends; ``trailing``: the end of each of the equal
    parts. Solvers that leave out the least noisy of ``count + 1`` stops say ``more=1``.

    Source: Lin et al., 2023, table 2.

    >>> [timesteps(spacing, 4, 1000)[:2].tolist() for spacing in ("leading", "linspace", "trailing")]
    [[750.0, 500.0], [999.0, 666.0], [999.0, 749.0]]
    """
    match spacing:
        case "leading":
            steps = np.arange(count + more) * float(train // (count + more)) + offset
        case "linspace":
            steps = np.linspace(0, train - 1, count + more)
            steps = np.round(steps) if whole else steps
        case "trailing":
            return np.round(train - np.arange(count) * (train / count)) - 1
        case _:
            raise UsageError(f"timestep_spacing is leading, linspace or trailing, not {spacing!r}")
    return steps[::-1][:count].astype(np.float64)


@host
def previous_timesteps(stops: Array, train: int, *, by_subtraction: bool = False) -> Array:
    """Return at which timestep each step ends: the next stop; after the last one -1, the picture.

    ``by_subtraction``: floor(train / count) below where it begins, as DDIM's public codes find it. That is not the next
    stop where spacing is linspace, nor where it is trailing and count does not divide train.

    >>> previous_timesteps(np.array([999.0, 499.0]), 1000), previous_timesteps(np.array([999.0, 0.0]), 1000)
    (array([499.,  -1.]), array([ 0., -1.]))
    """
    return stops - train // len(stops) if by_subtraction else np.append(stops[1:], -1.0)


@host
def check_counts(steps: int, train: int) -> None:
    """Refuse a number of steps that the training steps cannot give."""
    if not isinstance(steps, int | np.integer) or isinstance(steps, bool) or not 1 <= steps <= train:
        raise UsageError(f"a picture takes 1 to {train} steps (the model was trained on so many), not {steps!r}")


