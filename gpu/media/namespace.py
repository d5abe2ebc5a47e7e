"""Which operations a solver and a network run on: those of the device that was asked for."""

from typing import Any

from gpu import device
from refimpl.contract import host

__all__ = ["namespace", "placed"]


@host
def namespace(name: str) -> Any:
    """Return the operations of a device: kernels on ``cuda`` and ``emulated``. On the ``cpu`` they are the
    specification's: NumPy hands the matrices of a picture to BLAS, which is faster than packing them anew every time.

    >>> namespace("cpu").__name__
    'refimpl.media.operations'
    """
    if name == "cpu":
        from refimpl.media import operations as plain

        return plain
    from gpu.media import operations as kernels

    return kernels


@host
def placed(weights: dict[str, Any], name: str) -> dict[str, Any]:
    """Bring weights to a device once, so that no operation has to."""
    return weights if name == "cpu" else {key: device.array(weight) for key, weight in weights.items()}
