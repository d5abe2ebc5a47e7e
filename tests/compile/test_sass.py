"""Machine code read, and how much of a multiprocessor it fills."""

from pathlib import Path

import pytest

from gpu import sass
from gpu.compile import Kernel, cuda_kernel
from gpu.occupancy import Occupancy, occupancy
from gpu.sass import count, resources
from refimpl.contract import UsageError

pytestmark = pytest.mark.usefixtures("cache")

BODIES = {
    "plain": "out[threadIdx.x] = x[threadIdx.x];",
    "vector": "((float4 *)out)[threadIdx.x] = ((const float4 *)x)[threadIdx.x];",
    "shared": "__shared__ float s[64]; s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); out[threadIdx.x] = s[0];",
    "local": "float a[99]; for (int i = 0; i < 99; i++) a[i] = x[i]; out[0] = a[int(x[0])];",
    "mma": """float c[4] = {};
        asm volatile("{ .reg .b32 a; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {a}, [%4];\\n"
                     "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {a,a}, {a}, {%0,%1,%2,%3}; }"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(0));
        out[threadIdx.x] = c[0] + c[1] + c[2] + c[3];""",
}


def kernel(folder: Path, body: str) -> Kernel:
    text = f'extern "C" __global__ void kernel(float *out, const float *x) {{ {BODIES[body]} }}'
    (folder / "kernel.cu").write_text(text)
    return cuda_kernel(folder / "kernel.cu", "kernel", (("out", "float32*"), ("x", "float32*")))


@pytest.mark.parametrize(("body", "stack", "shared"), [("plain", 0, 0), ("shared", 0, 256), ("local", 400, 0)])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_resources(tmp_path: Path, body: str, stack: int, shared: int, arch: str) -> None:
    found = resources(kernel(tmp_path, body).cubin_path(arch), "kernel")
    assert (found.stack, found.shared, found.local) == (stack, shared, 0) and 4 < found.registers < 48


@pytest.mark.parametrize(("body", "expected"), [
    ("plain", (0, 0, 0, 0)), ("vector", (1, 0, 0, 0)), ("shared", (0, 0, 0, 0)), ("mma", (0, 1, 1, 0)),
])
def test_counts(tmp_path: Path, body: str, expected: tuple[int, ...]) -> None:
    counts = count(kernel(tmp_path, body).cubin_path("sm_90"))
    assert (counts.loads_128, counts.ldmatrix, counts.mma, counts.spilled) == expected


def test_local_memory_is_counted(tmp_path: Path) -> None:
    assert count(kernel(tmp_path, "local").cubin_path("sm_90")).spilled > 40


def test_damaged_code_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.cubin").write_bytes(b"\x7fELF nothing")
    with pytest.raises(UsageError, match=r"^nvdisasm cannot read [^\n]*a\.cubin: [^\n]+$"):
        sass.disassemble(tmp_path / "a.cubin")


def test_missing_tool_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sass, "files", lambda package: [])
    sass._path.cache_clear()
    with pytest.raises(UsageError, match=r"^machine code is read with nvdisasm: pip install nvidia-cuda-nvdisasm$"):
        sass.disassemble(tmp_path / "b.cubin")
    sass._path.cache_clear()


@pytest.mark.parametrize(("threads", "registers", "shared", "blocks", "limit"), [
    (256, 64, 0, 4, "registers"), (1024, 64, 0, 1, "registers"), (128, 255, 0, 2, "registers"),
    (32, 16, 0, 32, "blocks"), (33, 32, 0, 32, "warps"), (1024, 32, 0, 2, "warps"),
    (256, 32, 48 << 10, 4, "shared memory"), (128, 168, 99 << 10, 2, "shared memory"),
    (256, 16, 227 << 10, 1, "shared memory"),
])
def test_occupancy_of_hopper(threads: int, registers: int, shared: int, blocks: int, limit: str) -> None:
    """By hand: 64 warps, 32 blocks, four times 16,384 registers, 228 KB of which a block takes one more."""
    share = blocks * -(-threads // 32) / 64
    assert occupancy(threads, registers, shared) == Occupancy(blocks, share, limit)
