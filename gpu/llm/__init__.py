"""The twins of ``refimpl.llm``, as CUDA kernels."""
