"""PTX programs around instructions: operands come from an array, results go to another."""

from collections.abc import Iterable, Sequence

import numpy as np

from gpu import interpreter
from tests.interpreter.warp import LANES

__all__ = ["around", "execute", "launch", "signature"]

_LETTERS = {1: "p", 16: "h", 32: "r", 64: "d"}
_OPERANDS = 12
_OF_ONE = {
    "abs", "neg", "not", "cnot", "brev", "mov", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh",
}  # fmt: skip
_HEAD = """.version 8.8
.target sm_100
.address_size 64
.visible .entry tested(.param .u64 into, .param .u64 from)
{
.reg .pred %p<64>, %q<64>;
.reg .b16 %h<64>, %i<64>;
.reg .b32 %r<64>, %s<64>;
.reg .b64 %d<64>, %e<64>;
.reg .u64 %into, %from, %step;
.reg .u32 %lane;
mov.u32 %lane, %tid.x;
mul.wide.u32 %step, %lane, 8;
ld.param.u64 %into, [into];
ld.param.u64 %from, [from];
add.s64 %into, %into, %step;
add.s64 %from, %from, %step;
"""


def _width(kind: str) -> int:
    """Return the width of a register for a type."""
    if kind in ("pred", "f16x2", "bf16x2", "tf32", "bf16", "e4m3x2", "e5m2x2"):
        return {"pred": 1, "bf16": 16, "e4m3x2": 16, "e5m2x2": 16}.get(kind, 32)
    return max(16, int(kind[1:]))


