"""The fast twin of ``refimpl``: the same operations and models, on the devices that are there."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu.model import load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    """Import kernels and tokenizers when a model is wanted, not before."""
    if name != "load":
        raise AttributeError(f"module 'gpu' has no attribute {name!r}")
    from gpu.model import load

    return load
