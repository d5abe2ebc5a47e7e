"""python -m gpu.run image and video: what is drawn, what is refused, and what is left alone."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gpu.cli import pictures
from gpu.run import main
from refimpl.media.pipeline import noise_of, open_pipeline, plan_of, with_scheduler

Capture = pytest.CaptureFixture[str]
DEMO = Path(pictures.__file__).parents[2].joinpath("refimpl", "demo")
QUICK = ["image", "seven", "--steps", "2", "--no-stats"]


def _pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO / "glyphs", tmp_path / "model"))


def test_a_word_its_number_and_its_case_are_one_picture(tmp_path: Path) -> None:
    drawn = []
    for i, word in enumerate(("seven", "7", " SEVEN ")):
        assert main(["image", word, "--steps", "2", "--no-stats", "-o", str(tmp_path / f"{i}.png")]) == 0
        drawn.append(_pixels(tmp_path / f"{i}.png"))
    assert drawn[0].shape == (32, 32) and all((each == drawn[0]).all() for each in drawn)
    assert main([*QUICK, "-s", "1", "-o", str(tmp_path / "other.png")]) == 0
    assert (_pixels(tmp_path / "other.png") != drawn[0]).any()


def test_a_picture_does_not_depend_on_how_many_there_are(tmp_path: Path, capsys: Capture) -> None:
    assert main([*QUICK, "-n", "3", "-o", str(tmp_path / "%d.png"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["passes"] == 12 and record["pictures"] == 3 and record["label"] == 7
    assert main([*QUICK, "-n", "2", "-o", str(tmp_path / "both.png"), "--preview", str(tmp_path / "way.png")]) == 0
    both = _pixels(tmp_path / "both.png")
    assert (both == np.concatenate([_pixels(tmp_path / f"{i}.png") for i in (0, 1)], 1)).all()
    way = _pixels(tmp_path / "way.png")
    assert way.shape == (32, 96) and (way[:, 64:] == both[:, :32]).all()


def test_without_guidance_a_step_is_one_pass(tmp_path: Path, capsys: Capture) -> None:
    assert main([*QUICK, "--guidance-scale", "1", "-o", str(tmp_path / "a.png"), "--json", "--stats"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["passes"] == 2 and "no guidance" in err and "passes   2 of the denoiser" in err


@pytest.mark.parametrize("solver", ["euler", "heun", "dpm++", "unipc", "FlowMatchHeunDiscreteScheduler"])
def test_every_solver_draws_what_the_reference_draws(solver: str, tmp_path: Path, capsys: Capture) -> None:
    assert main([*QUICK, "--scheduler", solver, "--verify", "-o", str(tmp_path / "a.png")]) == 0
    assert "are the reference's" in capsys.readouterr().err


def test_verify_finds_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("gpu.verify_picture.open_pipeline", lambda path, dtype: open_pipeline("glyphs-fast", dtype))
    assert main([*QUICK, "--verify", "-o", str(tmp_path / "a.png")]) == 1
    assert "latent 1 is the first to differ" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["eleven"], "glyphs draws zero, one"), ([""], "what shall be drawn"), (["7", "-p", "8"], "give one"),
        (["7", "--steps", "0"], "from 1 to"), (["7", "--steps", "1001"], "1 to 1000 steps"),
        (["7", "--guidance-scale", "nan"], "--guidance-scale"), (["7", "--negative-prompt", "ten"], "not 'ten'"),
        (["7", "--height", "33"], "height is a multiple of 8"), (["7", "--width", "4"], "width is a multiple of 8"),
        (["7", "-m", "nowhere"], "neither a folder nor one of"), (["7", "-m", "moving-glyphs"], "a model of videos"),
        (["7", "--scheduler", "DDIMScheduler"], "trained to give flow_prediction"),
        (["7", "--scheduler", "fast"], "a scheduler is euler"), (["7", "-o", "a.txt"], "writes .png"),
        (["7", "-o", "no/where/a.png"], "cannot write no/where/a.png"), (["7", "--device", "cuda"], "device cuda"),
        (["7", "--num-images", "0"], "--num-images"), (["7", "--preview", "a.mp4"], "--preview writes"),
        (["7", "-o", "a.png", "--preview", "./a.png"], "both name"), (["7", "--explain", "--json"], "draws nothing"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_what_cannot_be_is_one_line(
    argv: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpu.cli.pictures.draw", lambda *args: pytest.fail("work was begun"))
    assert main(["image", *argv]) == 2
    out, err = capsys.readouterr()
    assert said in err and err.count("\n") == 1 and out == "" and list(tmp_path.iterdir()) == []


def _without(name: str) -> Any:
    return lambda folder: (folder / name).unlink()


def _cut(folder: Path) -> None:
    path = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


def _changed(name: str, key: str, value: Any) -> Any:
    def change(folder: Path) -> None:
        config = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**config, key: value}))

    return change


@pytest.mark.parametrize(
    "damage",
    [
        _without("model_index.json"), _without("vae/config.json"), _without("scheduler/scheduler_config.json"),
        _without("vae/diffusion_pytorch_model.safetensors"), _cut, _changed("transformer/config.json", "num_layers", 6),
        _changed("transformer/config.json", "in_channels", 8), _changed("vae/config.json", "latent_channels", 8),
        _changed("vae/config.json", "out_channels", 2), _changed("model_index.json", "_class_name", "FluxPipeline"),
        _changed("model_index.json", "id2label", ["a"]), _changed("model_index.json", "id2label", {"99": "a"}),
        _changed("model_index.json", "guidance_scale", "much"), _changed("model_index.json", "num_inference_steps", 0),
        _changed("scheduler/scheduler_config.json", "_class_name", "MyScheduler"),
        _changed("scheduler/scheduler_config.json", "secret", 1),
    ],
)
def test_a_damaged_folder_is_one_line(damage: Any, copy: Path, tmp_path: Path, capsys: Capture) -> None:
    damage(copy)
    assert main([*QUICK, "-m", str(copy), "-o", str(tmp_path / "a.png")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "fault of the program" not in err and not (tmp_path / "a.png").exists()


def test_nan_is_one_line_and_damages_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    out = tmp_path / "a.png"
    out.write_bytes(b"what was there before")

    def poisoned(ref: str, name: str) -> Any:
        pipeline = open_pipeline(ref)
        weights, key = f"{name}_weights", "b_patch" if name == "denoiser" else "decoder.conv_in.bias"
        held = getattr(pipeline, weights)
        return replace(pipeline, **{weights: {**held, key: held[key] * np.float32(np.nan)}})

    wanted = {"denoiser": "the denoiser gave NaN or infinity in step 1", "autoencoder": "the decoder gave"}
    for name, said in wanted.items():
        monkeypatch.setattr(pictures, "open_pipeline", lambda ref, name=name: poisoned(ref, name))
        assert main([*QUICK, "-o", str(out)]) == 2
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1
    assert out.read_bytes() == b"what was there before" and list(tmp_path.iterdir()) == [out]


def test_ctrl_c_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    work, calls = pictures.picture_of, list[int]()

    def pressed(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return work(*args)

    monkeypatch.setattr(pictures, "picture_of", pressed)
    assert main([*QUICK, "-n", "9", "-o", str(tmp_path / "%d.png"), "--json"]) == 130
    record = json.loads(capsys.readouterr().out)
    assert record["stop"] == "interrupt" and record["pictures"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.png", "1.png"]


def test_ctrl_c_before_a_picture_is_there_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "a.png"
    out.write_bytes(b"what was there before")
    monkeypatch.setattr(pictures, "open_pipeline", lambda ref: signal.raise_signal(signal.SIGINT))
    assert main([*QUICK, "-o", str(out)]) == 130
    assert out.read_bytes() == b"what was there before"


def test_a_video_is_frames(tmp_path: Path) -> None:
    ask = ["video", "7", "--steps", "1", "--no-stats", "--num-frames", "5"]
    assert main([*ask, "-o", str(tmp_path / "a.gif"), "--fps", "10"]) == 0
    with Image.open(tmp_path / "a.gif") as video:
        assert video.n_frames == 5 and video.size == (32, 32) and video.info["duration"] == 100
    assert main([*ask, "-o", str(tmp_path / "a.png"), "--preview", str(tmp_path / "way.png"), "--verify"]) == 0
    assert _pixels(tmp_path / "a.png").shape == (32, 160) and _pixels(tmp_path / "way.png").shape == (32, 64)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--num-frames", "8"], "1 + a multiple of 4 frames"), (["-m", "glyphs"], "a model of images"),
        (["-n", "2"], "-n"),
    ],
)
def test_what_a_video_cannot_be(argv: list[str], said: str, tmp_path: Path, capsys: Capture) -> None:
    assert main(["video", "7", "-o", str(tmp_path / "a.gif"), *argv]) == 2
    assert said in capsys.readouterr().err and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["image", "video"])
def test_explain_counts_a_step_and_the_decoder(kind: str, capsys: Capture) -> None:
    assert main([kind, "7", "--explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.split()[:1] == ["total"] for line in lines) == 2 and "guided_combination" in "".join(lines)
    assert main([kind, "7", "--explain", "--guidance-scale", "1"]) == 0
    assert "guided_combination" not in capsys.readouterr().out


def test_noise_is_normal_and_each_image_has_its_own() -> None:
    many = noise_of(3, 0, 0, (100000,))
    assert abs(many.mean()) < 0.01 and abs(many.std() - 1) < 0.01 and abs((many**4).mean() - 3) < 0.15
    others = [noise_of(*place, (100000,)) for place in ((4, 0, 0), (3, 1, 0), (3, 0, 1))]
    assert all(abs(np.corrcoef(many, other)[0, 1]) < 0.02 for other in others)


def test_a_solver_by_name_keeps_the_flow_of_the_model(copy: Path) -> None:
    _changed("scheduler/scheduler_config.json", "shift", 3.0)(copy)
    pipeline = open_pipeline(copy)
    for name in ("euler", "heun"):
        sigmas = plan_of(with_scheduler(pipeline, name), 4).sigmas
        np.testing.assert_allclose(sigmas, [1, 0.9, 0.75, 0.5, 0])
    assert with_scheduler(pipeline, "dpm++").scheduler.config["flow_shift"] == 3.0
