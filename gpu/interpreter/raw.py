"""Bytes at an address: loads and stores that nothing checks. The machine has checked before it calls them."""

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

__all__ = ["load8", "load16", "load32", "load64", "store8", "store16", "store32", "store64"]

_WORD = ir.IntType(64)


def _load(bits: int) -> Any:
    """Pair a signature with the code of a load of ``bits`` bits, widened with zeros."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = builder.inttoptr(values[0], ir.IntType(bits).as_pointer())
        value = builder.load(place, align=1)
        return value if bits == 64 else builder.zext(value, _WORD)

    return types.uint64(types.int64), generate


def _store(bits: int) -> Any:
    """Pair a signature with the code of a store of the low ``bits`` bits."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = builder.inttoptr(values[0], ir.IntType(bits).as_pointer())
        value = values[1] if bits == 64 else builder.trunc(values[1], ir.IntType(bits))
        builder.store(value, place, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), generate


@intrinsic
def load8(context, address):
    """Return the byte at an address."""
    return _load(8)


@intrinsic
def load16(context, address):
    """Return the 2 bytes at an address."""
    return _load(16)


@intrinsic
def load32(context, address):
    """Return the 4 bytes at an address."""
    return _load(32)


@intrinsic
def load64(context, address):
    """Return the 8 bytes at an address."""
    return _load(64)


@intrinsic
def store8(context, address, value):
    """Store the low byte of a value at an address."""
    return _store(8)


@intrinsic
def store16(context, address, value):
    """Store the low 2 bytes of a value at an address."""
    return _store(16)


@intrinsic
def store32(context, address, value):
    """Store the low 4 bytes of a value at an address."""
    return _store(32)


@intrinsic
def store64(context, address, value):
    """Store the 8 bytes of a value at an address."""
    return _store(64)
