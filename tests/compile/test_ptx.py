"""Kernels of both languages become PTX and machine code, without a GPU and without CuPy."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpu import compile as compiling
from gpu.compile import Kernel, numba_kernel
from gpu.sass import disassemble
from refimpl.contract import UsageError
from tests.compile.made import HEADER, SOURCE, scaled, written

pytestmark = pytest.mark.usefixtures("cache")

ARCHITECTURES = ("sm_80", "sm_89", "sm_90", "sm_100")


@pytest.fixture(params=["numba", "cuda"])
def kernel(request: pytest.FixtureRequest, tmp_path: Path) -> Kernel:
    return scaled(2.0) if request.param == "numba" else written(tmp_path / "source")


def test_ptx_has_one_plain_entry(kernel: Kernel) -> None:
    ptx = kernel.ptx()
    assert re.findall(r"\.entry (\w+)\(", ptx) == [kernel.entry]
    assert re.findall(r"\.target (\w+)", ptx) == ["sm_90"]
    assert max(map(len, re.findall(r"[\w$.]+", ptx))) < 40
    assert "NumbaEnv" not in ptx and "_cudapy" not in ptx and "call" not in ptx


def test_launch_gives_the_parameters_that_the_ptx_declares(kernel: Kernel) -> None:
    out, x = np.zeros((32, 4), np.float32), np.zeros((32, 8), np.float32)[:, ::2]
    args = (out, x, 1, 0.5) if kernel.entry == "scale" else (np.zeros(4, np.uint16), np.zeros(4, np.float32), 4, 0.5)
    declared = re.findall(r"\.param (?:\.align \d+ )?\.(\w\d+)", kernel.ptx())
    packed = [np.asarray(number) for number in kernel.pack(args, lambda array: array.ctypes.data)]
    assert [int(kind[1:]) // 8 for kind in declared] == [number.dtype.itemsize for number in packed]
    assert [kind[0] == "f" for kind in declared] == [number.dtype.kind == "f" for number in packed]


def test_numba_array_is_flattened() -> None:
    x = np.zeros((32, 8), np.float32)[:, ::2]
    packed = scaled(2.0).pack((np.zeros((32, 4), np.float32), x, 3, 0.5), lambda array: 4096 + array.shape[1])
    assert [float(number) for number in packed] == [
        0, 0, 128, 4, 4100, 32, 4, 16, 4, 0, 0, 128, 4, 4100, 32, 4, 32, 8, 3, 0.5]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_cubin_is_made_for_its_architecture(kernel: Kernel, arch: str) -> None:
    cubin = kernel.cubin(arch)
    assert cubin[:4] == b"\x7fELF"
    assert f".target {arch}" in kernel.ptx(arch)
    assert re.search(rf"(EF_CUDA_SM|\.target\s+sm_){arch[3:]}\b", disassemble(kernel.cubin_path(arch)))


def test_closure_is_part_of_a_kernel() -> None:
    two, three = scaled(2.0), scaled(3.0)
    assert two.source != three.source
    assert "0f40000000" not in three.ptx() and "0f40400000" in three.ptx()


def test_numba_makes_no_float64_of_float32() -> None:
    assert ".f64" not in scaled(2.0).ptx()


@pytest.mark.parametrize("change", [
    {"options": ("-DFACTOR=3",)}, {"header": HEADER.replace("a + b", "a - b")}, {"source": SOURCE.replace("<", "<=")},
], ids=lambda change: next(iter(change)))
def test_sources_and_options_are_part_of_a_kernel(tmp_path: Path, change: dict[str, str]) -> None:
    before, after = written(tmp_path / "a"), written(tmp_path / "b", **change)
    assert before.source != after.source
    assert before.ptx() != after.ptx()


def test_place_of_the_files_is_not_part_of_a_kernel(tmp_path: Path) -> None:
    assert written(tmp_path / "a").source == written(tmp_path / "b").source


def test_error_of_the_compiler_is_one_line(tmp_path: Path) -> None:
    kernel = written(tmp_path / "a", source=SOURCE.replace("int i", "integer i"))
    with pytest.raises(UsageError, match=r'^add\.cu does not compile for sm_90: add\.cu\(4\): error: .*"integer".*$'):
        kernel.ptx()


def test_error_of_the_linker_is_one_line(tmp_path: Path) -> None:
    source = SOURCE.replace("int i", 'asm volatile("wgmma.fence.sync.aligned;"); int i')
    kernel = written(tmp_path / "a", source=source)
    with pytest.raises(UsageError, match=r"^add_to does not link for sm_90: [^\n]*wgmma[^\n]*$"):
        kernel.cubin("sm_90")


def test_types_and_parameters_agree_in_number() -> None:
    with pytest.raises(TypeError, match="copy has 2 parameters and 1 types"):
        @numba_kernel("float32[::1]")
        def copy(out, x):
            out[0] = x[0]


def test_numba_gives_the_same_text_whatever_it_compiled_before() -> None:
    first = scaled(2.0).compile("sm_90")
    scaled(3.0).compile("sm_90")
    assert scaled(2.0).compile("sm_90") == first


def test_second_process_compiles_nothing(tmp_path: Path) -> None:
    program = (
        f"import sys; from pathlib import Path; from tests.compile import made;"
        "from gpu import compile, toolkit;"
        "broken = lambda *rest: sys.exit('compiled again');"
        "rest = len(sys.argv) > 1;"
        "compile._numba_ptx, compile.nvrtc_ptx, compile.link = [broken] * 3 if rest else "
        "(compile._numba_ptx, compile.nvrtc_ptx, compile.link);"
        f"kernels = [made.scaled(2.0), made.written(Path({str(tmp_path / 'source')!r}))];"
        "print([(k.ptx('sm_80'), k.cubin('sm_80')) for k in kernels])"
    )
    first, second = (
        subprocess.run([sys.executable, "-c", program, *rest], capture_output=True, text=True, check=False)
        for rest in ([], ["again"]))
    assert (first.returncode, second.returncode, second.stderr) == (0, 0, "")
    assert first.stdout == second.stdout and ".target sm_80" in first.stdout


def test_another_toolkit_compiles_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = scaled(2.0)
    before = kernel.cubin_path("sm_90")
    monkeypatch.setattr(compiling, "toolkit_key", lambda: "nvrtc 99")
    assert kernel.cubin_path("sm_90").parent != before.parent
