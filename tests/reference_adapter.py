"""An adapter for ``compare.py``, which judges an implementation by stored answers of others.

    ADAPTER=refimpl [DTYPE=float64] python compare.py tests/reference_adapter.py FOLDER [--f64]

ADAPTER is refimpl (default), gpu-cpu, gpu-cuda or gpu-emulated.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))


class Batched:
    """A model that takes one sequence, as one that takes a batch."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def logits(self, ids: Sequence[Sequence[int]]) -> np.ndarray:
        return np.stack([self.model.logits(row) for row in ids])

    def greedy(self, ids: Sequence[Sequence[int]], n: int) -> np.ndarray:
        return np.stack([self.model.greedy(row, n) for row in ids])

    def hidden_states(self, ids: Sequence[Sequence[int]]) -> list[np.ndarray]:
        if os.environ.get("DTYPE") == "float64":
            raise NotImplementedError("the stored hidden states have no float64 remainder")
        return [np.stack(layer) for layer in zip(*(self.model.hidden_states(row) for row in ids), strict=True)]


class Whole:
    """An encoder or encoder-decoder, whose outputs are compared by the names that they have there."""

    def __init__(self, model: Any, meta: dict[str, Any]) -> None:
        self.model, self.meta = model, meta

    def forward(self, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        outputs = self.model.forward(**inputs)
        for name in ("hidden_states", "decoder_hidden_states"):
            if name in outputs:
                outputs |= {f"{name}_first": outputs[name][:, 0], "penultimate": outputs[name][-2]}
        if "greedy" in self.meta["outputs"]:
            rows, n = zip(inputs["input_ids"], inputs["attention_mask"], strict=True), self.meta["outputs"]["greedy"][1]
            outputs["greedy"] = np.array([self.model.greedy(ids, n, mask) for ids, mask in rows])
        return outputs


def wrapped(model: Any, path: str) -> Any:
    if hasattr(model, "logits"):
        return Batched(model)
    return Whole(model, json.loads((Path(path) / "meta.json").read_text(encoding="utf-8")))


def load(path: str) -> Any:
    if "_class_name" in json.loads((Path(path) / "config.json").read_text(encoding="utf-8")):
        from tests import reference_adapter_diffusion as diffusion

        return diffusion.load(path)
    match os.environ.get("ADAPTER", "refimpl"):
        case "refimpl":
            import refimpl

            return wrapped(refimpl.load(path, dtype=os.environ.get("DTYPE", "float32")), path)
        case "gpu-cpu" | "gpu-cuda" | "gpu-emulated" as name:
            import gpu

            return wrapped(gpu.load(path, device=name.removeprefix("gpu-")), path)
        case other:
            raise ValueError(f"ADAPTER is refimpl, gpu-cpu, gpu-cuda or gpu-emulated, not {other!r}")


def process_logits(path: str, input_ids: Any, logits: Any, config: dict[str, Any]) -> np.ndarray:
    """Apply a chain of logits processors; it runs on the host, whoever computes the logits."""
    from tests import reference_adapter_samplers as samplers

    return samplers.process_logits(path, input_ids, logits, config)


def run_scheduler(path: str, x_init: Any, w: Any, a: float, noise: Any, meta: dict[str, Any]) -> np.ndarray:
    """Run a scheduler over the specification's operations, or over the kernels."""
    from tests import reference_adapter_schedulers as schedulers

    name, dtype = os.environ.get("ADAPTER", "refimpl"), os.environ.get("DTYPE", "float32")
    arrays = [np.asarray(array, dtype) for array in (x_init, w, noise)]
    if name in ("refimpl", "gpu-cpu"):  # solver steps on the CPU are the specification's
        from refimpl.media import operations as reference

        return schedulers.trajectory(path, *arrays[:2], a, arrays[2], meta, reference)
    import gpu.device
    from gpu.media import operations as kernels

    with gpu.device.use(name.removeprefix("gpu-")):
        return schedulers.trajectory(path, *arrays[:2], a, arrays[2], meta, kernels)
