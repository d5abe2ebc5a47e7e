"""Devices: which is picked, where arrays live, and what reaches CuPy, for which a recorder stands in."""

import importlib.util
import types
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpu import device, toolkit
from refimpl.contract import UsageError
from tests.compile.made import scaled, written

pytestmark = pytest.mark.usefixtures("cache")


class CudaArray:
    """An array as CuPy has it: memory elsewhere, an address, and a way back."""

    def __init__(self, x: np.ndarray) -> None:
        self._x = x
        self.data = types.SimpleNamespace(ptr=x.ctypes.data)
        self.dtype, self.shape, self.strides, self.size, self.ndim = x.dtype, x.shape, x.strides, x.size, x.ndim
        self.flags = types.SimpleNamespace(c_contiguous=x.flags.c_contiguous)

    def get(self) -> np.ndarray:
        return self._x.copy()


class Recorder:
    """Stands for CuPy with one GPU."""

    def __init__(self, gpus: int = 1) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.loaded: list[str] = []
        self.max_dynamic_shared_size_bytes = 48 * 1024
        self.RawModule = self._module
        runtime = types.SimpleNamespace(getDeviceCount=lambda: gpus, CUDARuntimeError=ZeroDivisionError)
        self.cuda = types.SimpleNamespace(
            runtime=runtime, Device=lambda index=0: types.SimpleNamespace(id=index, compute_capability="90"))

    def _module(self, *, path: str) -> Any:
        self.loaded.append(path)
        return types.SimpleNamespace(get_function=lambda name: self)

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int) -> None:
        self.launches.append((grid, block, args, shared_mem))

    def asarray(self, x: Any, dtype: Any = None) -> CudaArray:
        return CudaArray(np.array(x._x if isinstance(x, CudaArray) else x, dtype))

    def ascontiguousarray(self, x: CudaArray) -> CudaArray:
        return CudaArray(np.ascontiguousarray(x._x))

    def empty(self, shape: Any, dtype: Any) -> CudaArray:
        return CudaArray(np.empty(shape, dtype))


def install(monkeypatch: pytest.MonkeyPatch, cupy: Recorder | None) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: cupy if name == "cupy" else find(name))
    monkeypatch.setitem(__import__("sys").modules, "cupy", cupy)
    device._why_no_cuda.cache_clear()


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(monkeypatch, None)
    yield
    device._why_no_cuda.cache_clear()


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    install(monkeypatch, recorder)
    return recorder


def test_without_a_gpu_models_run_on_the_cpu_and_kernels_emulated() -> None:
    assert (device.pick(), device.pick("cpu"), device.pick("emulated")) == ("cpu", "cpu", "emulated")
    assert device.current() == "emulated"


def test_with_a_gpu_both_run_there(cupy: Recorder) -> None:
    assert (device.pick(), device.pick("cpu"), device.pick("cuda"), device.current()) == ("cuda", "cpu", "cuda", "cuda")


def test_cuda_without_cupy_says_what_to_install() -> None:
    with pytest.raises(UsageError, match=r'^device cuda is not there: CuPy is not installed: pip install -e "\.\['):
        device.pick("cuda")


def test_cuda_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Recorder(gpus=0))
    with pytest.raises(UsageError, match=r"^device cuda is not there: CuPy finds no GPU$"):
        device.pick("cuda")
    assert device.pick() == "cpu"


def test_cuda_without_a_driver_gives_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    recorder.cuda.runtime.getDeviceCount = lambda: 1 // 0
    install(monkeypatch, recorder)
    with pytest.raises(UsageError, match=r"^device cuda is not there: CuPy finds no GPU: .*by zero$"):
        device.pick("cuda")


def test_emulation_without_compilers_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit, "_is_there", lambda name: False)
    with pytest.raises(UsageError, match="pip install"):
        device.pick("emulated")


@pytest.mark.parametrize("name", ["tpu", "", "CUDA"])
def test_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"^device {name} is not there: this version runs on cpu, cuda, emulated$"):
        device.pick(name)


def test_kernels_do_not_run_on_the_cpu() -> None:
    with pytest.raises(UsageError, match="kernels run on cuda and emulated, not on cpu"), device.use("cpu"):
        pass


def test_device_is_of_the_block(cupy: Recorder) -> None:
    with pytest.raises(KeyError), device.use("emulated"):
        assert device.current() == "emulated"
        with device.use("cuda"):
            assert device.current() == "cuda"
        assert device.current() == "emulated"
        raise KeyError
    assert device.current() == "cuda"


@pytest.mark.parametrize("dtype", ["float32", ml_dtypes.bfloat16, "float16", "int32", "uint8"])
def test_emulated_arrays(dtype: Any) -> None:
    x = np.arange(12).reshape(3, 4).astype(dtype).T
    there = device.array(x)
    assert there.flags.c_contiguous and there.dtype == x.dtype and np.array_equal(device.to_host(there), x)
    fresh = device.empty((2, 3), dtype)
    assert fresh.shape == (2, 3) and fresh.dtype == x.dtype and fresh.tobytes() == b"\xff" * fresh.nbytes


