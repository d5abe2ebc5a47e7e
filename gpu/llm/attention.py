"""Attention, tile by tile with a running softmax: Numba's kernel takes everything, tensor cores what fits them."""

import math
from functools import cache
from typing import Any

import numpy as np

from gpu import device
from gpu.compile import Kernel, numba_kernel
from gpu.grid import blocks_for
from gpu.llm.attention_tiles import LANES, ROWS, THREADS, placer, sums_of, tile_of, walker
from gpu.llm.attention_weights import rules_of, sinks_of
from gpu.llm.flash_mma import VARIANTS as TENSOR_CORES
from gpu.number import named, need_floats, storage, write
from gpu.registry import Variant
from refimpl.contract import Array, Bool, Float, host, kernel, op, require, whole

__all__ = ["VARIANTS", "attention", "attention_into", "kind_of", "mask_of"]


@op
def attention(
    q: Float[Array, "T N H"], k: Float[Array, "S K H"], v: Float[Array, "S K H2"], *,
    scale: float | None = None, causal: bool = True, mask: Bool[Array, "..."] | Float[Array, "..."] | None = None,
    window: int | None = None, softcap: float | None = None, return_lse: bool = False,
    sinks: Float[Array, " N"] | None = None, prefix: int = 0, chunk: int | None = None,
) -> Float[Array, "T N H2"] | tuple[Float[Array, "T N H2"], Float[Array, "T N"]]:
    """Tensor cores take what fits them (flash_mma.py); Numba's kernel takes the rest.

    A block of that takes 16 rows of one key/value head, a row being a query head of a token, and walks over its keys;
    attention_tiles.py says what lies in shared memory and in registers.
    """
    require(q.ndim == k.ndim == v.ndim == 3, "C2", f"q {q.shape}, k {k.shape}, v {v.shape} are not three axes each")
    (T, N, H), (S, K, _) = q.shape, k.shape
    require(K > 0 and N % K == 0, "C1", f"{K} key/value heads do not divide {N} query heads")
    require(k.shape[-1] == H and v.shape[:-1] == (S, K), "C2", f"q {q.shape}, k {k.shape}, v {v.shape} do not fit")
    require(mask is None or mask.shape in ((T, S), (N, T, S)), "C3", f"mask is not [{T} {S}] or [{N} {T} {S}]")
    require(window is None or (whole("window", window) >= 1 and causal), "C4", f"window {window}, causal {causal}")
    require(softcap is None or softcap > 0, "C5", f"softcap {softcap} is not positive")
    require(sinks is None or sinks.shape == (N,), "C6", f"sinks {getattr(sinks, 'shape', None)} for {N} query heads")
    require(whole("prefix", prefix) == 0 or (prefix > 0 and bool(window)), "C7", f"prefix {prefix}, window {window}")
    require(chunk is None or (whole("chunk", chunk) >= 1 and causal), "C8", f"chunk {chunk}, causal {causal}")
    rules = {"scale": scale, "causal": causal, "mask": mask, "window": window, "softcap": softcap, "sinks": sinks}
    rules |= {"prefix": prefix, "chunk": chunk}
    chosen = next(variant for variant in VARIANTS if variant.takes(q, k, v, **rules))
    return chosen.call(q, k, v, **rules, return_lse=return_lse)


def _by_numba(
    q: Array, k: Array, v: Array, *, scale: float | None = None, causal: bool = True, mask: Array | None = None,
    window: int | None = None, softcap: float | None = None, return_lse: bool = False,
    sinks: Array | None = None, prefix: int = 0, chunk: int | None = None,
) -> Any:
    out = device.empty((*q.shape[:2], v.shape[-1]), q.dtype)
    lse = device.empty(q.shape[:2] if return_lse else (0, 0), np.float32)
    attention_into(
        out, device.array(q), device.array(k), device.array(v), lse=lse, scale=scale, causal=causal,
        mask=mask_of(mask), window=window, softcap=softcap, sinks=sinks_of(sinks), prefix=prefix, chunk=chunk)
    return (out, lse) if return_lse else out