def _fragments(words: list[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the registers of an ``mma``."""
    k, (d, a, _, c) = int(words[3][6:]), words[-4:]
    per_word = {"f16": 2, "bf16": 2, "tf32": 1}.get(a, 4)
    count = 3 * (k // per_word // 4) + (2 if c == "f16" else 4)
    return (32,) * (2 if d == "f16" else 4), (32,) * count


def signature(opcode: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the widths of an instruction's results and operands."""
    name, *words = opcode.split(".")
    kind = words[-1]
    bits = _width(kind) if name != "mma" else 32
    match name:
        case "mma":
            return _fragments(opcode.split("."))
        case "cvt":
            to, pair = words[-2], words[-2].endswith("x2") and not kind.endswith("x2")
            return (_width(to),), (bits,) * (1 + pair)
        case "setp":
            return (1, 1), (bits, bits, *(1,) * any(word in ("and", "or", "xor") for word in words))
        case "set":
            joined = any(word in ("and", "or", "xor") for word in words)
            return (_width(words[-2]),), (bits, bits, *(1,) * joined)
        case "selp":
            return (bits,), (bits, bits, 1)
        case "slct":
            return (_width(words[0]),), (_width(words[0]), _width(words[0]), 32)
        case "testp":
            return (1,), (bits,)
        case "shl" | "shr":
            return (bits,), (bits, 32)
        case "bfe" | "bfi":
            return (bits,), (*(bits,) * (1 + (name == "bfi")), 32, 32)
        case "popc" | "clz" | "bfind":
            return (32,), (bits,)
        case "movmatrix":
            return (32,), (32,)
    wide = bits * 2 if "wide" in words else bits
    if name in ("fma", "mad", "mad24", "sad", "madc", "shf", "prmt", "lop3", "dp4a", "dp2a"):
        return (wide,), (bits, bits, wide)
    return (wide,), (bits,) if name in _OF_ONE else (bits, bits)


def _names(widths: Sequence[int], letters: dict[int, str], offset: int = 0) -> list[str]:
    return [f"%{letters[width]}{offset + i}" for i, width in enumerate(widths)]


def _line(opcode: str, literal: int) -> tuple[str, list[str], tuple[int, ...]]:
    """Return an instruction, the registers of its results, and their widths."""
    results, operands = signature(opcode)
    into, taken = _names(results, {1: "q", 16: "i", 32: "s", 64: "e"}), _names(operands, _LETTERS)
    if opcode.startswith("lop3"):
        taken.append(str(literal))
    if opcode.startswith("mma"):
        c, b = {2: 2, 4: 4}[len(results) if opcode.split(".")[-4] == opcode.split(".")[-1] else 6 - len(results)], 0
        b = (len(operands) - c) // 3
        parts = (into, taken[: 2 * b], taken[2 * b : 3 * b], taken[3 * b :])
        return f"{opcode} {', '.join('{' + ', '.join(part) + '}' for part in parts)};", into, results
    first = "|".join(into) if opcode.startswith("setp") else into[0]
    return f"{opcode} {first}, {', '.join(taken)};", into, results


def _loads() -> str:
    """Return the instructions that fill registers of every width with the operands."""
    lines = []
    for i in range(_OPERANDS):
        lines.append(f"ld.global.b64 %d{i}, [%from+{i * 8 * LANES}];")
        lines += [f"cvt.u32.u64 %r{i}, %d{i};", f"cvt.u16.u64 %h{i}, %d{i};"]
        lines += [f"and.b64 %e0, %d{i}, 1;", f"setp.ne.b64 %p{i}, %e0, 0;"]
    return "\n".join(lines) + "\n"


def _stores(registers: list[str], widths: tuple[int, ...], place: int) -> list[str]:
    """Return the instructions that write results as 64-bit words."""
    lines = []
    for i, (register, width) in enumerate(zip(registers, widths, strict=True)):
        word = register if width == 64 else "%e63"
        if width == 1:
            lines.append(f"selp.b64 %e63, 1, 0, {register};")
        elif width < 64:
            lines.append(f"cvt.u64.u{width} %e63, {register};")
        lines.append(f"st.global.b64 [%into+{(place + i) * 8 * LANES}], {word};")
    return lines


def execute(opcodes: Sequence[str], operands: np.ndarray, literal: int = 0) -> dict[str, list[list[int]]]:
    """Run each instruction on operands uint64 [12, 32] in one kernel, and return its results lane by lane."""
    body, places = [_HEAD, _loads()], {}
    place = 0
    for opcode in opcodes:
        line, registers, widths = _line(opcode, literal)
        body += [line, *_stores(registers, widths, place)]
        places[opcode] = range(place, place + len(widths))
        place += len(widths)
    out = np.zeros((place, LANES), np.uint64)
    launch("\n".join([*body, "ret;", "}"]), out, np.ascontiguousarray(operands, np.uint64))
    return {opcode: [out[row].tolist() for row in rows] for opcode, rows in places.items()}


def launch(
    ptx: str, *arrays: np.ndarray, threads: int = LANES, grid: int = 1, before: Iterable[np.uint64] = ()
) -> object:
    """Run the kernel ``tested`` on arrays, whose addresses are its parameters, after the numbers ``before``."""
    memory = interpreter.Memory(arrays)
    params = [*before, *(np.uint64(memory.address(array)) for array in arrays)]
    return interpreter.launch(ptx, "tested", (grid, 1, 1), (threads, 1, 1), params, arrays)


def around(
    text: str, operands: Sequence[np.ndarray], registers: Sequence[str], declarations: str = ""
) -> list[np.ndarray]:
    """Run a piece of PTX on operands %p0.. %h0.. %r0.. %d0.., and return registers %q.. %i.. %s.. %e.. as words."""
    given = np.zeros((_OPERANDS, LANES), np.uint64)
    given[: len(operands)] = operands
    widths = {letter: width for width, letter in {1: "q", 16: "i", 32: "s", 64: "e"}.items()}
    stores = _stores(list(registers), tuple(widths[register[1]] for register in registers), 0)
    out = np.zeros((len(registers), LANES), np.uint64)
    launch("\n".join([_HEAD, declarations, _loads(), text, *stores, "ret;", "}"]), out, given)
    return list(out)
