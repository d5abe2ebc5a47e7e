"""Draw the pictures of docs/denoising.md: python -m docs.pictures."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from refimpl.files.checkpoint import read_json, read_safetensors
from refimpl.media import operations
from refimpl.media.causal_vae import causal_spec, causal_weights, decode_video, encode_video
from refimpl.media.dit import dit_weights
from refimpl.media.pipeline import denoise, latent_shape, noise_of, open_pipeline, picture_of
from refimpl.media.video_dit import video_dit, video_dit_spec

__all__ = ["drift", "video_latents", "way"]

IMAGES = Path(__file__).parent / "images"
VIDEO = Path(__file__).parents[1] / "refimpl" / "demo" / "moving-glyphs"
WEIGHTS = "diffusion_pytorch_model.safetensors"
LARGER = 3  # pixels of the page to a pixel


def way(model: str, digit: int, steps: int, seed: int = 0) -> list[np.ndarray]:
    """Return the pictures before every step of a flow, and last the finished one [32 32]."""
    pipeline = open_pipeline(model)
    plan = pipeline.scheduler.plan(steps, at=np.linspace(1, 1 / steps, steps))
    noise, scale = noise_of(seed, digit, 0, latent_shape(pipeline)), pipeline.guidance_scale
    latents = denoise(pipeline, plan, (digit, 10), scale, noise, iter(()), operations)
    return [picture_of(pipeline, latent, operations)[0] for latent in latents]


def autoencoder() -> tuple[Any, Any]:
    """Return spec and weights of the video model's autoencoder."""
    spec = causal_spec(read_json(VIDEO / "vae" / "config.json"))
    return spec, causal_weights(read_safetensors(VIDEO / "vae" / WEIGHTS), spec)


def video_latents(digit: int, steps: int = 30, seed: int = 0, guidance_scale: float = 3.0) -> Iterator[np.ndarray]:
    """Yield the latent of a video after every step, all of its frames at once, by Euler steps along the flow."""
    spec = video_dit_spec(read_json(VIDEO / "transformer" / "config.json"))
    weights = dit_weights(read_safetensors(VIDEO / "transformer" / WEIGHTS), spec)
    x, levels = noise_of(seed, digit, 0, (4, spec.sample_frames, 8, 8)), np.linspace(1, 0, steps + 1)
    for sigma, end in pairwise(levels.tolist()):
        cond, uncond = (video_dit(x, 1000 * sigma, label, weights, spec, operations) for label in (digit, 10))
        outputs, weight = (cond, uncond, guidance_scale), end - sigma
        x = operations.guided_combination(x[None], np.ones(1), *outputs, weight)
        yield x


def drift(video: np.ndarray, times: int) -> list[float]:
    """Return how far a video [1 frames Y X] is from itself after 1, 2 .. times of coding and decoding: mean squares.

    So much does a frame carry that was built on a decoded and encoded frame, which was built on another ...
    """
    spec, weights = autoencoder()
    errors, again = [], video
    for _ in range(times):
        latent, _ = encode_video(again.clip(-1, 1), weights, spec, operations)
        again = decode_video(latent, weights, spec, operations)
        errors.append(float(np.square(again - video).mean()))
    return errors


def write(name: str, rows: list[list[np.ndarray]]) -> None:
    """Write rows of pictures of values in -1..1."""
    longest = max(map(len, rows))
    empty = np.full_like(rows[0][0], 0.0)
    whole = np.concatenate([np.concatenate(row + [empty] * (longest - len(row)), 1) for row in rows])
    values = np.round((np.clip(whole, -1, 1) + 1) * 127.5).astype(np.uint8)
    image = Image.fromarray(values)
    larger = image.resize((image.width * LARGER, image.height * LARGER), Image.Resampling.NEAREST)
    larger.save(IMAGES / name, optimize=True)


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    thirty = way("glyphs", 7, 30)
    chosen = [thirty[i] for i in (0, 4, 8, 12, 16, 20, 24, 28, 30)]
    strips = [chosen, way("glyphs-fast", 7, 4), way("glyphs-fast", 7, 1)]
    write("steps.png", strips)
    models = (("glyphs", 30), ("glyphs-fast", 4), ("glyphs-fast", 1))
    write("digits.png", [[way(model, digit, steps, seed=3)[-1] for digit in range(10)] for model, steps in models])
    spec, weights = autoencoder()
    rows = []
    for digit in (2, 7, 8):
        *_, latent = video_latents(digit)
        rows.append(list(decode_video(latent / np.float32(spec.scaling_factor), weights, spec, operations)[0, ::2]))
    write("video.png", rows)


if __name__ == "__main__":
    main()