@pytest.mark.parametrize("shape", [(), 0, (0, 3), 5])
def test_emulated_arrays_of_every_shape(shape: Any) -> None:
    assert device.empty(shape, "float32").shape == np.empty(shape).shape
    assert np.all(np.isnan(device.empty(shape, "float32")))


def test_cuda_arrays(cupy: Recorder) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4).T
    there = device.array(x, "float16")
    assert isinstance(there, CudaArray) and there.flags.c_contiguous and there.dtype == "float16"
    assert np.array_equal(device.to_host(there), x) and device.empty(3, "int32").shape == (3,)
    with device.use("emulated"):
        assert isinstance(device.array(there), np.ndarray)


def test_cuda_launch_gets_machine_code_of_the_gpu(cupy: Recorder) -> None:
    kernel = scaled(2.0)
    out, x = device.empty((32, 4), "float32"), device.empty((32, 4), "float32")
    for column in range(2):
        device.launch(kernel, 1, (32, 1), out, x, column, 0.5)
    assert cupy.loaded == [str(kernel.cubin_path("sm_90"))]
    (grid, block, args, shared), second = cupy.launches
    assert (grid, block, shared) == ((1, 1, 1), (32, 1, 1), 0)
    assert {type(number) for number in args} == {int, np.int32, np.float32}
    assert (args[4], args[13], args[-2], second[2][-2]) == (out.data.ptr, x.data.ptr, 0, 1)
    assert not list(kernel.cubin_path("sm_90").parent.glob("*.fatbin"))


def test_cuda_launch_raises_the_limit_of_shared_memory(cupy: Recorder, tmp_path: Any) -> None:
    kernel = written(tmp_path / "source", shared=1024)
    args = (device.empty(4, "uint16"), None, 4, 0.5)
    for shared, limit in ((0, 48 << 10), (48 << 10, 48 << 10), (100 << 10, 100 << 10), (64 << 10, 100 << 10)):
        device.launch(kernel, 1, 32, *args, shared=shared)
        assert cupy.max_dynamic_shared_size_bytes == limit
    assert [launch[3] >> 10 for launch in cupy.launches] == [1, 48, 100, 64]
    assert [float(number) for number in cupy.launches[0][2]] == [args[0].data.ptr, 0, 4, 0.5]


def test_launches_are_recorded(cupy: Recorder) -> None:
    kernel, args = scaled(2.0), (device.empty((32, 4), "float32"), device.empty((32, 4), "float32"), 0, 0.5)
    with device.recording() as launches:
        device.launch(kernel, 2, 32, *args, shared=64)
        device.launch(kernel, 0, 32, *args)
    device.launch(kernel, 1, 32, *args)
    assert launches == [device.Launch(kernel, (2, 1, 1), (32, 1, 1), 64, None)]


@pytest.mark.parametrize("grid", [0, (4, 0), (1, 1, 0)])
def test_grid_without_blocks_runs_nothing(cupy: Recorder, grid: Any) -> None:
    device.launch(scaled(2.0), grid, 32, None, None, 0, 0)
    assert cupy.launches == []


@pytest.mark.parametrize(("change", "message"), [
    (lambda out, x: (out, x, 1), "scale\\[2.0\\] takes 4 arguments \\(out, x, column, bias\\), got 3"),
    (lambda out, x: (out, x.astype("float64"), 1, 0), "scale\\[2.0\\]: x is float32\\[:, :\\], got float64"),
    (lambda out, x: (out, x.astype(ml_dtypes.bfloat16), 1, 0), "x is float32\\[:, :\\], got bfloat16"),
    (lambda out, x: (out, x[0], 1, 0), "x is float32\\[:, :\\], got 1 axes"),
    (lambda out, x: (out.T, x, 1, 0), "out is float32\\[:, ::1\\], got an array that is not C-contiguous"),
    (lambda out, x: (out, None, 1, 0), "x is float32\\[:, :\\], got NoneType"),
], ids=["count", "dtype", "bfloat16", "axes", "order", "none"])
def test_arguments_that_do_not_fit(change: Any, message: str) -> None:
    args = change(np.zeros((32, 4), np.float32), np.zeros((32, 4), np.float32))
    with pytest.raises(UsageError, match=message):
        scaled(2.0).pack(args, lambda array: 0)


@pytest.mark.parametrize("dtype", ["uint16", "float16", ml_dtypes.bfloat16])
def test_sixteen_bits_pass_for_uint16(tmp_path: Any, dtype: Any) -> None:
    packed = written(tmp_path / "source").pack((np.zeros(4, dtype), None, 4, 0.5), lambda array: 4096)
    assert packed[0] == 4096
