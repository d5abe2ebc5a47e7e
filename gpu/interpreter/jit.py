"""Numba for the interpreter: its machine code is kept under a hash of the sources in this folder alone.

A kernel that changes, or an executor, leaves the machine that runs it as it is.
"""

from gpu.executor.jit import inlined, jit_beside

__all__ = ["inlined", "jit"]

jit = jit_beside(__file__)
