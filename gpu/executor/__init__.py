"""Executors: each runs any ModelSpec. ``cpu`` runs it with Numba kernels on the processor."""

__all__: list[str] = []
