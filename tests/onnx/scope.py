"""What an adapter says where refimpl has no such option."""

__all__ = ["OutOfScope"]


class OutOfScope(Exception):
    """An option of a node that refimpl does not have."""
