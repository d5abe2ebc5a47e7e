"""Small kernels to compile."""

from pathlib import Path

from numba import cuda, float32

from gpu.compile import Kernel, cuda_kernel, device_function, numba_kernel

SOURCE = """
#include "add.cuh"
extern "C" __global__ void add_to(unsigned short *out, const float *x, int n, float bias) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = add(x[i], bias) * FACTOR;
}
"""
HEADER = "static __device__ float add(float a, float b) { return a + b; }\n"


def scaled(factor: float) -> Kernel:
    """A Numba kernel with a constant in its closure."""
    constant = float32(factor)

    @device_function
    def multiply(number):
        return number * constant

    @numba_kernel("float32[:, ::1]", "float32[:, :]", "int32", "float32", name=f"scale[{factor}]")
    def scale(out, x, column, bias):
        tile = cuda.shared.array(32, float32)
        row = cuda.threadIdx.x
        tile[row] = x[row, column]
        cuda.syncthreads()
        out[row, column] = multiply(tile[31 - row]) + bias

    return scale


def written(folder: Path, *, source: str = SOURCE, header: str = HEADER, options: tuple[str, ...] = ("-DFACTOR=2",),
            shared: int = 0) -> Kernel:
    """A CUDA C++ kernel in files of its own."""
    folder.mkdir(exist_ok=True)
    (folder / "add.cu").write_text(source)
    (folder / "add.cuh").write_text(header)
    parameters = (("out", "uint16*"), ("x", "float32*"), ("n", "int32"), ("bias", "float32"))
    return cuda_kernel(folder / "add.cu", "add_to", parameters, options=options, shared=shared)
