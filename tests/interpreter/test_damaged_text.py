"""PTX that is none: one sentence that says where, and no launch."""

import pytest

from gpu.interpreter import KernelError
from gpu.interpreter.decode import decode

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 k_0)"
BODY = "{\n.reg .b32 %r<4>;\nadd.s32 %r1, %r2, %r3;\nret;\n}\n"


def test_every_text_that_breaks_off():
    text = HEAD + BODY
    assert decode(text, "k").name == "k"
    said = r"^(PTX line \d+: (.* should stand here|cannot read)|the PTX has)"
    for end in range(len(text.rstrip())):
        with pytest.raises(KernelError, match=said):
            decode(text[:end], "k")


@pytest.mark.parametrize("branch", ["bra;", "bra %r1;", "bra 5;", "brx.idx %r1;"])
def test_branch_to_nowhere(branch):
    with pytest.raises(KernelError, match=r"^k, PTX line \d+: br\w+(\.idx)? names no label$"):
        decode(HEAD + BODY.replace("ret;", branch), "k")
