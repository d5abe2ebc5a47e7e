"""The twins of refimpl/media: solver steps and the layers of denoisers as kernels."""
