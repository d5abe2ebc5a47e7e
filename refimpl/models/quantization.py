"""The key quantization_config of a config.json: which ways of storing weights are read, and what they say.

The tensors tell the rest (see files/scales.py): float8 has scales beside it, MXFP4 is blocks. Activations are not
rounded here, whatever a checkpoint says about them: that is what an engine does to be fast.
"""

from collections.abc import Mapping
from typing import Any

from refimpl.contract import CheckpointError, host

__all__ = ["block_size", "check_quantization"]

_BOOKKEEPING = frozenset((
    "quant_method", "fmt", "activation_scheme", "modules_to_not_convert", "ignored_layers", "dequantize", "scale_fmt",
    "activation_scale_ub", "config_groups", "format", "ignore", "quantization_status", "global_compression_ratio",
    "version", "weight_block_size", "modules_to_convert", "use_cache", "swizzle", "_load_in_4bit", "_load_in_8bit",
))  # fmt: skip
_METHODS = ("fp8", "fbgemm_fp8", "mxfp4", "compressed-tensors")
_MOST = 2**20  # of a side of a block


@host
def check_quantization(given: Any, where: str = "config.json") -> None:
    """Refuse a quantization_config that stores weights in another way than as float8 with scales or MXFP4.

    >>> from refimpl.models.quantization import check_quantization
    >>> check_quantization({"quant_method": "fp8", "weight_block_size": [128, 128]})
    >>> check_quantization({"quant_method": "gptq", "bits": 4})
    Traceback (most recent call last):
    ...
    refimpl.contract.CheckpointError: config.json: weights quantised by 'gptq' are not supported; read are fp8, ...
    """
    method = given.get("quant_method") if isinstance(given, dict) else given
    if not isinstance(given, dict) or not isinstance(method, str) or method not in _METHODS:
        known = ", ".join(_METHODS)
        raise CheckpointError(
            f"{where}: weights quantised by {_shown(method)} are not supported; read are {known}, GGUF, plain weights"
        )
    if given.get("expert_dtype") == "fp8":
        given = {key: value for key, value in given.items() if key != "expert_dtype"}
    for key in sorted(given.keys() - _BOOKKEEPING, key=str):
        if given[key] not in (None, False, "", [], {}):
            raise CheckpointError(
                f"{where}: key quantization_config.{_shown(key)} = {_shown(given[key])} is not supported"
            )
    if method == "compressed-tensors":
        _check_groups(given, where)
    block_size(given, where)


@host
def block_size(given: Any, where: str = "config.json") -> tuple[int, int]:
    """Read how many rows and columns share a scale where scales are a matrix: 128 of each, unless the file says else.

    >>> block_size({"weight_block_size": [64, 32]}), block_size(None)
    ((64, 32), (128, 128))
    """
    sizes = given.get("weight_block_size") if isinstance(given, dict) else None
    if sizes is None and isinstance(given, dict) and given.get("quant_method") == "compressed-tensors":
        sizes = next((group["weights"].get("block_structure") for group in given["config_groups"].values()), None)
    sizes = [128, 128] if sizes is None else sizes
    if not isinstance(sizes, list) or len(sizes) != 2 or not all(type(n) is int and 0 < n <= _MOST for n in sizes):
        raise CheckpointError(f"{where}: weight_block_size must be two numbers of 1 to {_MOST}, not {_shown(sizes)}")
    return sizes[0], sizes[1]


def _check_groups(given: Mapping[str, Any], where: str) -> None:
    groups = given.get("config_groups")
    groups = list(groups.values()) if isinstance(groups, dict) else []
    weights = [group.get("weights") if isinstance(group, dict) else None for group in groups]
    fits = all(isinstance(own, dict) and (own.get("num_bits"), own.get("type")) == (8, "float") for own in weights)
    if not weights or not fits:
        raise CheckpointError(f"{where}: compressed-tensors are read where all weights are floats of 8 bits")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
