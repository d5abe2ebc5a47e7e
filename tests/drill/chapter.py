"""Faults of the chapter's operations: each a way to be wrong that no other fault has."""

from tests.drill.faults import Fault

__all__ = ["CHAPTER"]

CHAPTER: tuple[Fault, ...] = ()
