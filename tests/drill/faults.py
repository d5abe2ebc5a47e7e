"""What a fault of the drill is, and the faults of structure, of golden and of the executors."""

from dataclasses import dataclass

__all__ = ["OTHERS", "Fault"]


@dataclass(frozen=True)
class Fault:
    """An edit of one file, what is wrong after it, and the tests that must see it; ``new`` None deletes the file."""

    name: str
    what: str
    file: str
    old: str
    new: str | None
    checks: tuple[str, ...]


def _fault(name: str, what: str, file: str, old: str, new: str | None, *checks: str) -> Fault:
    return Fault(name, what, file, old, new, tuple(f"tests/{check}" for check in checks))


NORM, TWINS, CASES = "gpu/basics/norm.py", "mirror/test_twins.py", "golden/test_cases.py"

STRUCTURE = (
    _fault("twin deleted", "an operation has no CUDA twin", "gpu/llm/embedding.py", "", None, TWINS),
    _fault(
        "parameter renamed", "a twin's parameter has another name", "gpu/basics/linear.py",
        "@op\ndef linear(x:", "@op\ndef linear(inputs:", TWINS,
    ),
    _fault(
        "default changed", "a twin's eps is another", NORM,
        '@op\ndef rms_norm(\n    x: Float[Array, "... D"], gain: Float[Array, " D"], eps: float = 1e-6',
        '@op\ndef rms_norm(\n    x: Float[Array, "... D"], gain: Float[Array, " D"], eps: float = 1e-5', TWINS,
    ),
    _fault(
        "check skipped", "a twin does not check what the specification requires", NORM,
        '    require(eps >= 0, "C2", f"eps is {eps}, not 0 or more")', "", TWINS,
    ),
    _fault(
        "label changed", "a twin raises another label", "gpu/basics/linear.py",
        'require(fits, "C1"', 'require(fits, "C2"', TWINS,
    ),
    _fault(
        "launcher private", "a twin has no launcher", NORM, "@kernel\ndef rms_norm_into(",
        "@kernel\ndef _rms_norm_into(", TWINS,
    ),
    _fault(
        "kernel unlisted", "golden does not judge a kernel", "gpu/llm/embedding.py", "VARIANTS = (",
        "VARIANTS = ()\n_ALL = (", TWINS,
    ),
    _fault(
        "equivalence forgotten", "no test of hypothesis compares a kernel", "tests/equivalence/test_llm.py",
        "def test_embedding(", "def check_embedding(", TWINS,
    ),
    _fault(
        "source missing", "an operation names no source", "refimpl/basics/norm.py",
        "    Source: Ba, Kiros, Hinton, Layer normalization, 2016.\n", "", "mirror/test_stanzas.py",
    ),
    _fault(
        "source unknown", "a cited work is in no table", "refimpl/basics/norm.py",
        "Ba, Kiros, Hinton, Layer normalization, 2016", "Nobody, A paper that is not there, 2016",
        "mirror/test_sources.py",
    ),
    _fault(
        "constraint untested", "a labelled constraint has no test", "refimpl/basics/linear.py",
        "    Source:", "        (C9) nothing tests this.\n    Source:", "mirror/test_stanzas.py",
    ),
    _fault(
        "forward import", "a module imports what stands below it in CONTENTS", "refimpl/basics/linear.py",
        "from refimpl.contract import", "import refimpl.llm.rng\nfrom refimpl.contract import", "mirror/test_order.py",
    ),
    _fault(
        "contents incomplete", "a module stands in no table of contents", "refimpl/__init__.py",
        '    ("llm.rng", "counter-based random numbers: Philox 4x32-10"),\n', "", "mirror/test_order.py",
    ),
    _fault(
        "twin leans on its judge", "a twin calls the reference", NORM, "from refimpl.contract import",
        "from refimpl.basics.norm import rms_norm as truth\nfrom refimpl.contract import", "mirror/test_order.py",
    ),
    _fault(
        "role missing", "a public function has no role", "gpu/basics/linear.py", "@kernel\ndef linear_into(",
        "def linear_into(", "mirror/test_roles.py",
    ),
)  # fmt: skip

