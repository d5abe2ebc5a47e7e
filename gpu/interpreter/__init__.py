"""The PTX interpreter: runs a kernel's PTX on NumPy arrays and finds its faults. It needs no GPU."""

from gpu.interpreter.errors import KernelError
from gpu.interpreter.launch import launch
from gpu.interpreter.regions import Memory

__all__ = ["KernelError", "Memory", "launch"]
