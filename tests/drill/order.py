"""Faults of kernels in what is synchronised and in where a loop ends: the interpreter or a comparison sees each."""

from tests.drill.faults import Fault

__all__ = [
    "ATTENTION", "BLOCKS", "FLASH", "GEMV", "LINEAR", "MMA", "NORMS", "ORDER", "PAGED", "QUANTISED", "kernel_fault",
]  # fmt: skip


def kernel_fault(name: str, what: str, file: str, old: str, new: str, *checks: str) -> Fault:
    return Fault(name, what, f"gpu/{file}", old, new, tuple(f"tests/equivalence/{check}" for check in checks))


FLASH, GEMV, BLOCKS = "llm/flash_mma.cu", "basics/gemv.cu", "llm/gemv_blocks.cu"
NORMS, LINEAR = "test_basics.py::test_norms", "test_basics.py::test_linear"
ATTENTION, PAGED, MMA = (
    "test_attention.py::test_attention",
    "test_paged.py::test_paged_attention",
    "test_flash_mma.py::test_flash_mma_gives_attention",
)
QUANTISED = "test_quantize.py::test_linear_blocks_is_linear_of_the_weights"

SYNCHRONISATION = (
    kernel_fault(
        "barrier removed",
        "partial sums are read before they are there",
        "warp.py",
        "        partial[warp()] = x\n    cuda.syncthreads()\n    x = warp_sum(",
        "        partial[warp()] = x\n    x = warp_sum(",
        NORMS,
    ),
    kernel_fault(
        "second barrier removed",
        "a sum overwrites the one before it",
        "warp.py",
        "    cuda.syncthreads()  # the next sum may overwrite partial\n",
        "",
        NORMS,
    ),
    kernel_fault(
        "slab barrier removed",
        "a slab is replaced while warps read it",
        "basics/linear_kernels.py",
        "            cuda.syncthreads()\n            start += uint64(_SLAB)",
        "            start += uint64(_SLAB)",
        LINEAR,
    ),
    kernel_fault(
        "wait removed",
        "a tile is read before its copies are there",
        FLASH,
        "            wait_for_copies();\n",
        "",
        MMA,
    ),
    kernel_fault(
        "stage barrier removed",
        "a stage is replaced while warps multiply it",
        FLASH,
        "            __syncthreads();  // the tile is there",
        "            // the tile is there",
        MMA,
    ),
    kernel_fault(
        "wait too weak",
        "two groups of copies may be on their way",
        BLOCKS,
        "cp.async.wait_group 1;",
        "cp.async.wait_group 2;",
        QUANTISED,
    ),
    kernel_fault(
        "warp barrier removed",
        "lanes read what other lanes copied",
        BLOCKS,
        "        wait_for_all_but_one();\n        __syncwarp();\n",
        "        wait_for_all_but_one();\n",
        QUANTISED,
    ),
    kernel_fault(
        "race in place",
        "a lane writes where another has yet to read",
        "llm/position_kernels.py",
        "        cuda.syncwarp()  # out may be x: all lanes have read it\n",
        "",
        "test_llm.py::test_rope_append_is_norm_rope_and_append",
    ),
)

BOUNDS = (
    kernel_fault(
        "mask off by one",
        "a query sees the key after its own",
        "llm/attention_weights.py",
        "last = t + S + uint64(1)",
        "last = t + S + uint64(2)",
        ATTENTION,
    ),
    kernel_fault(
        "mask short by one",
        "a query does not see its own key",
        FLASH,
        "t + S - T + ahead + 1)",
        "t + S - T + ahead)",
        MMA,
    ),
    kernel_fault(
        "mask top-left",
        "the causal mask begins at the first key",
        "llm/attention_weights.py",
        "last = last - T if last > T else uint64(0)",
        "last = min(t + uint64(1), S)",
        ATTENTION,
    ),
    kernel_fault(
        "last row unwritten",
        "a tile's last row is left out",
        FLASH,
        "if (row < rows) *(uint4*)",
        "if (row < rows - 1) *(uint4*)",
        MMA,
    ),
    kernel_fault(
        "tail read",
        "a slab reaches beyond the matrix",
        "basics/linear_kernels.py",
        " and start + d < uint64(matrix.shape[1])\n",
        "\n",
        LINEAR,
    ),
    kernel_fault(
        "row beyond the end",
        "a warp's second row is not there",
        GEMV,
        "load(w + min(o0 + r, O - 1) *",
        "load(w + (o0 + r) *",
        LINEAR,
    ),
    kernel_fault(
        "no slot, and written",
        "a token without a slot is written",
        "efficient/paged.py",
        "        if slots[t] < 0:\n            return\n",
        "",
        "test_paged.py::test_paged_append",
    ),
    kernel_fault(
        "last split forgotten",
        "the newest keys are not combined",
        "efficient/paged_kernels.py",
        "(last + split - uint64(1)) // split",
        "last // split",
        PAGED,
    ),
)

ORDER = (*SYNCHRONISATION, *BOUNDS)
