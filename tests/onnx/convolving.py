"""ONNX's Conv and ConvTranspose as calls of refimpl: the images of a batch one by one, padding always as numbers."""

from typing import Any

import numpy as np

from refimpl.basics.conv import conv2d, conv_transpose2d
from tests.onnx.scope import OutOfScope

__all__ = ["conv_node", "conv_transpose_node"]


def conv_node(x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None, **given: Any) -> np.ndarray:
    """Return the batch convolved."""
    images, kernels, taken = _as_images(x, w, given)
    padding = taken.pop("pads")
    if given.get("auto_pad", "NOTSET").startswith("SAME"):
        missing = [max((-(-n // s) - 1) * s + reach - n, 0) for n, s, reach in _axes(images, kernels, taken)]
        padding = _split(missing, given["auto_pad"])
    y = np.stack([conv2d(image, kernels, b, padding=padding, **taken) for image in images])
    return y.reshape(*y.shape[:2], *y.shape[6 - x.ndim :])


def conv_transpose_node(
    x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None, *, output_shape: list[int] | None = None,
    output_padding: list[int] | None = None, **given: Any,
) -> np.ndarray:  # fmt: skip
    """Return the batch convolved the other way; an output's stated size becomes padding, or output_padding."""
    images, kernels, taken = _as_images(x, w, given)
    padding, axes, auto = taken.pop("pads"), _axes(images, kernels, taken), given.get("auto_pad", "NOTSET")
    more = (*[0] * (4 - x.ndim), *(output_padding or [0] * (x.ndim - 2)))
    if output_shape or auto.startswith("SAME"):
        shape = [*[1] * (4 - x.ndim), *output_shape] if output_shape else [n * s for n, s, _ in axes]
        over = [(n - 1) * s + reach + m - size for (n, s, reach), m, size in zip(axes, more, shape, strict=True)]
        padding = _split([max(total, 0) for total in over], auto)
        more = tuple(m - min(total, 0) for m, total in zip(more, over, strict=True))
    y = np.stack([conv_transpose2d(each, kernels, b, padding=padding, output_padding=more, **taken) for each in images])
    return y.reshape(*y.shape[:2], *y.shape[6 - x.ndim :])


def _as_images(x: np.ndarray, w: np.ndarray, given: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Return a batch of images and keywords; a row of values is an image of one row."""
    axes = x.ndim - 2
    if axes > 2:
        raise OutOfScope("images have two axes")
    lift, pads = (1,) * (2 - axes), given.get("pads", [0] * 2 * axes)
    stride, dilation = ((*lift, *given.get(name, [1] * axes)) for name in ("strides", "dilations"))
    padding = (*[(0, 0)] * len(lift), *zip(pads[:axes], pads[axes:], strict=True))
    keywords = {"stride": stride, "dilation": dilation, "groups": given.get("group", 1), "pads": padding}
    return *(each.reshape(*each.shape[:2], *lift, *each.shape[2:]) for each in (x, w)), keywords


def _axes(x: np.ndarray, w: np.ndarray, taken: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Return of each axis its length, its stride, and how far the kernel reaches."""
    each = zip(x.shape[2:], taken["stride"], taken["dilation"], w.shape[2:], strict=True)
    return [(n, s, d * (taps - 1) + 1) for n, s, d, taps in each]


def _split(totals: list[int], auto_pad: str) -> tuple[tuple[int, int], ...]:
    """Return what stands before and behind; the odd one stands behind for SAME_UPPER only."""
    halves = [(total // 2, total - total // 2) for total in totals]
    return tuple(halves if auto_pad == "SAME_UPPER" else [pair[::-1] for pair in halves])
