"""What goes wrong in a kernel."""

__all__ = ["KernelError"]


class KernelError(RuntimeError):
    """A kernel does what PTX forbids or what this machine does not know: kernel, line, block, thread, what."""
