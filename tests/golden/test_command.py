"""python -m golden: what it prints, and its exit codes."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import golden.case
from golden.__main__ import main
from golden.adapters import implementation
from golden.case import read_cases
from golden.derive import DERIVATIONS
from golden.verify import Candidate, Implementation, verify


class Stranger:
    """An implementation of someone else, with one operation right and one wrong."""

    softmax = staticmethod(lambda x, axis=-1: DERIVATIONS["softmax"](x.astype(np.float64), axis).astype(x.dtype))
    relu = staticmethod(lambda x: np.abs(x))


def test_list_names_every_case(capsys: pytest.CaptureFixture[str]):
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    assert all(case.id in printed for case in read_cases())


def test_list_as_json(capsys: pytest.CaptureFixture[str]):
    assert main(["list", "--op", "softmax", "--json"]) == 0
    assert {case["op"] for case in json.loads(capsys.readouterr().out)} == {"softmax"}


def test_verify_refimpl(capsys: pytest.CaptureFixture[str]):
    assert main(["verify", "--against", "refimpl"]) == 0
    assert "0 wrong, 0 missing" in capsys.readouterr().out


def test_verify_a_stranger(capsys: pytest.CaptureFixture[str]):
    name = f"{__name__}:Stranger"
    assert main(["verify", "--against", name, "--op", "softmax"]) == 0
    assert main(["verify", "--against", name, "--op", "relu"]) == 1
    assert main(["verify", "--against", name, "--op", "softmax", "--op", "silu"]) == 1
    assert main(["verify", "--against", name, "--op", "softmax", "--op", "silu", "--partial"]) == 0
    capsys.readouterr()
    assert main(["verify", "--against", name, "--op", "relu", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["status"] == "fail"


def test_nothing_was_judged(capsys: pytest.CaptureFixture[str]):
    assert main(["verify", "--against", f"{__name__}:Stranger", "--op", "silu", "--partial"]) == 1
    assert capsys.readouterr().out.endswith("5 missing; nothing was judged\n")


def test_make_of_a_case_that_cannot_be_read_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    new = {"id": "relu.new", "op": "relu", "derive": "relu"}
    new["inputs"] = {"x": {"normal": [3], "seed": 1, "dtype": "float32"}}
    (tmp_path / "new.json").write_text(json.dumps([new]), encoding="utf-8")
    monkeypatch.setattr("golden.__main__.vector_files", lambda: [tmp_path / "new.json"])
    monkeypatch.setattr("golden.__main__.read_cases", lambda: pytest.fail("a case is read before it is made"))
    assert main(["make"]) == 0 and capsys.readouterr().out == "made: relu.new\nmade: index.json\n"
    (made,) = json.loads((tmp_path / "new.json").read_text(encoding="utf-8"))
    assert np.array_equal(made["expected"][0]["value"], np.maximum(made["inputs"]["x"]["value"], 0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "--against", "no_such_module:ops"], "module 'no_such_module' cannot be imported"),
        (["verify", "--against", "refimpl", "--device", "emulated"], "refimpl has no devices"),
        (["verify", "--against", "math:ops"], "module 'math' has no attribute 'ops'"),
        (["list", "--op", "nothing"], "no case of nothing"),
    ],
)
def test_senseless_request(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == 2
    printed = capsys.readouterr().err
    assert message in printed and printed.count("\n") == 1


@pytest.mark.parametrize(
    ("against", "absent"),
    [("refimpl", "jaxtyping"), ("gpu", "jaxtyping"), ("gpu --device cpu", "numba"), ("torch", "torch")],
)
def test_library_that_is_not_installed(against: str, absent: str):
    program = f"""
