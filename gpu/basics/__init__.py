"""The twins of ``refimpl.basics``, as CUDA kernels."""
