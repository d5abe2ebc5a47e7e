"""Other forms of the key/value cache: a ring that keeps the last tokens, and tokens held as codes of 8 bits.

A chunk attends to what the ring held before it, and to itself: its queries see ring_read's keys and then their own,
through attention's window, and ring_append follows. So a ring of W slots serves a window of W, whatever the chunks.
"""

import ml_dtypes
import numpy as np

from refimpl.contract import Array, Float, Int, UInt8, op, require, rows, whole, widen

__all__ = ["ring_append", "ring_read", "quantized_append", "quantized_read"]


@op
def ring_append(
    k_cache: Float[Array, "capacity K H"], v_cache: Float[Array, "capacity K H2"],
    k: Float[Array, "T K H"], v: Float[Array, "T K H2"], length: int,
) -> tuple[Float[Array, "capacity K H"], Float[Array, "capacity K H2"]]:
    """Write T tokens after the ``length`` that came before, in place, each over the oldest that the ring holds.

    Math: k_cache[p mod capacity] = k[p - length], and so v_cache, for the last ``capacity`` of the positions p from
        length to length + T - 1.
    Cost: no flop, at most T K (H + H2) elements read and written: bound by memory.
    Numerics: one cast to the dtype of the cache.
    Constraints:
        (C1) the caches have one capacity, of at least 1 slot.
        (C2) k and v hold T tokens in the heads of the caches.
        (C3) length is not negative.
    Source: Beltagy et al., Longformer, 2020; Jiang et al., Mistral 7B, 2023; ONNX, TensorScatter-24, mode circular.

    >>> ring = [np.zeros((3, 1, 1)), np.zeros((3, 1, 1))]
    >>> new = np.arange(4.0).reshape(4, 1, 1)
    >>> ring_append(*ring, new, new, 1)[0].ravel()
    array([2., 3., 1.])
    """
    capacity, T = rows(k_cache), rows(k)
    require(capacity >= 1 and rows(v_cache) == capacity, "C1", f"rings of {capacity} and {rows(v_cache)} slots")
    fits = k.shape[1:] == k_cache.shape[1:] and v.shape == (T, *v_cache.shape[1:])
    require(fits, "C2", f"k {k.shape} and v {v.shape} for rings of {k_cache.shape[1:]} and {v_cache.shape[1:]}")
    require(whole("length", length) >= 0, "C3", f"{length} tokens before")
    last = np.arange(max(0, T - capacity), T)
    slots = (int(length) % capacity + last) % capacity
    k_cache[slots], v_cache[slots] = widen(k[last]), widen(v[last])
    return k_cache, v_cache


@op
def ring_read(
    k_cache: Float[Array, "capacity K H"], v_cache: Float[Array, "capacity K H2"], length: int
) -> tuple[Float[Array, "S K H"], Float[Array, "S K H2"]]:
    """Return the tokens that the ring still holds of a sequence of ``length``, the oldest first.

    Attention after an append needs no order where the one query sees all: it may read the slots as they lie.

    Math: S = min(length, capacity), k[s] = k_cache[(length - S + s) mod capacity], and so v.
    Cost: no flop, S K (H + H2) elements read and written: bound by memory, and left out by a kernel of attention.
    Numerics: exact; slots that no token was written to are not read.
    Constraints:
        (C1) the caches have one capacity, of at least 1 slot.
        (C2) length is not negative.
    Source: Beltagy et al., Longformer, 2020; Jiang et al., Mistral 7B, 2023.

    >>> slots = np.array([[[2.0]], [[3.0]], [[1.0]]])
    >>> ring_read(slots, slots, 5)[0].ravel()
    array([1., 2., 3.])
    """
    capacity, length = rows(k_cache), whole("length", length)
    require(capacity >= 1 and rows(v_cache) == capacity, "C1", f"rings of {capacity} and {rows(v_cache)} slots")
    require(length >= 0, "C2", f"a sequence of {length} tokens")
    slots = (length % capacity - np.arange(min(length, capacity), 0, -1)) % capacity
    return k_cache[slots], v_cache[slots]


