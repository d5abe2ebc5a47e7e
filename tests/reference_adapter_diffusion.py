"""Denoisers and autoencoders, for ``compare.py``: ``CLASSES`` names what is here by its class in diffusers."""

import contextlib
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpu.device import to_host, use
from refimpl.files.checkpoint import read_json, read_safetensors
from refimpl.media import operations
from refimpl.media.dit import dit, dit_spec, dit_weights
from refimpl.media.vae import autoencoder_spec, autoencoder_weights, decode, encode
from refimpl.models.tensor import Tensor

__all__ = ["CLASSES", "load", "namespace"]


def namespace(name: str) -> Any:
    """Return the operations of an implementation."""
    if name in ("refimpl", "gpu-cpu"):
        return operations if name == "refimpl" else _on_the_cpu()
    from gpu.media import operations as kernels

    return kernels


def _on_the_cpu() -> SimpleNamespace:
    """The executor's kernels where these take the arguments, and NumPy elsewhere."""
    from gpu.executor.operations import OPERATIONS

    def either(name: str) -> Callable[..., Any]:
        kernel, plain = OPERATIONS[name], getattr(operations, name)
        signature = inspect.signature(plain)

        def call(*arrays: Any, **named: Any) -> Any:
            given = signature.bind(*arrays, **named).arguments
            return (kernel.call if kernel.takes(**given) else plain)(**given)

        return call

    known = {name: getattr(operations, name) for name in operations.__all__}
    return SimpleNamespace(**known | {name: either(name) for name in known if name in OPERATIONS})


class DiT:
    """DiTTransformer2DModel: pictures, timesteps and labels in, what the network says out."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor], dtype: Any, ops: Any) -> None:
        self.spec, self.dtype, self.ops = dit_spec(config), dtype, ops
        self.weights = dit_weights(tensors, self.spec, dtype)

    def forward(self, hidden_states: Any, timestep: Any, class_labels: Any) -> dict[str, np.ndarray]:
        each = zip(hidden_states.astype(self.dtype), timestep.tolist(), class_labels.tolist(), strict=True)
        said = [dit(x, t, label, self.weights, self.spec, self.ops) for x, t, label in each]
        return {"sample": np.stack([to_host(x) for x in said])}


class Autoencoder:
    """AutoencoderKL: pictures to moments, latents to pictures."""

    def __init__(
        self, config: Mapping[str, Any], tensors: Mapping[str, Tensor], dtype: np.dtype[Any], ops: Any
    ) -> None:
        self.spec, self.dtype, self.ops = autoencoder_spec(config), dtype, ops
        self.weights = autoencoder_weights(tensors, self.spec, dtype)

    def forward(self, image: Any, latent: Any) -> dict[str, np.ndarray]:
        moments = [encode(each, self.weights, self.spec, self.ops) for each in image.astype(self.dtype)]
        means, logvars = zip(*moments, strict=True)
        decoded = [decode(each, self.weights, self.spec, self.ops) for each in latent.astype(self.dtype)]
        found = {"mean": means, "logvar": logvars, "decoded": decoded}
        return {name: np.stack([to_host(x) for x in each]) for name, each in found.items()}


CLASSES: dict[str, Callable[..., Any]] = {"DiTTransformer2DModel": DiT, "AutoencoderKL": Autoencoder}


class Placed:
    """A model whose passes run on a device."""

    def __init__(self, model: Any, name: str) -> None:
        self.model, self.name = model, name

    def forward(self, **inputs: Any) -> dict[str, np.ndarray]:
        on_host = self.name in ("refimpl", "gpu-cpu")
        with contextlib.nullcontext() if on_host else use(self.name.removeprefix("gpu-")):
            found: dict[str, np.ndarray] = self.model.forward(**inputs)
        return found


def load(path: str) -> Placed:
    """Load a model for the implementation that ADAPTER names, in the dtype of DTYPE."""
    config, name = read_json(Path(path) / "config.json"), os.environ.get("ADAPTER", "refimpl")
    if config["_class_name"] not in CLASSES:
        raise NotImplementedError(f"no {config['_class_name']} here")
    tensors = read_safetensors(Path(path) / "diffusion_pytorch_model.safetensors")
    dtype = np.dtype(os.environ.get("DTYPE", "float32"))
    return Placed(CLASSES[config["_class_name"]](config, tensors, dtype, namespace(name)), name)
