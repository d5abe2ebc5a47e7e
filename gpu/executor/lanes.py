"""Vector code written as ordinary Python: thirty-two lanes, one for each output row of a tile of weights.

A ``Value`` stands for a number, an address or a vector in code that is being made: ``to_float((words >> 4) & 15)``
appends LLVM instructions and returns the Value of the last one; ``for k in loop(columns)`` appends a loop around its
body. Numba would compile the same text, but types and optimises each small function by itself: eight times slower.

The instructions are generic LLVM vector IR, of which LLVM makes two registers of AVX-512, four of AVX2 or eight of
NEON. Each is one IEEE operation a lane, in the order written; nothing here may be reassociated, so equal inputs give
equal bits on all of them. Addresses and counts are 64-bit integers, never negative.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.registry import cpu_target

from refimpl.contract import host

__all__ = [
    "ROWS", "Value", "Variable", "call", "emit", "fma", "has", "load_bfloats", "load_floats", "load_halves",
    "load_shorts", "load_words", "loop", "splat", "store", "to_float", "when", "zeros",
]  # fmt: skip

ROWS = 32
_F16, _F32, _I8, _I16, _I32, _I64 = ir.HalfType(), ir.FloatType(), *(ir.IntType(bits) for bits in (8, 16, 32, 64))


@host
def has(feature: str) -> bool:
    """Say whether the processor that Numba compiles for has a feature, by LLVM's name for it."""
    return f"+{feature}" in cpu_target.target_context.codegen().magic_tuple()[2].split(",")


class Value:
    """A number or a vector of the code being made; operators append the instruction, a number means every lane."""

    def __init__(self, builder: ir.IRBuilder, value: ir.Value) -> None:
        self.builder, self.value = builder, value

    @property
    def lanes(self) -> int:
        """Return the number of lanes, 0 for a scalar."""
        return self.value.type.count if isinstance(self.value.type, ir.VectorType) else 0

    def like(self, other: "Value | float") -> ir.Value:
        """Return ``other`` in this type: a constant, or a scalar copied to every lane."""
        if not isinstance(other, Value):
            return ir.Constant(self.value.type, [other] * self.lanes if self.lanes else other)
        if self.lanes and not other.lanes:
            narrow = self.builder.trunc(other.value, _I32) if other.value.type == _I64 else other.value
            return splat(Value(self.builder, narrow), self.lanes).value
        return other.value

    def make(self, method: str, other: "Value | float") -> "Value":
        """Append a binary instruction by its name in llvmlite, with an ``f`` before it for floats."""
        kind = self.value.type.element if self.lanes else self.value.type
        name = f"f{method}" if kind == _F32 else method
        return Value(self.builder, getattr(self.builder, name)(self.value, self.like(other)))

    def cast(self, method: str, kind: ir.Type) -> "Value":
        """Append a conversion to ``kind``, a type of one lane."""
        return Value(self.builder, getattr(self.builder, method)(self.value, _vector(kind, self.lanes)))

    def of(self, number: int) -> "Value":
        """Return a number as a Value of this type."""
        return Value(self.builder, self.like(number))

    def __add__(self, other: "Value | float") -> "Value":
        return self.make("add", other)

    def __sub__(self, other: "Value | float") -> "Value":
        return self.make("sub", other)

    def __mul__(self, other: "Value | float") -> "Value":
        return self.make("mul", other)

    def __and__(self, other: "Value | int") -> "Value":
        return self.make("and_", other)

    def __or__(self, other: "Value | int") -> "Value":
        return self.make("or_", other)

    def __xor__(self, other: "Value | int") -> "Value":
        return self.make("xor", other)

    def __lshift__(self, other: "Value | int") -> "Value":
        return self.make("shl", other)

    def __rshift__(self, other: "Value | int") -> "Value":
        return self.make("lshr", other)

    def __floordiv__(self, other: "Value | int") -> "Value":
        return self.make("udiv", other)

    def __mod__(self, other: "Value | int") -> "Value":
        return self.make("urem", other)

    def __eq__(self, other: object) -> bool:
        raise TypeError("compare with when(), the answer is not known yet")

    __hash__ = None


class Variable:
    """A value that a loop changes; LLVM keeps it in registers."""

    def __init__(self, first: Value) -> None:
        self._builder = first.builder
        self._place = cgutils.alloca_once(first.builder, first.value.type)
        self.set(first)

    def set(self, new: Value) -> None:
        """Change the value."""
        self._builder.store(new.value, self._place)

    def get(self) -> Value:
        """Return the value as it is now."""
        return Value(self._builder, self._builder.load(self._place))


