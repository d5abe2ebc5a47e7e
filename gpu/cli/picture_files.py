"""Pictures as files: side by side or each its own, and never half written."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from gpu.cli.output import check_writable
from refimpl.contract import host

__all__ = ["check_target", "names_of", "pixels", "write_picture", "write_video"]


def _beside(path: str) -> Path:
    """Return a name for the file while it is written, in the folder where it will be."""
    target = Path(path).resolve()
    return target.with_name(f".gpu-run-{os.getpid()}{target.suffix}")


@host
def check_target(path: str) -> None:
    """Refuse a file that cannot be written, or not beside itself; nothing is touched."""
    check_writable(path)
    check_writable(str(_beside(path)))


@host
def names_of(out: str, count: int) -> list[str]:
    """Return the files that so many pictures go to: one for all, or with %d in its name one for each.

    >>> names_of("seven-%d.png", 2), names_of("seven.png", 2)
    (['seven-0.png', 'seven-1.png'], ['seven.png'])
    """
    return [out.replace("%d", str(number)) for number in range(count)] if "%d" in out else [out]


@host
def pixels(picture: np.ndarray) -> np.ndarray:
    """Return the bytes, [Y X] or [Y X 3], of a picture of values about -1..1; what lies beyond is cut.

    >>> pixels(np.array([[[-1.0, 0.0, 1.0, 9.0]]]))
    array([[  0, 128, 255, 255]], dtype=uint8)
    """
    values = np.round((np.clip(picture, -1, 1).astype(np.float64) + 1) * 127.5).astype(np.uint8)
    return values[0] if len(values) == 1 else np.moveaxis(values, 0, -1)


@host
def write_picture(path: str, pictures: Sequence[np.ndarray], columns: int | None = None) -> None:
    """Write pictures into one file, in rows: to a file beside it first, which then takes its place."""
    from PIL import Image

    columns = columns or int(np.ceil(np.sqrt(len(pictures))))
    shown = [pixels(picture) for picture in pictures]
    shown += [np.zeros_like(shown[0])] * (-len(shown) % columns)
    rows = [np.concatenate(shown[i : i + columns], 1) for i in range(0, len(shown), columns)]
    _put(path, Image.fromarray(np.concatenate(rows)))


@host
def write_video(path: str, video: np.ndarray, fps: float) -> None:
    """Write a video [C frames Y X]: frame after frame without end, or as .png the frames side by side."""
    from PIL import Image

    frames = [video[:, i] for i in range(video.shape[1])]
    if path.lower().endswith(".png"):
        write_picture(path, frames, len(frames))
        return
    first, *rest = (Image.fromarray(pixels(frame)) for frame in frames)
    moving = {"save_all": True, "append_images": rest, "duration": round(1000 / fps), "loop": 0} if rest else {}
    _put(path, first, **moving)


def _put(path: str, image: Any, **settings: Any) -> None:
    """Write a file beside the one that is meant, which then takes its place."""
    beside = _beside(path)
    try:
        image.save(beside, lossless=True, **settings)
        beside.replace(Path(path).resolve())
    finally:
        with suppress(OSError):
            beside.unlink()
