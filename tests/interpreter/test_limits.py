"""What a GPU would not launch, or not end: one sentence."""

import re

import pytest

from gpu.interpreter import KernelError, launch

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
NOTHING, FOR_EVER = "ret;", "L: bra L;"


def run(body, grid=1, block=1, **rules):
    return launch(f"{HEAD}.visible .entry k()\n{{\n.reg .b32 %r<2>;\n{body}\n}}\n", "k", grid, block, [], [], **rules)


@pytest.mark.parametrize("budget", [1, 10_000, 2_000_001, 3_999_999])
@pytest.mark.parametrize("warps", [1, 3])
def test_a_kernel_that_does_not_end(budget, warps):
    with pytest.raises(KernelError, match=f"^k: still running after {budget} instructions of its warps$"):
        run(FOR_EVER, block=32 * warps, budget=budget)


@pytest.mark.parametrize("grid", [(1, 65536), (1, 1, 65536), 2**31, -1, (1, 1, 1, 1)])
def test_grids_that_no_gpu_launches(grid):
    with pytest.raises(KernelError, match=r"^k: a grid of \(.*\); along its axes it has at most \(2147483647, 65535"):
        run(NOTHING, grid)
    assert run(NOTHING, 0).warps == 0


@pytest.mark.parametrize(
    ("block", "said"),
    [(0, "a block of (0, 1, 1)"), (1025, "a block of (1025, 1, 1)"), ((1, 1, 65), "a block of (1, 1, 65)"),
     (-32, "a block of (-32, 1, 1)"), ((32, 33), "a block has 1056 threads")],
)
def test_blocks_that_no_gpu_launches(block, said):
    with pytest.raises(KernelError, match=f"^k: {re.escape(said)}"):
        run(NOTHING, 1, block)


def test_memory_that_no_gpu_has():
    for shared in (232449, -1):
        with pytest.raises(KernelError, match=f"^k: a block has 1 threads and {shared} bytes of shared memory; it can"):
            run(NOTHING, shared=shared)
    declared = ".shared .align 4 .b8 big[300000];\nst.shared.u32 [big], %r1;\nret;"
    with pytest.raises(KernelError, match="300000 bytes of shared memory"):
        run(declared)
    with pytest.raises(KernelError, match=r"^k: a thread has 99999999996 bytes of its own; it can have 524288$"):
        run(declared.replace("shared", "local").replace("300000", "99999999996"))
