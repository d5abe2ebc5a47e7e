"""What a user reads who has no compiler, and what the compilers need."""

import subprocess
import sys

import pytest

from gpu import toolkit
from gpu.toolkit import need_toolkit, nvrtc_ptx, spilled, toolkit_key, toolkit_versions
from refimpl.contract import UsageError

MISSING = "CUDA kernels need numba-cuda and its compilers \\({} is missing\\): pip install \"numba-cuda\\[cu12\\]\"$"


@pytest.mark.parametrize("module", ["numba_cuda", "cuda.bindings.nvrtc", "cuda.bindings.nvjitlink"])
def test_missing_package_is_one_line(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit, "_is_there", lambda name: name != module)
    with pytest.raises(UsageError, match=MISSING.format(module)):
        need_toolkit()


@pytest.mark.parametrize("module", ["numba_cuda", "cuda", "cuda.bindings"])
def test_package_that_cannot_be_imported_is_missing(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == module or name.startswith(module + ".")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=MISSING.format(r"[\w.]+")):
        need_toolkit()


def test_kernels_need_no_cupy() -> None:
    program = (
        "import sys; sys.modules['cupy'] = None\n"
        "from tests.compile.made import scaled; print(len(scaled(2.0).cubin('sm_90')))\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 1000


def test_versions_name_the_compilers() -> None:
    assert all(name in toolkit_versions() for name in ("numba-cuda 0.", "llvmlite 0.", "NVRTC 12.", "nvJitLink 12."))


def test_key_knows_the_libraries() -> None:
    assert toolkit_key().startswith(toolkit_versions())
    assert all(name in toolkit_key() for name in ("libnvvm.so", "libnvrtc.so", "libnvJitLink.so"))


def test_source_without_kernel_is_an_empty_program() -> None:
    assert ".entry" not in nvrtc_ptx("a.cu", {"a.cu": "__device__ int one() { return 1; }"}, "sm_90", ())


def test_unknown_architecture_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"^a\.cu does not compile for sm_10: .+$"):
        nvrtc_ptx("a.cu", {"a.cu": ""}, "sm_10", ())


def test_spills_are_told_from_arrays() -> None:
    sum_of_many = " + ".join(f"v[{i}] * v[{(i * 7) % 96}]" for i in range(96))
    body = "float v[96]; for (int i = 0; i < 96; ++i) v[i] = x[i * 32]; for (int j = 0; j < 9; ++j) {" \
           "__syncthreads(); out[j * 32] = " + sum_of_many + "; __syncthreads();}"
    sources = {"a.cu": f'extern "C" __global__ void BOUNDS kernel(float *out, volatile float *x) {{{body}}}'}
    few = nvrtc_ptx("a.cu", sources, "sm_90", ("-DBOUNDS=__launch_bounds__(1024)",))
    enough = nvrtc_ptx("a.cu", sources, "sm_90", ("-DBOUNDS=__launch_bounds__(128)",))
    assert spilled("few", few, "sm_90") > 0 == spilled("enough", enough, "sm_90")
