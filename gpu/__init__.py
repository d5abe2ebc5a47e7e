"""The fast twin of ``refimpl``: the same operations and models, on the devices that are there."""

from typing import TYPE_CHECKING

from refimpl.contract import host

if TYPE_CHECKING:
    from gpu.model import Model

__all__ = ["load"]


@host
def load(
    ref: str, device: str = "auto", *, dtype: str | None = None, threads: int | None = None,
    activations: str = "float32", context: int | None = None, offline: bool = False,
) -> "Model":  # fmt: skip
    """Load a model from a folder, a GGUF file, org/name of the hub, or smollm2; see ``gpu.model.Model``.

    ``dtype`` converts the weights (None: as they are stored); ``activations`` float32 or int8; ``context`` is the most
    tokens of a sequence (None: as many as the model was made for).
    """
    from gpu.model import load_model  # kernels and tokenizers are imported when a model is wanted, not before

    return load_model(
        ref, device, dtype=dtype, threads=threads, activations=activations, context=context, offline=offline
    )
