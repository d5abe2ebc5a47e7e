"""Faults of the chapter's operations: each a way to be wrong that no other fault has."""

from tests.drill.faults import Fault
from tests.drill.order import kernel_fault

__all__ = ["CHAPTER"]

CHAPTER: tuple[Fault, ...] = (
    # Convolutions.
    kernel_fault(
        "state forgotten",
        "every chunk of a convolution begins with zeros",
        "basics/conv_kernels.py",
        "                    elif at < uint64(state.shape[0]):\n                        value",
        "                    elif at < uint64(0):\n                        value",
        "test_conv.py::test_conv1d",
    ),
    kernel_fault(
        "painted off the stride",
        "a transposed convolution paints every row",
        "basics/conv_kernels.py",
        "if at_y % stride_y == uint64(0) and at_y",
        "if at_y",
        "test_conv.py::test_conv_transpose2d",
    ),
)
