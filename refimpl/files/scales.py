"""Tensors of few bits with their scales beside them, as one: float8 and the MXFP4 of gpt-oss.

    X.weight float8 [O, D] and X.weight_scale_inv [O / 128, D / 128]    w = q scale: DeepSeek-V3, Qwen3
    X.weight float8 [O, D] and X.weight_scale [], [1], [O] or [O, 1]    w = q scale: a scale for all, or for each row
    X_blocks uint8 [E, O, D / 32, 16] and X_scales uint8 [E, O, D / 32] MXFP4, a pair of neighbours a byte

What is made of them is made when it is asked for: a checkpoint may be larger than the memory.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from refimpl.contract import Array, CheckpointError, UInt8, host
from refimpl.models.quantization import block_size, check_quantization
from refimpl.models.tensor import Tensor

__all__ = ["join_scales", "mxfp4_blocks"]

_CODES = ("float8_e4m3fn", "float8_e5m2")
_FLOATS = ("float32", "float16", "bfloat16", "float64", "float8_e8m0fnu")
_OF_ACTIVATIONS = (".input_scale", ".activation_scale", ".input_scale_ub")


@host
def join_scales(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Join float8 and MXFP4 tensors with their scales, lazily, and leave all others as they are.

    What a file says about the rounding of activations is left out (see models/quantization.py).

    Errors: CheckpointError when quantization_config is not readable, a scale does not fit its tensor or is missing.

    >>> from ml_dtypes import float8_e4m3fn
    >>> held = {"w": np.ones((2, 3), float8_e4m3fn), "w_scale": np.float32([[2], [3]])}
    >>> joined = join_scales({name: Tensor(x.dtype.name, x.shape, x) for name, x in held.items()}, {})
    >>> joined.keys(), joined["w"].read().tolist()
    (dict_keys(['w']), [[2.0, 2.0, 2.0], [3.0, 3.0, 3.0]])
    """
    if given := config.get("quantization_config"):
        check_quantization(given)
    size, joined = block_size(given or None), dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith("_blocks") and name.removesuffix("_blocks") + "_scales" in tensors:
            name = name.removesuffix("_blocks")
            joined[name] = _mxfp4(name, joined.pop(name + "_blocks"), joined.pop(name + "_scales"))
        if tensor.format not in _CODES:
            continue
        places = f"{name}_scale_inv", f"{name}_scale", name.removesuffix(".weight") + ".scale"
        place = next((place for place in places if place in joined), None)
        if place is None:
            raise CheckpointError(f"tensor {name} is {tensor.format}, and none of {', '.join(places)} is beside it")
        scale = joined.pop(place)
        if scale.format not in _FLOATS:
            raise CheckpointError(f"tensor {name} has scales in {scale.format}; expected are floats")
        joined[name] = _float8(name, tensor, scale, size)
        for ending in _OF_ACTIVATIONS:
            joined.pop(name.removesuffix(".weight") + ending, None)
    return joined


def _float8(name: str, codes: Tensor, scale: Tensor, size: tuple[int, int]) -> Tensor:
    """Say which entries of a float8 tensor share a scale, and multiply when asked."""
    shape, axes = codes.shape, len(codes.shape)
    blocks = tuple(-(-length // side) for length, side in zip(shape[-2:], size, strict=False))
    rows = scale.shape if len(scale.shape) == axes else (*scale.shape, 1)
    if axes > 1 and scale.shape == (*shape[:-2], *blocks):
        return _scaled(codes, scale, size)
    fits = len(rows) == axes and all(n in (1, length) for n, length in zip(rows, shape, strict=True))
    if scale.shape not in ((), (1,)) and (axes < 2 or not fits):
        raise CheckpointError(f"tensor {name} {list(shape)} has scales {list(scale.shape)}, which do not fit it")
    return _scaled(codes, scale, None)


def _scaled(codes: Tensor, scale: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Multiply codes with scales, as dequantize_linear does: of blocks of a size, or of rows, or one for all."""
    if len(codes.shape) > 2:

        def part(e: int) -> Tensor:
            each = len(scale.shape) == len(codes.shape)
            return _scaled(codes.part(e), scale.part(e % scale.shape[0]) if each else scale, size)

        return Tensor("float32", codes.shape, lambda: np.stack([part(e).data for e in range(codes.shape[0])]), part)

    def numbers() -> Array:
        table = np.arange(256, dtype=np.uint8).view(codes.data.dtype).astype(np.float32)
        w, steps = table[codes.data.view(np.uint8)], scale.read(np.float32)
        if size is None:
            w *= steps[:, None] if steps.shape == w.shape[:1] and w.ndim > 1 else steps
            return w
        for first, row in zip(range(0, len(w), size[0]), steps, strict=True):
            w[first : first + size[0]] *= np.repeat(row, size[1])[: w.shape[1]]
        return w

    return Tensor("float32", codes.shape, numbers)


def _mxfp4(name: str, blocks: Tensor, scales: Tensor) -> Tensor:
    known = blocks.format == scales.format == "uint8"
    if not known or blocks.shape[-1:] != (16,) or blocks.shape[:-1] != scales.shape or len(scales.shape) < 2:
        raise CheckpointError(
            f"tensor {name} needs uint8 blocks [..., 16] and scales [...], "
            f"got {blocks.format} {list(blocks.shape)} and {scales.format} {list(scales.shape)}"
        )
    shape = (*scales.shape[:-1], 32 * scales.shape[-1])
    parts = None if len(shape) < 3 else lambda e: _mxfp4(name, blocks.part(e), scales.part(e))
    return Tensor("mxfp4", shape, lambda: mxfp4_blocks(blocks.data, scales.data), parts)


@host
def mxfp4_blocks(packed: UInt8[Array, "... B 16"], scale: UInt8[Array, "... B"]) -> UInt8[Array, "... row_bytes"]:
    """Put MXFP4 as gpt-oss has it, neighbours in one byte, into blocks as GGUF has them: scale, then 16 bytes.

    Byte j of a block holds the elements j and j + 16.

    >>> mxfp4_blocks(np.uint8([[[0x21, 0x43] + [0] * 6 + [0x65] + [0] * 7]]), np.uint8([[127]]))[0, :5]
    array([127,  81,  98,   3,   4], dtype=uint8)
    """
    halves, low = np.ascontiguousarray(packed).view("<u8"), np.uint64(0x0F0F0F0F0F0F0F0F)  # eight bytes at a time
    first, last = halves[..., 0], halves[..., 1]
    even, odd = first & low | (last & low) << np.uint64(4), first >> np.uint64(4) & low | last & ~low
    pairs = even.view(np.uint8).astype("<u2") | odd.view(np.uint8).astype("<u2") << np.uint16(8)
    blocks = np.empty(scale.shape, [("scale", "u1"), ("codes", "<u8", 2)])
    blocks["scale"], blocks["codes"] = scale, pairs.view("<u8").reshape(*scale.shape, 2)
    return blocks.view(np.uint8)