@host
def emit(write: Callable[..., None], arguments: Sequence[types.Type]) -> Any:
    """Return what an ``intrinsic`` returns: ``write`` gets the arguments as Values; literals as Python numbers."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        write(*(
            kind.literal_value if isinstance(kind, types.Literal) else Value(builder, value)
            for kind, value in zip(signature.args, values, strict=True)
        ))
        return context.get_dummy_value()

    return types.void(*(kind if isinstance(kind, types.Literal) else types.int64 for kind in arguments)), generate


@host
def when(value: Value, equals: int) -> AbstractContextManager[None]:
    """Append a branch: the body of this ``with`` runs when value = equals."""
    return value.builder.if_then(value.builder.icmp_unsigned("==", value.value, value.like(equals)))


@host
def loop(count: Value) -> Iterator[Value]:
    """Append a loop: the body of this ``for`` runs for 0 .. count - 1.

    LLVM is told to leave it a loop: unrolling doubles the time to compile, and the code is no faster.
    """
    builder, module = count.builder, count.builder.module
    with cgutils.for_range(builder, count.value) as turn:
        yield Value(builder, turn.index)
        last = builder.basic_block
    rolled = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    mark = module.add_metadata([rolled, _I32(len(module.metadata))])
    mark.operands = mark, rolled  # a loop is marked by a node that names itself
    last.terminator.set_metadata("llvm.loop", mark)


def _vector(kind: ir.Type, lanes: int) -> ir.Type:
    return ir.VectorType(kind, lanes) if lanes else kind


@host
def call(name: str, returns: ir.Type, *arguments: Value) -> Value:
    """Append a call of an LLVM function by its name."""
    builder, values = arguments[0].builder, [argument.value for argument in arguments]
    kind = ir.FunctionType(returns, [value.type for value in values])
    return Value(builder, builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values))


def _load(address: Value, kind: ir.Type, align: int) -> Value:
    builder = address.builder
    return Value(builder, builder.load(builder.inttoptr(address.value, kind.as_pointer()), align=align))


@host
def load_floats(address: Value, lanes: int = ROWS) -> Value:
    """Return float32 side by side; 0 lanes: one, as a scalar."""
    return _load(address, _vector(_F32, lanes), 4)


@host
def load_words(address: Value, lanes: int = ROWS) -> Value:
    """Return int32 side by side; stored blocks are aligned to two bytes only."""
    return _load(address, _vector(_I32, lanes), 2)


@host
def load_shorts(address: Value, lanes: int = ROWS) -> Value:
    """Return int16 side by side."""
    return _load(address, _vector(_I16, lanes), 2)


@host
def load_bfloats(address: Value) -> Value:
    """Return bfloat16 side by side, widened."""
    return (load_shorts(address).cast("zext", _I32) << 16).cast("bitcast", _F32)


@host
def load_halves(address: Value) -> Value:
    """Return float16 side by side, widened: by the processor where it can, else by integers.

    Exponent and fraction, moved to their float32 places, read as the number times 2^-112, subnormals too.
    """
    if has("f16c") or has("neon"):
        return _load(address, _vector(_F16, ROWS), 2).cast("fpext", _F32)
    bits = load_shorts(address).cast("zext", _I32)
    moved = (bits & 0x7FFF) << 13
    finite = (moved.cast("bitcast", _F32) * 2.0**112).cast("bitcast", _I32)
    is_finite = moved.builder.icmp_unsigned("<", moved.value, moved.like(0x7C00 << 13))
    chosen = moved.builder.select(is_finite, finite.value, (moved | 0x7F800000).value)
    return (Value(moved.builder, chosen) | ((bits & 0x8000) << 16)).cast("bitcast", _F32)


@host
def store(address: Value, value: Value) -> None:
    """Write the lanes side by side."""
    address.builder.store(value.value, address.builder.inttoptr(address.value, value.value.type.as_pointer()), align=4)


@host
def splat(scalar: Value, lanes: int = ROWS) -> Value:
    """Return a scalar in every lane."""
    builder, kind = scalar.builder, scalar.value.type
    empty = ir.Constant(_vector(kind, lanes), ir.Undefined)
    first = builder.insert_element(empty, scalar.value, _I32(0))
    return Value(builder, builder.shuffle_vector(first, empty, ir.Constant(_vector(_I32, lanes), [0] * lanes)))


@host
def zeros(near: Value, integer: bool = False) -> Value:
    """Return 32 zeros, float32 or int32, in the code that ``near`` belongs to."""
    return Value(near.builder, ir.Constant(_vector(_I32 if integer else _F32, ROWS), [0] * ROWS))


@host
def to_float(x: Value) -> Value:
    """Return signed integers as float32."""
    return x.cast("sitofp", _F32)


@host
def fma(x: Value, y: Value, z: Value) -> Value:
    """Return x y + z with one rounding; y may be a scalar."""
    return call(f"llvm.fma.v{x.lanes}f32", x.value.type, x, Value(x.builder, x.like(y)), z)
