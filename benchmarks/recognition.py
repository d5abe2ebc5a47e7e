"""How many generated digits a classifier takes for what was asked; it learned from real pictures alone.

    python benchmarks/recognition.py [COUNT]

The classifier is training/glyphs_judge.py's, run here with the specification's operations.
"""

import sys
import time
from pathlib import Path

import numpy as np

from refimpl.basics.activation import relu
from refimpl.basics.conv import conv2d
from refimpl.basics.linear import linear
from refimpl.files.checkpoint import read_safetensors
from refimpl.media import operations
from refimpl.media.pipeline import denoise, latent_shape, noise_of, open_pipeline, picture_of

__all__ = ["LINES", "draw", "judge", "recognised"]

JUDGE = Path(__file__).parents[1] / "tests" / "demo" / "judge.safetensors"
_FAST = tuple(("glyphs-fast", steps, 1.0) for steps in (4, 2, 1))
LINES = (("glyphs", 30, 3.0), ("glyphs", 30, 1.0), *_FAST)
"""Model, steps, guidance scale."""


def draw(model: str, steps: int, scale: float, count: int, seed: int = 0) -> np.ndarray:
    """Draw the digits 0 to 9 in turn [count 1 32 32]."""
    pipeline = open_pipeline(model)
    plan = pipeline.scheduler.plan(steps, at=np.linspace(1, 1 / steps, steps))
    pictures = []
    for number in range(count):
        noise = noise_of(seed, number, 0, latent_shape(pipeline))
        *_, latent = denoise(pipeline, plan, (number % 10, 10), scale, noise, iter(()), operations)
        pictures.append(picture_of(pipeline, latent, operations))
    return np.stack(pictures)


def judge(picture: np.ndarray, weights: dict[str, np.ndarray]) -> int:
    """Return the digit that the classifier sees."""
    x = picture
    for i in (0, 2, 4):
        x = relu(conv2d(x, weights[f"{i}.weight"], weights[f"{i}.bias"], stride=(2, 2), padding=((1, 1), (1, 1))))
    return int(linear(x.reshape(1, -1), weights["7.weight"], weights["7.bias"]).argmax())


def recognised(pictures: np.ndarray) -> float:
    """Return the share of pictures that are taken for their digit."""
    weights = {name: tensor.read(np.float32) for name, tensor in read_safetensors(JUDGE).items()}
    return float(np.mean([judge(picture, weights) == number % 10 for number, picture in enumerate(pictures)]))


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    print(f"{'model':12} {'steps':>5} {'guidance':>8} {'recognised':>10} {'ms a picture':>12}   of {count} pictures")
    for model, steps, scale in LINES:
        start = time.perf_counter()
        pictures = draw(model, steps, scale, count)
        each = 1e3 * (time.perf_counter() - start) / count
        print(f"{model:12} {steps:5} {scale:8g} {recognised(pictures):10.1%} {each:12.1f}", flush=True)


if __name__ == "__main__":
    main()
