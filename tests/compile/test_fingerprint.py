"""A kernel's key changes with all that its machine code depends on, and with nothing else."""

import subprocess
import sys
import types

import numpy as np
import pytest
from numba import cuda, float32

from gpu.compile import device_function
from gpu.fingerprint import fingerprint

PROGRAM = """
import numpy as np
from numba import cuda, float32, int32, types
from numba.extending import intrinsic
from llvmlite import ir
from gpu.compile import device_function, numba_kernel

SCALE = 2.0
OFFSETS = (1, np.float32(2))

@device_function
def inner(x):
    return x * float32(SCALE)

@device_function
def outer(x, y=1):
    return inner(x) + y

def made(width, text):
    @intrinsic
    def instruction(context, x):
        def emit(context, builder, signature, values):
            kind = ir.FunctionType(ir.FloatType(), [ir.FloatType()])
            return builder.call(ir.InlineAsm(kind, text, "=f,f"), values)
        return types.float32(types.float32), emit

    def kernel(out, x):
        for row in [index for index in range(width)]:
            out[row] = outer(instruction(x[row])) + OFFSETS[1] + np.sqrt(x[row])
    return kernel
"""
CALL = "\nfrom gpu.fingerprint import fingerprint\nprint(fingerprint(made(4, 'neg.f32 $0, $1;')))"
COMPILED = """
@numba_kernel("float32[::1]")
def other(out):
    out[0] = outer(out[0])
other.compile("sm_90")
"""
CHANGES = {
    "global": ("SCALE = 2.0", "SCALE = 3.0"), "type of a global": ("SCALE = 2.0", "SCALE = 2"),
    "element": ("(1, np.float32(2))", "(1, np.float64(2))"), "closure": ("made(4", "made(5"),
    "callee of a callee": ("return x * float32", "return x + float32"), "default": ("y=1", "y=2"),
    "instruction": ("neg.f32", "abs.f32"), "constraint": ("=f,f", "=r,f"),
    "name": ("np.sqrt", "np.exp"), "nested code": ("[index for", "[index + 1 for"), "cast": ("* float32", "* int32"),
}


def fingerprint_of(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def unchanged() -> str:
    return fingerprint_of(PROGRAM + CALL)


@pytest.mark.parametrize("change", CHANGES)
def test_depends_on(change: str, unchanged: str) -> None:
    before, after = CHANGES[change]
    assert (PROGRAM + CALL).count(before) == 1
    assert fingerprint_of((PROGRAM + CALL).replace(before, after)) != unchanged


@pytest.mark.parametrize("program", [
    PROGRAM + CALL, PROGRAM + COMPILED + CALL, "# moved\n" * 10 + PROGRAM + CALL, PROGRAM.replace("emit", "e") + CALL,
], ids=["again", "after compiling", "moved", "a local renamed"])
def test_does_not_depend_on(program: str, unchanged: str) -> None:
    assert fingerprint_of(program) == unchanged


@pytest.mark.parametrize("values", [
    (1, 2), (1, 1.0), (1, True), ("1", b"1"), (np.float32(1), np.float64(1)), ((1, 2), ((1,), 2)), (None, "None"),
    (np.zeros(2), np.zeros(2, np.float32)), (np.zeros((2, 1)), np.zeros((1, 2))), (np.dtype("i4"), np.dtype("i8")),
    (min, max), (np.exp, np.log), (float32, np.float32), ({"a": 1}, {"a": 2}),
], ids=str)
def test_tells_apart(values: tuple[object, object]) -> None:
    assert fingerprint(values[0]) != fingerprint(values[1])


def test_functions_that_call_each_other() -> None:
    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return n != 0 and even(n - 1)

    assert fingerprint(even) != fingerprint(odd)


def test_what_a_device_function_does() -> None:
    @device_function
    def one():
        return cuda.threadIdx.x + 1

    @device_function
    def two():
        return cuda.threadIdx.x + 2

    assert fingerprint(one) != fingerprint(two)


@pytest.mark.parametrize("value", [object(), types.SimpleNamespace(a=1), subprocess, lambda: subprocess, {1, 2}],
                         ids=["object", "namespace", "module", "module inside", "set"])
def test_refuses_what_it_cannot_know(value: object) -> None:
    with pytest.raises(TypeError, match="a kernel can lean on"):
        fingerprint(value)
