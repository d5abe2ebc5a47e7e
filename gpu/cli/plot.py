"""--plot: the roofline of a device, and on it the parts of each phase of a model, as a picture."""

import importlib
import itertools
import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from refimpl.bottleneck.roofline import Cost, Device, attainable, peak, ridge, seconds
from refimpl.contract import UsageError, host

__all__ = ["check_plot", "clusters", "draw_roofline"]

_FORMATS = (".png", ".svg", ".pdf")
_INK, _QUIET, _MEMORY, _COMPUTE = "#22303c", "#8895a1", "#e8f1fa", "#fdf0e3"
_COLORS = ("#c2410c", "#1d6fb8")  # of the phases, in their order
_NEAR = 0.09  # decades of intensity between parts that share a label
_LEAST = 0.02  # of a phase's time, for which a label is written
_DPI = 160
_LONGEST = 60  # letters of a title
_LETTER, _LINE = 5.4, 13.0  # points from letter to letter, and from line to line


@host
def check_plot(path: str) -> None:
    """Refuse a picture that cannot be made, before any work is done for it."""
    if Path(path).suffix.lower() not in _FORMATS:
        raise UsageError(f"--plot writes {', '.join(_FORMATS)} files, not {path}")
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        raise UsageError('--plot needs matplotlib: pip install -e ".[plot]"') from None


@host
def clusters(costs: Mapping[str, Cost]) -> list[list[str]]:
    """Return the names of the parts in groups of nearly one intensity, which the picture gives one label each.

    >>> clusters({"a": Cost(100, 100), "b": Cost(900, 100), "c": Cost(110, 100)})
    [['a', 'c'], ['b']]
    """
    groups: list[list[str]] = []
    for name in sorted(costs, key=lambda name: costs[name].intensity):
        near = groups and math.log10(costs[name].intensity / costs[groups[-1][0]].intensity) < _NEAR
        groups = [*groups[:-1], [*groups[-1], name]] if near else [*groups, [name]]
    return groups


