"""The twins of ``refimpl.efficient``, as CUDA kernels."""
