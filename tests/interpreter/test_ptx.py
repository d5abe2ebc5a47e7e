"""The parser: what PTX text declares, and what it says where it is wrong."""

import pytest

from gpu.interpreter import KernelError
from gpu.interpreter.decode import decode
from gpu.interpreter.ptx import parse
from gpu.interpreter.syntax import Address, Negated, Real, Register, Symbol, Vector

HEAD = ".version 8.8\n.target sm_90\n.address_size 64\n"


def only(body: str, before: str = ""):
    """Return the one kernel of a text with this body."""
    module = parse(f"{HEAD}{before}.visible .entry k(.param .u64 x){{\n{body}\n}}")
    return module.entries["k"]


def operands(text: str):
    return only(f".reg .pred %p; .reg .b32 %r<4>; .reg .b64 d; op {text};").body[0].operands


def test_operands():
    r0, r1, p = Register("%r0"), Register("%r1"), Register("%p")
    assert operands("%r0, -5, 0x1F, 017, 3U") == (r0, -5, 31, 15, 3)
    assert operands("0f3F800000, 0dBFF0000000000000, 1.5") == (
        Real(0x3F800000, 32), Real(0xBFF0000000000000, 64), Real(0x3FF8000000000000, 64)
    )  # fmt: skip
    assert operands("{%r0, _}, %r0|%p, !%p") == (Vector((r0, Register("_"))), Vector((r0, p)), Negated(p))
    assert operands("[d], [d+16], [d+-4], [x+8], [64], x+4") == (
        Address(Register("d")), Address(Register("d"), 16), Address(Register("d"), -4), Address(Symbol("x", 8)),
        Address(64), Symbol("x", 4),
    )  # fmt: skip
    assert operands("%tid.x, (%r1, 2)") == (Register("%tid.x"), Vector((r1, 2)))


def test_guards_labels_and_lines():
    kernel = only(".reg .pred p;\nA: @p bra A; // again\n/* two\nlines */ @!p bra B;\nB:\nret;")
    first, second, last = kernel.body
    assert (first.guard, first.negated, first.line) == (Register("p"), False, 6)
    assert (second.guard, second.negated, second.line) == (Register("p"), True, 8)
    assert kernel.labels == {"A": 0, "B": 2} and last.opcode == "ret" and last.guard is None


def test_a_name_of_an_inner_scope_hides_an_outer_one():
    kernel = only(".reg .b32 t;\nop t;\n{ .reg .b64 t; op t; { .reg .f32 t; op t; } op t; }\nop t;")
    names = [instruction.operands[0].name for instruction in kernel.body]
    assert names[0] == names[4] == "t" and names[1] == names[3] and len(set(names)) == 3
    assert [kernel.registers[name] for name in names] == ["b32", "b64", "f32", "b64", "b32"]


def test_variables():
    before = """.visible .shared .align 16 .b8 room[64];
    .extern .shared .align 8 .f32 more[];
    .global .align 4 .u32 three[4] = {1, 0x10, 3};
    .const .f32 one = 0f3F800000; .const .align 8 .f64 two[2] = {2.0, -1};
    .global .v4 .f32 quad; .weak .global .b8 a, b[2] = {-1, 255};
    .common .global .align 8 .u64 shared_by_all;
    """
    module = parse(f"{HEAD}{before}.entry k(.param .u64 .ptr .global .align 16 x, .param .align 4 .b8 y[12]){{ ret; }}")
    found = {name: (v.space, v.size, v.align, v.initial) for name, v in module.variables.items()}
    assert found == {
        "room": ("shared", 64, 16, None), "more": ("shared", 0, 8, None),
        "three": ("global", 16, 4, bytes([1, 0, 0, 0, 16, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0])),
        "one": ("const", 4, 4, b"\0\0\x80\x3f"),
        "two": ("const", 16, 8, bytes(6) + b"\0\x40" + b"\xff" * 8),
        "quad": ("global", 16, 16, None), "a": ("global", 1, 1, None), "b": ("global", 2, 1, b"\xff\xff"),
        "shared_by_all": ("global", 8, 8, None),
    }  # fmt: skip
    assert [(v.name, v.size, v.align) for v in module.entries["k"].parameters] == [("x", 8, 8), ("y", 12, 4)]


def test_what_a_compiler_adds():
    text = f"""{HEAD}
    .file 1 "a.cu"
    .extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);
    .entry k()
    .maxntid 128, 1, 1
    .minnctapersm 2
    {{ .loc 1 2 3
    .pragma "nounroll"; ret; }}
    .section .debug_abbrev {{ .b8 1 .b8 2 }}
    .entry l() {{ ret; }}"""
    module = parse(text)
    assert list(module.entries) == ["k", "l"] and len(module.entries["k"].body) == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("mov.u32 %r1, 1;", "PTX line 5: there is no register %r1"),
        (".reg .b32 a; mov.u32 a, %cluster_ctaid.x;", "there is no register %cluster_ctaid.x"),
        (".reg .b32 a; ld.global.u32 a, [nowhere];", "there is no variable nowhere"),
        ("bra NOWHERE;", "there is no label NOWHERE"),
        (".reg .b32 a; frob.b32 a, a;", "PTX line 5: frob.b32 is not an instruction that this machine knows"),
        (".reg .f32 a; add.rn.satfinite.f32 a, a, a;", "add.rn.satfinite.f32 is not an instruction"),
        (".reg .f32 a; ex2.approx.f32 a, `a;", "PTX line 5: cannot read '`a"),
        ("A: ret; A: ret;", "a label other than A, which stands above"),
        (".reg .b32 a; mov.u32 a 1;", "',' should stand here, this is '1'"),
    ],
)
def test_what_is_wrong(body: str, said: str):
    with pytest.raises(KernelError, match=said):
        decode(f"{HEAD}.entry k(.param .u64 x){{\n{body}\n}}", "k")


def test_a_kernel_that_is_not_there():
    with pytest.raises(KernelError, match="the PTX has no kernel other; it has k"):
        decode(f"{HEAD}.entry k() {{ ret; }}", "other")
