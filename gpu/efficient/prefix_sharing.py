"""Blocks copied to others: one block of threads a copied row of the cache, the same bytes whatever they mean."""

from functools import cache
from math import prod
from typing import Any

import numpy as np

from gpu import device
from gpu.compile import Kernel, device_function, numba_kernel
from gpu.grid import threads_for
from gpu.number import named, storage
from gpu.registry import Variant
from refimpl.contract import Array, Float, Int, kernel, op, require

__all__ = ["VARIANTS", "copy_blocks", "copy_blocks_into"]


@op
def copy_blocks(
    k_cache: Float[Array, "num_blocks block_size K H"], v_cache: Float[Array, "num_blocks block_size K H2"],
    sources: Int[Array, " copies"], targets: Int[Array, " copies"],
) -> tuple[Float[Array, "num_blocks block_size K H"], Float[Array, "num_blocks block_size K H2"]]:
    """One block of threads a slot that is copied. Caches of the current device are written in place."""
    require(k_cache.shape[:3] == v_cache.shape[:3], "C1", f"caches {k_cache.shape} and {v_cache.shape}")
    read, written = device.to_host(sources), device.to_host(targets)
    whole = read.shape == written.shape and read.ndim == 1 and {read.dtype.kind, written.dtype.kind} <= {*"iu"}
    every = np.append(read, written) if whole else read
    inside = whole and bool(((every >= 0) & (every < len(k_cache))).all())
    require(inside, "C2", f"copies of {read} to {written} in {len(k_cache)} blocks")
    apart = len(np.unique(written)) == len(written) and not np.isin(written, read).any()
    require(apart, "C3", f"copies of {read} to {written} depend on their order")
    k_cache, v_cache = device.array(k_cache), device.array(v_cache)
    copy_blocks_into(k_cache, v_cache, device.array(read, np.int32), device.array(written, np.int32))
    return k_cache, v_cache


@kernel
def copy_blocks_into(
    k_cache: Float[Array, "num_blocks block_size K H"], v_cache: Float[Array, "num_blocks block_size K H2"],
    sources: Int[Array, " copies"], targets: Int[Array, " copies"],
) -> None:
    """Copy blocks of the caches; no target is named twice, nor is it a source. Blocks are numbered in int32."""
    made = _copy_blocks(named(k_cache), named(v_cache))
    if k_cache.size or v_cache.size:
        pools = [x.reshape(*x.shape[:2], prod(x.shape[2:])) for x in (k_cache, v_cache)]
        grid = len(sources) * k_cache.shape[1]
        device.launch(made, grid, threads_for(pools[0].shape[2]), *pools, sources, targets)


@cache
def _copy_blocks(dtype: str, v_dtype: str) -> Kernel:
    from numba import uint64

    from gpu.warp import block, thread, threads

    @device_function
    def copy(out, row):
        i = thread()
        while i < uint64(row.size):
            out[i] = row[i]
            i += threads()

    pools = (f"{storage(each)}[:, :, ::1]" for each in (dtype, v_dtype))

    @numba_kernel(*pools, "int32[::1]", "int32[::1]", name=f"copy_blocks[{dtype}, {v_dtype}]")
    def copy_blocks(k_cache, v_cache, sources, targets):
        size = uint64(k_cache.shape[1])
        c, slot = block() // size, block() % size
        source, target = uint64(sources[c]), uint64(targets[c])
        copy(k_cache[target, slot], k_cache[source, slot])
        copy(v_cache[target, slot], v_cache[source, slot])

    return copy_blocks


def _pools() -> dict[str, Any]:
    k_cache, v_cache = np.random.default_rng(0).standard_normal((2, 32, 16, 8, 64), np.float32)
    return {"k_cache": k_cache, "v_cache": v_cache, "sources": np.arange(4), "targets": 10 + np.arange(4)}


VARIANTS = (Variant("numba", "copy_blocks", copy_blocks, lambda *_, **__: True, _pools),)
