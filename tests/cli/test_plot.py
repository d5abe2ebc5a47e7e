"""--plot: a picture whose points lie on the roof, and refusals before anything is loaded."""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread

from gpu.cli.plot import check_plot, clusters, draw_roofline
from gpu.run import main
from refimpl.bottleneck.roofline import DEVICES, Cost, attainable, peak, ridge
from refimpl.bottleneck.serving import phase_costs
from refimpl.contract import UsageError
from refimpl.models.families import read_spec
from refimpl.models.published import published_config

Capture = pytest.CaptureFixture[str]
H100 = DEVICES["H100"]
LLAMA = read_spec(published_config("llama-3.1-8b"))
PHASES = {"prefill: 4096 tokens": phase_costs(LLAMA, 4096), "decode: 1 token after 4096": phase_costs(LLAMA, 1, 4096)}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Keep the figures that are saved."""
    saved: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **more: (saved.append(self), save(self, *args, **more)))
    return saved


def test_points_lie_on_the_roof_which_bends_at_the_ridge(tmp_path: Path, figures: list[Figure]) -> None:
    draw_roofline(str(tmp_path / "a.png"), "Llama", H100, PHASES, "float16")
    ((axes,),) = [figure.axes for figure in figures]
    roof = axes.lines[0].get_xydata()
    assert roof[1] == pytest.approx([ridge(H100), peak(H100)]) and roof[2][1] == peak(H100)
    assert roof[0][1] / roof[0][0] == pytest.approx(H100.bytes_per_s)
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    clouds = [points.get_offsets() for points in axes.collections if points.get_label() in names]
    drawn = np.sort(np.concatenate(clouds), 0)
    xs = sorted(cost.intensity for costs in PHASES.values() for cost in costs.values())
    assert np.allclose(drawn, [(x, attainable(x, H100)) for x in xs], rtol=1e-12)
    for x, y in drawn:
        assert axes.get_xlim()[0] < x < axes.get_xlim()[1] and axes.get_ylim()[0] < y < axes.get_ylim()[1]


def test_labels_name_every_part_that_takes_time_and_do_not_meet(tmp_path: Path, figures: list[Figure]) -> None:
    draw_roofline(str(tmp_path / "a.png"), "Llama", H100, PHASES, "float16")
    (figure,) = figures
    texts = [text for text in figure.axes[0].texts if "%" in text.get_text()]
    said = " ".join(text.get_text() for text in texts)
    assert {"w_up", "w_down", "w_gate", "w_q", "attention", "head"} <= set(re.findall(r"\w+", said))
    boxes = [text.get_window_extent(FigureCanvasAgg(figure).get_renderer()) for text in texts]
    frame = figure.bbox
    for i, box in enumerate(boxes):
        assert frame.x0 < box.x0 and box.x1 < frame.x1 and frame.y0 < box.y0 and box.y1 < frame.y1
        assert not any(box.overlaps(other) for other in boxes[:i])


def test_parts_of_one_intensity_share_a_label() -> None:
    costs = {name: Cost(flops, 100) for name, flops in (("a", 100), ("b", 900), ("c", 120), ("d", 1000))}
    assert clusters(costs) == [["a", "c"], ["b", "d"]]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf", "PNG"])
def test_a_run_draws_and_explains(model: str, tmp_path: Path, capsys: Capture, suffix: str) -> None:
    path = tmp_path / f"roof.{suffix}"
    assert main(["-m", model, "the cat", "-n", "4", "--plot", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("model: llama") and "decode: 1 token after" in out
    begin = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix.lower()]
    assert path.read_bytes().startswith(begin)


def test_a_picture_is_large_and_has_both_colours(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    draw_roofline(str(path), "Llama", H100, PHASES, "float16")
    pixels = imread(path)
    assert pixels.shape[:2] == (960, 1600)
    red, blue = pixels[..., 0], pixels[..., 2]
    assert ((red - blue) > 0.5).sum() > 500 and ((blue - red) > 0.3).sum() > 500


@pytest.mark.parametrize(
    ("path", "says"),
    [("a.jpg", "writes .png"), ("a", "writes .png"), ("nowhere/a.png", "cannot write"), ("folder.png", "cannot write"),
     ("file/a.png", "cannot write")],
)  # fmt: skip
def test_a_path_that_cannot_be_written_is_refused_before_work(
    path: str, says: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("gpu.run._load", lambda *_: pytest.fail("it was loaded"))
    before = sorted(tmp_path.rglob("*"))
    assert main(["the cat", "--plot", str(tmp_path / path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err and err.count("\n") == 1 and sorted(tmp_path.rglob("*")) == before


def test_a_picture_is_not_drawn_over_the_prompt(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "prompt.png"
    path.write_text("the cat")
    assert main(["-f", str(path), "--plot", str(path)]) == 2
    assert f"--plot {path} would write over the prompt" in capsys.readouterr().err and path.read_text() == "the cat"


@pytest.mark.parametrize("name", ["a$^$b", "模型", "a\nb", "x" * 200, r"\frac", "{x}_%"])
def test_any_name_of_a_model_is_a_title(name: str, tmp_path: Path, figures: list[Figure]) -> None:
    draw_roofline(str(tmp_path / "a.png"), f"{name} on this machine", H100, PHASES, "float16")
    ((axes,),) = [figure.axes for figure in figures]
    line = axes.get_title("left").rstrip("\n")
    assert line[:40] == " ".join(f"{name} on this machine".split())[:40]
    if name.isascii():  # to measure what has no glyph warns
        right = axes._left_title.get_window_extent(FigureCanvasAgg(figures[0]).get_renderer()).x1
        assert right < figures[0].bbox.x1


def test_a_picture_and_the_answer_take_two_files(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "folder").mkdir()
    path, same = tmp_path / "a.png", tmp_path / "folder" / ".." / "a.png"
    assert main(["the cat", "--plot", str(path), "-o", str(same)]) == 2
    assert f"-o and --plot both name {path}" in capsys.readouterr().err and not path.exists()


def test_without_matplotlib_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r'--plot needs matplotlib: pip install -e "\.\[plot\]"'):
        check_plot("a.png")


@pytest.mark.parametrize("flags", [["--chat"], ["--json"], ["--prompts", "a"]])
def test_plot_takes_one_prompt_and_prints_text(flags: list[str], capsys: Capture) -> None:
    assert main([*flags, "--plot", "a.png"]) == 2
    assert "--plot" in capsys.readouterr().err and not Path("a.png").exists()


def test_matplotlib_is_imported_for_a_picture_alone() -> None:
    assert "matplotlib" not in vars(importlib.import_module("gpu.cli.plot"))