import sys
sys.modules[{absent!r}] = None
from golden.__main__ import main
sys.exit(main("verify --against {against}".split()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"golden: {absent} is not installed: pip install {absent}\n"


@pytest.mark.parametrize("device", [[], ["--device", "emulated"]])
def test_kernels_without_their_compilers(
    device: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("gpu.device.current", lambda: "emulated")  # as where there is no GPU
    monkeypatch.setattr("gpu.toolkit._is_there", lambda module: module != "numba_cuda")
    assert main(["verify", "--against", "gpu", *device]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("golden: CUDA kernels need numba-cuda")
    assert printed.err.count("\n") == 1


MODULES = {
    "syntax": "def", "fails": "raise RuntimeError('two\\nlines')", "leaves": "raise SystemExit(0)",
    "leaves_late": "def __getattr__(name): raise SystemExit(0)", "asks": "import no_such_module",
}  # fmt: skip


@pytest.mark.parametrize("name", [*MODULES, "", ":", "..:x", ".", "no.such:x", "math:", "leaves_late:ops"])
def test_module_that_cannot_be_judged(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for module, text in MODULES.items():
        (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    code = main(["verify", "--against", name])
    printed = capsys.readouterr()
    if name in ("math:", "leaves_late"):  # they can be imported, and hold no operation
        assert code == 1 and "nothing was judged" in printed.out
    else:
        assert code == 2 and printed.out == ""
        assert printed.err.startswith("golden: module ") and printed.err.count("\n") == 1


def damage(folder: Path, how: str) -> None:
    """Damage the vectors in one way."""
    case, arrays, index = (folder / name for name in ("norm.json", "norm.npz", "index.json"))
    data = bytearray(arrays.read_bytes())
    data[len(data) // 2] ^= 1
    match how:
        case "open brace" | "no cases" | "no list":
            case.write_text({"open brace": "{", "no cases": "[]", "no list": "{}"}[how])
        case "one case less":
            case.write_text(json.dumps(json.loads(case.read_text())[1:]))
        case "empty" | "truncated" | "flipped":
            arrays.write_bytes({"empty": b"", "truncated": data[: len(data) // 2], "flipped": data}[how])
        case "no arrays" | "no file" | "no index":
            {"no arrays": arrays, "no file": case, "no index": index}[how].unlink()
        case "index of nothing" | "index is no object":
            index.write_text("{}" if how == "index of nothing" else "[]")
        case "a file more":
            (folder / "other.json").write_text("[]")
        case "no folder":
            shutil.rmtree(folder)


@pytest.mark.parametrize(
    "how",
    [
        "open brace", "no cases", "no list", "one case less", "empty", "truncated", "flipped", "no arrays", "no file",
        "no index", "index of nothing", "index is no object", "a file more", "no folder",
    ],
)  # fmt: skip
def test_no_case_is_lost_without_a_word(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "vectors"
    shutil.copytree(Path(golden.case.__file__).parent / "vectors", folder)
    monkeypatch.setattr("golden.case._FOLDER", folder)
    monkeypatch.setattr("golden.__main__.read_cases", read_cases.__wrapped__)
    assert main(["list"]) == 0 and capsys.readouterr().err == ""
    damage(folder, how)
    for command in (["list"], ["verify", "--against", "refimpl"], ["conventions"]):
        assert main(command) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.startswith("golden: ") and printed.err.count("\n") == 1


def test_make_says_what_it_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("golden.__main__.vector_files", lambda: [tmp_path / "norm.json"])
    for text, arrays in (("{", b""), ("[]", b"PK\x03\x04"), ("{}", b"")):
        (tmp_path / "norm.json").write_text(text)
        (tmp_path / "norm.npz").write_bytes(arrays)
        assert main(["make"]) == 2
        assert capsys.readouterr().err.startswith("golden: norm.json ")


def test_device_that_is_full():
    done = subprocess.run(
        f'"{sys.executable}" -m golden list > /dev/full', shell=True, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr == "golden: the output cannot be used: No space left on device\n"


def judged(op: str, operation: Callable) -> set[tuple[str, str]]:
    """Return status and reason of every case of an operation."""
    stranger = Implementation("stranger", (Candidate(op, operation),))
    outcomes = verify([case for case in read_cases() if case.op == op], stranger)
    return {(outcome.status, outcome.reason) for outcome in outcomes}


def test_stranger_that_writes_into_its_inputs():
    def scribbling(x: np.ndarray, **more: Any) -> np.ndarray:
        y = softmax(x, **more)
        x[...] = 0
        return y

    (softmax,) = [each.call for each in implementation("refimpl").candidates if each.op == "softmax"]
    assert judged("softmax", softmax) == {("pass", "")}
    assert judged("softmax", scribbling) == {("fail", "the input x is changed in place")}
    assert judged("softmax", softmax) == {("pass", "")}, "the cases are as they were"


def test_stranger_that_answers_nonsense():
    def leaving(**arguments: Any) -> None:
        raise SystemExit(0)

    class LeavingLate:
        def __array__(self, *_: Any, **__: Any) -> None:
            raise SystemExit(0)

    assert {status for status, _ in judged("rms_norm", lambda **arguments: LeavingLate())} == {"fail"}
    ((status, reason),) = judged("rms_norm", lambda **arguments: [[1.0], [1.0, 2.0]])
    assert status == "fail" and reason.startswith("the result is no array")
    assert judged("rms_norm", leaving) == {("error", "SystemExit: 0")}
    for nonsense in (None, "text", object(), [], {}, [None]):
        assert {status for status, _ in judged("rms_norm", lambda nonsense=nonsense, **arguments: nonsense)} == {"fail"}


def test_reader_that_leaves(tmp_path: Path):
    done = subprocess.run(
        f'"{sys.executable}" -m golden list | head -n 1', shell=True, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == "" and done.stdout.count("\n") == 1
