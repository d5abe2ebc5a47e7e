"""python -m golden: what it prints, and its exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from golden.__main__ import main
from golden.case import read_cases
from golden.derive import DERIVATIONS


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
    assert capsys.readouterr().out.endswith("1 missing; nothing was judged\n")


def test_make_of_a_case_that_cannot_be_read_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    new = {"id": "relu.new", "op": "relu", "derive": "relu"}
    new["inputs"] = {"x": {"normal": [3], "seed": 1, "dtype": "float32"}}
    (tmp_path / "new.json").write_text(json.dumps([new]), encoding="utf-8")
    monkeypatch.setattr("golden.__main__.vector_files", lambda: [tmp_path / "new.json"])
    monkeypatch.setattr("golden.__main__.read_cases", lambda: pytest.fail("a case is read before it is made"))
    assert main(["make"]) == 0 and capsys.readouterr().out == "made: relu.new\n"
    (made,) = json.loads((tmp_path / "new.json").read_text(encoding="utf-8"))
    assert np.array_equal(made["expected"][0]["value"], np.maximum(made["inputs"]["x"]["value"], 0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "--against", "no_such_module:ops"], "module 'no_such_module' cannot be imported"),
        (["verify", "--against", "gpu"], "gpu has no twins of single operations yet"),
        (["verify", "--against", "math:ops"], "module 'math' has no attribute 'ops'"),
        (["list", "--op", "nothing"], "no case of nothing"),
    ],
)
def test_senseless_request(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == 2
    printed = capsys.readouterr().err
    assert message in printed and printed.count("\n") == 1


def test_reader_that_leaves(tmp_path: Path):
    done = subprocess.run(
        f'"{sys.executable}" -m golden list | head -n 1', shell=True, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == "" and done.stdout.count("\n") == 1
