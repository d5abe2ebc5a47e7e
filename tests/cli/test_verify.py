"""--verify finds what is wrong, and where."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

import refimpl
from gpu.run import main
from gpu.verify import layer_errors


def test_the_first_wrong_layer_is_named(model: str) -> None:
    ids = list(range(40, 60))
    truth = refimpl.load(model, dtype="float64").hidden_states(ids)
    plain = refimpl.load(model).hidden_states(ids)
    assert all(error.rounding for error in layer_errors(plain, plain, truth))
    wrong = [plain[0], plain[1] * np.float32(1 + 1e-4), plain[2]]
    assert [error.rounding for error in layer_errors(wrong, plain, truth)] == [True, False, True]


def test_another_model_is_not_the_reference(model: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    import gpu

    other = shutil.copytree(model, tmp_path / "other")
    config = other / "config.json"
    config.write_text(config.read_text().replace('"rope_theta": 10000.0', '"rope_theta": 100.0'))
    monkeypatch.setattr("gpu.cli.answering.load_model", lambda options: gpu.load(str(other)))
    assert main(["-m", model, "the cat sat on the mat", "--raw", "-n", "16", "--ignore-eos", "--verify"]) == 1
    err = capsys.readouterr().err
    assert "layer 0 is the first to differ beyond float32 rounding" in err and "the reference's is" in err
