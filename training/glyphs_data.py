"""Digits as pictures: rendered from the fonts that matplotlib ships, turned, sheared, scaled, shifted and thickened.

A picture is 32 x 32, white on black, values in [-1, 1]. What is drawn depends on the seed alone. The two fonts of
``UNSEEN`` are never shown to the models: they judge the judge.
"""

from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

__all__ = ["LABELS", "SEEN", "SIDE", "UNSEEN", "draw", "pictures"]

LABELS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SIDE, FINE = 32, 4  # pixels of a side; drawn so many times larger, and averaged
_FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
UNSEEN = ("DejaVuSerif-Italic.ttf", "STIXGeneralBol.ttf")
SEEN = (
    "DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSans-Oblique.ttf", "DejaVuSans-BoldOblique.ttf",
    "DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf", "DejaVuSerif.ttf", "DejaVuSerif-Bold.ttf",
    "STIXGeneral.ttf", "STIXGeneralItalic.ttf", "STIXGeneralBolIta.ttf", "cmr10.ttf", "cmss10.ttf", "cmtt10.ttf",
)  # fmt: skip


@cache
def _mask(font: str, digit: int, stroke: int) -> Image.Image:
    """Return a digit of 80 fine pixels' height, in the middle of a fine picture."""
    side = SIDE * FINE
    image = Image.new("L", (side, side))
    face = ImageFont.truetype(str(_FONTS / font), 104)
    ImageDraw.Draw(image).text((side / 2, side / 2), str(digit), 255, face, anchor="mm", stroke_width=stroke)
    return image


def draw(digit: int, rng: np.random.Generator, fonts: tuple[str, ...] = SEEN) -> np.ndarray:
    """Return one picture of a digit, uint8 [SIDE SIDE]."""
    font, stroke = fonts[rng.integers(len(fonts))], int(rng.integers(0, 4))
    turn, shear = np.radians(rng.uniform(-12, 12)), rng.uniform(-0.15, 0.15)
    size, (right, down) = rng.uniform(0.95, 1.25), rng.uniform(-8, 8, 2)
    turned = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]) @ np.array([[1, shear], [0, 1]])
    back, middle = np.linalg.inv(turned * size), np.full(2, SIDE * FINE / 2)
    shift = middle - back @ (middle + np.array([right, down]))
    places = (*back[0], shift[0], *back[1], shift[1])
    image = _mask(font, digit, stroke).transform((SIDE * FINE,) * 2, Image.Transform.AFFINE, places, Image.BILINEAR)
    return np.asarray(image.reduce(FINE))


def pictures(count: int, seed: int, fonts: tuple[str, ...] = SEEN) -> tuple[np.ndarray, np.ndarray]:
    """Return pictures [count, 1, SIDE, SIDE] in [-1, 1], float32, and their digits, each tenth of them one digit."""
    rng, digits = np.random.default_rng(seed), np.arange(count) % 10
    drawn = np.stack([draw(int(digit), rng, fonts) for digit in digits])
    return (drawn[:, None].astype(np.float32) / 127.5 - 1), digits
