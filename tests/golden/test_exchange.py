"""Cases as plain files: what an implementation in another language reads, and what is judged of what it writes."""

import json
from pathlib import Path

import numpy as np
import pytest

from golden.__main__ import main
from golden.adapters import implementation
from golden.case import Case, read_cases
from golden.values import dtype_named

REFERENCE = {candidate.op: candidate.call for candidate in implementation("refimpl").candidates}


def read(folder: Path, value):
    """Read a value as someone would who has only the layout's description."""
    if isinstance(value, list):
        return tuple(read(folder, item) for item in value)
    if not isinstance(value, dict):
        return value
    if "float" in value:
        return float(value["float"])
    data = np.frombuffer((folder / value["file"]).read_bytes(), dtype_named(value["dtype"]))
    return data.reshape(value["shape"]).copy()


def answer(folder: Path, case: dict) -> None:
    results = []
    for call in case["calls"]:
        result = REFERENCE[case["op"]](**{name: read(folder, value) for name, value in call.items()})
        results += result if isinstance(result, tuple) else (result,)
    for result, wanted in zip(results, case["results"], strict=True):
        (folder / wanted["file"]).write_bytes(np.asarray(result, dtype_named(wanted["dtype"])).tobytes())


def exported(folder: Path) -> list[dict]:
    assert main(["export", str(folder)]) == 0
    return json.loads((folder / "cases.json").read_text(encoding="utf-8"))["cases"]


def test_every_case_survives_the_way_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for case in exported(tmp_path):
        answer(tmp_path, case)
    assert main(["judge", str(tmp_path)]) == 0
    assert f"{len(read_cases())} passed, 0 wrong, 0 missing" in capsys.readouterr().out


def test_what_is_exported_is_what_the_case_holds(tmp_path: Path):
    cases: dict[str, Case] = {case.id: case for case in read_cases()}
    for written in exported(tmp_path):
        for call, mine in zip(written["calls"], cases[written["id"]].calls, strict=True):
            for name, value in call.items():
                assert repr(read(tmp_path, value)) == repr(mine[name])


def test_results_that_are_wrong_short_or_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    first, second, third, *_ = [case for case in exported(tmp_path) if case["op"] == "softmax"]
    for case in (first, second, third):
        answer(tmp_path, case)
    wrong, short = (tmp_path / case["results"][0]["file"] for case in (first, second))
    wrong.write_bytes(bytes(len(wrong.read_bytes())))
    short.write_bytes(short.read_bytes()[:-1])
    capsys.readouterr()
    assert main(["judge", str(tmp_path), "--op", "softmax", "--json"]) == 1
    verdicts = {each["id"]: each for each in json.loads(capsys.readouterr().out)}
    assert verdicts[first["id"]]["status"] == "fail"
    assert verdicts[second["id"]]["status"] == "error" and "bytes, expected" in verdicts[second["id"]]["reason"]
    assert verdicts[third["id"]]["status"] == "pass"
    judged = {case["id"] for case in (first, second, third)}
    assert {each["status"] for id, each in verdicts.items() if id not in judged} == {"missing"}


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    kept = tmp_path / "mine.txt"
    kept.write_text("mine")
    assert main(["export", str(tmp_path)]) == 2 and main(["export", str(kept)]) == 2
    assert capsys.readouterr().err.count("is not an empty folder") == 2 and kept.read_text() == "mine"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cases": [1]}', '{"cases": [], "specification": "0"}'])
def test_folder_that_is_no_export(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "cases.json").write_text(text)
    assert main(["judge", str(tmp_path)]) == 2 and main(["judge", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 2


@pytest.mark.parametrize("nested", [False, True])
def test_index_that_never_ends_or_is_too_deep(nested: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    index = tmp_path / "cases.json"
    if nested:
        index.write_text("[" * 100_000)
    else:
        index.symlink_to("/dev/zero")
    assert main(["judge", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"golden: {tmp_path} holds no exported cases")


def test_result_larger_than_memory_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    result = next(case for case in exported(tmp_path) if case["op"] == "relu")["results"][0]
    with (tmp_path / result["file"]).open("wb") as file:
        file.truncate(1 << 36)
    assert main(["judge", str(tmp_path), "--op", "relu"]) == 1
    assert f"has {1 << 36} bytes, expected" in capsys.readouterr().out
