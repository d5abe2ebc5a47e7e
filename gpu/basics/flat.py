"""Kernels that know no axes, one thread an element: the arrays they get, and their launch."""

import math
from collections.abc import Callable

from gpu import device
from gpu.compile import Kernel
from gpu.grid import blocks_for
from refimpl.contract import Array, host

__all__ = ["THREADS", "applied", "launch_flat"]

THREADS = 256
"""Of a block."""


@host
def applied(launcher: Callable[..., None], *inputs: Array) -> Array:
    """Run a launcher on the inputs, and on a new array of the first one's shape and dtype."""
    shape = inputs[0].shape
    out = device.empty(math.prod(shape), inputs[0].dtype).reshape(shape)
    launcher(out, *(device.array(x).reshape(shape) for x in inputs))
    return out


@host
def launch_flat(made: Kernel, out: Array, *inputs: Array | float) -> None:
    """Run a kernel on flat views of arrays of one size, and on numbers as they are."""
    given = (x if isinstance(x, float) else x.reshape(-1) for x in (out, *inputs))
    device.launch(made, blocks_for(out.size, THREADS), THREADS, *given)