@op
def quantized_append(
    codes: Int[Array, "capacity K H"] | UInt8[Array, "capacity K H"], scales: Float[Array, "capacity K"],
    x: Float[Array, "T K H"], length: int,
) -> tuple[Int[Array, "capacity K H"] | UInt8[Array, "capacity K H"], Float[Array, "capacity K"]]:
    """Write the keys, or the values, of T tokens after those that the cache holds, in place, one scale a head.

    Codes of int8 are whole numbers up to M = 127; of uint8, the bits of float8 e4m3, whose numbers go up to M = 448.

    Math: scales[length + t, k] = max_h |x[t, k, h]| / M, codes[length + t, k, h] = round(x[t, k, h] / scale).
    Cost: 3 T K H flop, T K H elements read and as many bytes written: bound by memory.
    Numerics: float32 or wider; the scale is rounded to its dtype before x is divided by it; to nearest, ties to even,
        and never beyond M. What is read errs by half a step: scale / 2 in int8; |x| / 16 in e4m3, or scale / 1024. A
        head that holds infinity or NaN has an infinite scale, and is read as NaN; one too small for a scale, as 0.
    Constraints:
        (C1) codes are int8 or uint8.
        (C2) there is a scale for each head of a slot, and x has the heads of the cache.
        (C3) length is not negative, and length + T <= capacity.
    Source: Micikevicius et al., FP8 formats for deep learning, 2022; Kwon et al., 2023: vLLM's fp8 and int8 caches,
        which scale by token and head.

    >>> codes, scales = np.zeros((2, 1, 3), np.int8), np.zeros((2, 1), np.float32)
    >>> quantized_append(codes, scales, np.array([[[-2.54, 0.02, 0.04]]]), 1)[0][1]
    array([[-127,    1,    2]], dtype=int8)
    """
    _check(codes, scales)
    require(x.shape[1:] == codes.shape[1:], "C2", f"x {x.shape} for a cache of {codes.shape[1:]}")
    require(0 <= whole("length", length) <= len(codes) - len(x), "C3", f"{length} + {len(x)} tokens of {len(codes)}")
    new, wide, most = slice(int(length), int(length) + len(x)), widen(x), 127 if codes.dtype == np.int8 else 448
    with np.errstate(all="ignore"):
        scales[new] = np.where(np.isnan(wide), np.inf, np.abs(wide)).max(-1, initial=0) / most
        steps = np.nan_to_num(wide / widen(scales[new, :, None]), posinf=0, neginf=0).clip(-most, most)
    codes[new] = np.rint(steps) if most == 127 else steps.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return codes, scales


@op
def quantized_read(
    codes: Int[Array, "capacity K H"] | UInt8[Array, "capacity K H"], scales: Float[Array, "capacity K"], length: int
) -> Float[Array, "S K H"]:
    """Return the first ``length`` tokens of a cache of codes as numbers, in the dtype of the scales.

    Math: x[s, k, h] = scales[s, k] codes[s, k, h], where a code of uint8 stands for its float8 e4m3.
    Cost: S K H flop, as many bytes read and elements written: bound by memory; fused into attention, by the codes.
    Numerics: one product in float32 or wider, one cast.
    Constraints:
        (C1) codes are int8 or uint8.
        (C2) there is a scale for each head of a slot.
        (C3) 0 <= length <= capacity.
    Source: Micikevicius et al., FP8 formats for deep learning, 2022.

    >>> codes = np.array([[[0x38, 0xC0]]], np.uint8)    # 1 and -2
    >>> quantized_read(codes, np.array([[3.0]]), 1)
    array([[[ 3., -6.]]])
    """
    _check(codes, scales)
    require(0 <= whole("length", length) <= len(codes), "C3", f"{length} tokens in a capacity of {len(codes)}")
    wide = widen(scales[:length, :, None])
    numbers = codes[:length].view(np.int8 if codes.dtype == np.int8 else ml_dtypes.float8_e4m3fn)
    with np.errstate(all="ignore"):
        return (wide * numbers.astype(wide.dtype)).astype(scales.dtype, copy=False)


def _check(codes: Array, scales: Array) -> None:
    require(codes.dtype in (np.int8, np.uint8), "C1", f"codes are int8 or uint8, got {codes.dtype}")
    require(codes.ndim == 3 and scales.shape == codes.shape[:2], "C2", f"codes {codes.shape}, scales {scales.shape}")