GOLDEN = (
    _fault(
        "vectors damaged", "a file of vectors is not that of the index", "golden/vectors/index.json", '"norm.npz": "',
        '"norm.npz": "0', CASES,
    ),
    _fault(
        "case judged by itself", "the source of a case is the reference", "golden/case.py", 'source=raw["source"]',
        'source="refimpl"', CASES,
    ),
    _fault(
        "tolerance too wide", "the judge lets planted faults pass", "golden/tolerance.py",
        "return 4 * math.sqrt(terms)", "return 4e6 * math.sqrt(terms)", CASES,
    ),
    _fault(
        "NaN ignored", "the judge does not ask where NaN stands", "golden/tolerance.py",
        "wrong = (finite != np.isfinite(result)) | (~finite", "wrong = (~finite", "golden/test_tolerance.py",
    ),
    _fault(
        "planted fault cured", "a case rejects nothing wrong", "golden/planted/layers.py",
        "    return layers.linear(x, w)\n", "    return layers.linear(x, w, b)\n", CASES,
    ),
    _fault(
        "derivation wrong", "an expectation no longer comes out of its derivation", "golden/derive/layers.py",
        "math.fsum(row * row) / len(row) + eps", "math.fsum(row * row) / len(row)", CASES,
    ),
    _fault(
        "reference wrong", "the specification itself errs", "refimpl/basics/norm.py", "(gain_offset + widen(gain))",
        "(widen(gain) - gain_offset)", CASES,
    ),
    _fault(
        "export truncated", "bfloat16 is exported as another type", "golden/exchange.py", "array.view(np.uint16)",
        "array.astype(np.uint16)", "golden/test_exchange.py",
    ),
)  # fmt: skip

CUDA = "executor/test_cuda.py::test_states_and_logits_are_the_references"

EXECUTORS = (
    _fault(
        "window ignored", "a layer's window does not reach attention", "gpu/executor/cuda.py",
        "window=mixer.window", "window=None", f"{CUDA}[narrow window]",
    ),
    _fault(
        "gains swapped", "queries are normalised by the keys' gain", "gpu/executor/cuda.py",
        'vectors[f"{prefix}{name}_norm.gain"]', 'vectors[f"{prefix}k_norm.gain"]',
        f"{CUDA}[biases, normed heads]",
    ),
    _fault(
        "residual forgotten", "a layer's input is not added to its output", "gpu/executor/cuda.py",
        "multiply(step.x, given, residual=step.x)", "multiply(step.x, given)", f"{CUDA}[llama]",
    ),
    _fault(
        "norm behind left out", "what a layer adds is not normalised", "gpu/executor/cuda.py",
        "self._norm(step.fed, step.fed, norm)", "step.fed", f"{CUDA}[gemma]", f"{CUDA}[olmo]",
    ),
    _fault(
        "parallel in turn", "the network of a parallel layer reads what attention wrote", "gpu/executor/cuda.py",
        'if layer.norms == "parallel" else None', "if False else None", f"{CUDA}[parallel]",
    ),
    _fault(
        "rotations mixed", "every layer turns by the first layer's table", "gpu/executor/cuda.py",
        "step.ropes[mixer.rope]", "step.ropes[self.spec.ropes[0]]", f"{CUDA}[gemma]",
    ),
    _fault(
        "correction ignored", "experts are chosen without the bias that chooses them", "gpu/executor/mixture.py",
        "if moe.correction:", "if False:", f"{CUDA}[glm moe]",
    ),
    _fault(
        "slot shifted", "a token's key goes to its neighbour's slot", "gpu/executor/buffers.py",
        "+ span % BLOCK_SIZE for row", "+ (span + 1) % BLOCK_SIZE for row", f"{CUDA}[llama]",
    ),
    _fault(
        "CPU norm centred once", "the executor's layer norm keeps what rounding left", "gpu/executor/operations.py",
        "return _norm(x, gain, bias, eps, True)", "return _norm(x, gain, bias, eps, False)", "golden/test_kernels.py",
    ),
)  # fmt: skip

OTHERS = (*STRUCTURE, *GOLDEN, *EXECUTORS)
