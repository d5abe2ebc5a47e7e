"""Encoders and encoder-decoders on a device: refimpl's models, which are written once, over the device's operations."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import ml_dtypes
import numpy as np

from gpu import device
from gpu.namespace import namespace
from gpu.packed import packed_matrix
from refimpl.contract import Array, UsageError, host
from refimpl.encoder_model import EncoderModel, Place
from refimpl.model import Source
from refimpl.seq2seq_model import Seq2SeqModel, other_model

__all__ = ["load_encoder", "rounded_weights"]

_DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


@host
def load_encoder(
    source: Source, name: str, dtype: str | None = None, *, activations: str = "float32", **settings: Any
) -> EncoderModel | Seq2SeqModel:
    """Make the model of a source ready on a device; ``dtype`` is what its matrices are rounded to.

    ``activations`` and ``settings`` are those of ``gpu.load`` that only decoders take.
    """
    given = [key for key, value in settings.items() if value is not None]
    given += ["activations"] if activations != "float32" else []
    if given:
        raise UsageError(f"{source.path} ({source.spec.family}) is no decoder, and only decoders take {given[0]}")
    if dtype not in (None, *_DTYPES):
        raise UsageError(f"dtype is one of {', '.join(_DTYPES)}, not {dtype!r}")
    weights = _packed_weights(source, dtype) if name == "cpu" else _placed(rounded_weights(source, dtype), name)
    place = Place(namespace(name), nullcontext if name == "cpu" else lambda: device.use(name), device.to_host, name)
    return other_model(source.spec, weights, source.tokenizer, source.path, place)


@host
def rounded_weights(source: Source, dtype: str | None) -> dict[str, Array]:
    """Read weights as float32, the matrices of linear maps rounded to a dtype first."""
    narrow = _DTYPES[dtype or "float32"]
    return {
        key: tensor.read(narrow if _is_matrix(key) else np.float32).astype(np.float32, copy=False)
        for key, tensor in source.weights.items()
    }


def _is_matrix(key: str) -> bool:
    last = key.rpartition(".")[2]
    return last.startswith("w_") or last in ("embedding", "lm_head")


def _packed_weights(source: Source, dtype: str | None) -> dict[str, Any]:
    """Pack the matrices of linear maps, as they are stored unless a dtype is given; read the others as float32."""
    return {
        key: packed_matrix(tensor, dtype and _DTYPES[dtype]) if _is_matrix(key) else tensor.read(np.float32)
        for key, tensor in source.weights.items()
    }


def _placed(weights: Mapping[str, Array], name: str) -> dict[str, Array]:
    with device.use(name):
        return {key: device.array(weight) for key, weight in weights.items()}