@host
def draw_roofline(
    path: str, title: str, device: Device, phases: Mapping[str, Mapping[str, Cost]], dtype: str = "float32"
) -> None:
    """Draw the roof, what lies under it, and the parts of every phase at the place that they can reach at most."""
    from matplotlib.figure import Figure

    intensities = [cost.intensity for costs in phases.values() for cost in costs.values()]
    least, most = min(*intensities, ridge(device, dtype)), max(*intensities, ridge(device, dtype))
    low, high = least / 4, most * 4
    figure = Figure(figsize=(10, 6), dpi=_DPI, facecolor="white")
    axes = figure.add_axes((0.08, 0.1, 0.89, 0.77))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(attainable(least, device, dtype) / 12, peak(device, dtype) * 5)
    _draw_roof(axes, device, dtype, low, high)
    labels = [
        label
        for color, (name, costs) in zip(itertools.cycle(_COLORS), phases.items())
        for label in _draw_phase(axes, name, costs, device, dtype, color)
    ]
    _write_labels(axes, labels, device, dtype)
    _dress(axes, title, device, dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # of a model's name; a box stands for it
        figure.savefig(path)


def _draw_roof(axes: Any, device: Device, dtype: str, low: float, high: float) -> None:
    turn, top = ridge(device, dtype), peak(device, dtype)
    axes.axvspan(low, turn, color=_MEMORY, lw=0, zorder=0)
    axes.axvspan(turn, high, color=_COMPUTE, lw=0, zorder=0)
    roof = [attainable(at, device, dtype) for at in (low, turn, high)]
    axes.fill_between([low, turn, high], roof, [axes.get_ylim()[1]] * 3, color="white", lw=0, zorder=1)
    axes.plot([low, turn, high], roof, color=_INK, lw=2.2, solid_joinstyle="round", zorder=3)
    axes.plot([turn, turn], [axes.get_ylim()[0], top], color=_QUIET, lw=1, ls=(0, (4, 4)), zorder=2)
    words = {"color": _QUIET, "fontsize": 10, "va": "bottom", "zorder": 4}
    bottom = axes.get_ylim()[0] * 1.15
    axes.text(turn * 0.93, bottom, "memory bounds", ha="right", **words)
    axes.text(turn * 1.08, bottom, "arithmetic bounds", ha="left", **words)
    axes.text(turn, top * 1.12, f"ridge: {turn:.3g}", ha="center", **words)


class _Label(NamedTuple):
    """What stands beside the points of a cluster, and where they lie."""

    x: float
    y: float
    text: str
    color: str


def _draw_phase(
    axes: Any, name: str, costs: Mapping[str, Cost], device: Device, dtype: str, color: str
) -> list[_Label]:
    """Draw a phase, the area of a point its share of the time; return labels of clusters that take part of it."""
    times = {part: seconds(cost, device, dtype) for part, cost in costs.items()}
    whole = sum(times.values())
    xs = [cost.intensity for cost in costs.values()]
    ys = [attainable(x, device, dtype) for x in xs]
    areas = [50 + 1500 * time / whole for time in times.values()]
    label = f"{name}, {_duration(whole)} at least"
    axes.scatter(xs, ys, s=areas, color=color, alpha=0.55, edgecolor="white", lw=0.8, zorder=5, label=label)
    labels = []
    for group in clusters(costs):
        x = math.prod(costs[part].intensity for part in group) ** (1 / len(group))
        share = sum(times[part] for part in group) / whole
        text = f"{', '.join(part for part in times if part in group)}: {share:.0%}"
        labels += [_Label(x, attainable(x, device, dtype), textwrap.fill(text, 28), color)] if share >= _LEAST else []
    return labels


def _write_labels(axes: Any, labels: Sequence[_Label], device: Device, dtype: str) -> None:
    """Write labels below the roof, beside lines from their points: each as high as no other text or line is in the way.

    They stand to the right of points on the slope, from the last to the first, then to the left of those behind it.
    """
    from matplotlib.transforms import Affine2D

    to_points, turn = axes.transData + Affine2D().scale(72 / _DPI), ridge(device, dtype)
    taken: list[tuple[float, float, float, float]] = []  # left, foot, right and top of what is there
    for label in sorted(labels, key=lambda label: (label.x > turn, label.x if label.x > turn else -label.x)):
        behind, lines = label.x > turn, label.text.split("\n")
        x, y = to_points.transform((label.x, label.y))
        width, height = _LETTER * max(map(len, lines)), _LINE * len(lines)
        left = x - 4 - width if behind else x + 4
        at = to_points.inverted().transform((left, y))[0]
        roof = to_points.transform((label.x, attainable(min(at, label.x), device, dtype)))[1]
        foot = min(y - 20, roof - 10) - height
        while any(left < r[2] and r[0] < left + width and foot < r[3] and r[1] < foot + height for r in taken):
            foot -= 1
        taken += [(left - 4, foot - 4, left + width + 4, foot + height + 4), (x - 4, foot, x + 4, y)]
        axes.annotate(
            label.text, (label.x, label.y), (-4 if behind else 4, foot - y), textcoords="offset points", va="bottom",
            ha="right" if behind else "left", color=label.color, fontsize=9.5, zorder=6,
        )
        axes.annotate(
            "", (label.x, label.y), (0, foot - y), textcoords="offset points", zorder=4,
            arrowprops={"arrowstyle": "-", "color": label.color, "lw": 1.0, "shrinkA": 0, "shrinkB": 0},
        )


def _dress(axes: Any, title: str, device: Device, dtype: str) -> None:
    top, turn = peak(device, dtype), ridge(device, dtype)
    limits = f"{_scaled(top)}FLOP/s over {_scaled(device.bytes_per_s)}B/s"
    note = f"{limits}: below {turn:.3g} FLOP a byte memory bounds, above it arithmetic"
    line = " ".join(title.split())
    line = line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
    axes.set_title(f"{line}\n", loc="left", color=_INK, fontsize=14, fontweight="bold", pad=8, parse_math=False)
    axes.text(0, 1.025, note, transform=axes.transAxes, color=_QUIET, fontsize=10.5, va="bottom")
    axes.set_xlabel("FLOP for each byte moved", color=_INK, fontsize=11)
    axes.set_ylabel(f"FLOP/s at most, in {dtype}", color=_INK, fontsize=11)
    axes.grid(True, which="major", color="white", lw=0.8, zorder=1)
    axes.tick_params(which="both", colors=_QUIET, length=3)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: _scaled(value))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_QUIET)
    legend = axes.legend(loc="upper left", frameon=False, fontsize=10.5, labelcolor=_INK)
    for handle in legend.legend_handles:
        handle.set_sizes([70])


def _scaled(value: float) -> str:
    """Spell a large number with a prefix.

    >>> _scaled(989e12), _scaled(51.4e9)
    ('989 T', '51.4 G')
    """
    for power, prefix in ((15, "P"), (12, "T"), (9, "G"), (6, "M")):
        if value >= 10**power:
            return f"{value / 10**power:.3g} {prefix}"
    return f"{value:.3g} "


def _duration(time: float) -> str:
    return f"{time:.2f} s" if time >= 1 else f"{1e3 * time:.3g} ms"