@kernel
def attention_into(
    out: Float[Array, "T N H2"], q: Float[Array, "T N H"], k: Float[Array, "S K H"], v: Float[Array, "S K H2"], *,
    lse: Float[Array, "T N"] | None = None, scale: float | None = None, causal: bool = True,
    mask: Array | None = None, window: int | None = None, softcap: float | None = None, tile: int | None = None,
    sinks: Float[Array, " N"] | None = None, prefix: int = 0, chunk: int | None = None,
) -> None:
    """Write attention by Numba's kernel into ``out``, and its log-sum-exp into ``lse`` if that is given and not empty.

    The mask is ``mask_of``'s, sinks are float32. A tile holds as many keys as shared memory takes, or ``tile`` of them
    if that is fewer.
    """
    (T, N, H), (_, K, H2) = q.shape, v.shape
    (kind, hiding), fits = kind_of(mask), tile_of(H, H2)[0]
    made = _attention((named(q), named(k), named(v)), H, H2, kind)
    device.launch(
        made, (blocks_for(N // K * T, ROWS), K), THREADS, out, device.empty((0, 0), np.float32) if lse is None else lse,
        q, k, v, hiding, sinks_of(sinks), H**-0.5 if scale is None else scale, softcap or 0.0, causal,
        *rules_of(window, prefix, chunk), min(tile or fits, fits))


@host
def mask_of(mask: Array | None) -> Array | None:
    """Return a mask as launchers take it: [1 T S] or [N T S], of booleans or of float32."""
    if mask is None:
        return None
    rows = mask if mask.ndim == 3 else mask[None]
    if str(mask.dtype) == "bool":
        return device.array(rows)
    need_floats(mask)
    return device.array(rows, np.float32)


@host
def kind_of(mask: Array | None) -> tuple[str, Array]:
    """Return how a mask hides, and what stands for it in a launch."""
    if mask is None:
        return "none", device.empty((0, 0, 0), np.float32)
    return ("bool" if str(mask.dtype) == "bool" else "added"), mask


@cache
def _attention(dtypes: tuple[str, str, str], head_dim: int, value_dim: int, mask: str) -> Kernel:
    from numba import cuda, float32, uint64

    from gpu.warp import block, thread

    held, held_k, held_v = (f"{storage(dtype)}[:, :, ::1]" for dtype in dtypes)
    held_mask = f"{'uint8' if mask == 'bool' else 'float32'}[:, :, ::1]"
    narrow, place, walk = write(dtypes[0]), placer(), walker(dtypes, head_dim, value_dim, mask, False)
    own, rows, lanes, H2 = sums_of(value_dim), uint64(ROWS), uint64(LANES), uint64(value_dim)

    @numba_kernel(
        held, "float32[:, ::1]", held, held_k, held_v, held_mask, "float32[::1]", *["float32"] * 2, *["uint64"] * 5,
        name=f"attention[{dtypes[0]}, {head_dim}, mask {mask}]", launch_bounds=(THREADS, 4 if value_dim <= 256 else 1))
    def attention(out, lse, q, k, v, mask, sinks, scale, softcap, causal, window, prefix, chunk, tile):
        T, S, head = uint64(q.shape[0]), uint64(k.shape[0]), uint64(cuda.blockIdx.y)
        group = uint64(q.shape[1]) // uint64(k.shape[1])
        rules = (causal, window, prefix, chunk)
        t, n, sees, start, end, gap, again = place(block() * rows, group, T, S, rules)
        n += head * group
        sums = cuda.local.array(own, float32)
        for i in range(own):
            sums[i] = float32(0)
        top, total = walk(
            (sums, float32(-math.inf), float32(0)), q, k, v, mask, q, (t, n, *sees),
            (head, start // tile * tile, end, tile, uint64(0), gap, again), scale, softcap)
        lane = thread() % lanes
        if t < T:
            shared = total + math.exp(sinks[n] - top) if sinks.size > 0 and total != float32(0) else total
            for i in range(uint64(own)):
                if lane + lanes * i < H2:
                    out[t, n, lane + lanes * i] = narrow(sums[i] / shared if total != float32(0) else float32(0))
            if lane == uint64(0) and lse.size > 0:
                lse[t, n] = top + math.log(total)

    return attention


def _workload() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    q, k, v = (draw.standard_normal((256, heads, 64)).astype(np.float32) for heads in (4, 2, 2))
    return {"q": q, "k": k, "v": v}


VARIANTS = (*TENSOR_CORES, Variant("numba", "attention", _by_numba, lambda q, k, v, **_: True, _workload))
