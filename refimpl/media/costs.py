"""What the operations of images and video do and move: rows of the table of ``bottleneck.cost``."""

__all__ = ["ROWS"]

ROWS: tuple[tuple[str, str, str], ...] = ()
"""By name: operations and bytes, as formulas over sizes."""
