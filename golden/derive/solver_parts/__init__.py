"""What golden/derive/solvers.py is put together from: no derivations of their own."""

__all__: list[str] = []
