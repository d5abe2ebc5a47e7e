"""--verify of a picture: the way of the first one again, by the specification in float64."""

from dataclasses import replace
from typing import Any

import numpy as np

from refimpl.contract import host
from refimpl.media import operations
from refimpl.media.pipeline import open_pipeline, picture_of

__all__ = ["verify_picture"]

_SPREAD = 8.0  # as in ``gpu.verify``: sums that run in another order err so much more


def _error(x: np.ndarray, truth: np.ndarray) -> float:
    return float(np.abs(x - truth).max() / max(np.abs(truth).max(), np.finfo(np.float32).tiny))


def _way(job: Any, dtype: Any) -> list[np.ndarray]:
    """Return the latents of the first picture, and last the picture, as the specification makes them."""
    pipeline = replace(open_pipeline(job.pipeline.path, dtype), scheduler=job.pipeline.scheduler)
    way = list(job.steps(0, pipeline, operations, dtype))
    return [*way, picture_of(pipeline, way[-1], operations)]


@host
def verify_picture(job: Any, way: list[np.ndarray], picture: np.ndarray) -> tuple[bool, list[str]]:
    """Return whether every latent and the picture agree with the reference, and the lines that say so.

    What rounding costs is known from the reference itself, run in float32: on the CPU that is what drew, so there the
    difference is all rounding; kernels add in another order, and may err eight times as much and four units more.
    """
    truth, plain = _way(job, np.float64), _way(job, np.float32)
    names = [f"latent {i}" for i in range(len(truth) - 1)] + ["the picture"]
    lines, worst, allowed = list[str](), 0.0, 4 * float(np.finfo(np.float32).eps)
    for name, ours, rounded, exact in zip(names, [*way, picture], plain, truth, strict=True):
        error, allowed = _error(ours, exact), max(allowed, _SPREAD * _error(rounded, exact) + 4 * 2.0**-23)
        worst = max(worst, error)
        if not error <= allowed:
            lines.append(f"verify   {name} is the first to differ: error {error:.1e}, rounding allows {allowed:.1e}")
            return False, lines
    count = f"{len(truth) - 1} latents and the picture"
    return True, [f"verify   {count} are the reference's in float64: error {worst:.1e}, rounding allows {allowed:.1e}"]
