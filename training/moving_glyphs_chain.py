"""How errors compound where every piece of a video is built on the last frame of the piece before it.

    python training/moving_glyphs_chain.py

NumPy and the specification alone, under a minute. ``whole``: 17 frames as one latent. ``chain``: 4 pieces; of each the
first 4 new frames are kept, and the last of them, decoded and encoded again, is the first latent frame of the next.
"""

from typing import Any

import numpy as np

from refimpl.contract import Array
from refimpl.media import operations
from refimpl.media.causal_vae import encode_video
from refimpl.media.pipeline import Pipeline, latent_shape, noise_of, open_pipeline, picture_of
from refimpl.media.step import Guided
from refimpl.media.video_dit import video_dit

__all__ = ["chain", "likeness", "piece"]


def piece(pipeline: Pipeline, label: int, noise: Array, first: Array | None = None, steps: int = 10) -> Array:
    """Return the latent of a video, whose first latent frame [4 y x] may be given.

    A given frame moves from its noise to itself along a straight line, which Euler's steps follow exactly.
    """
    plan = pipeline.scheduler.plan(steps, at=np.linspace(1, 1 / steps, steps))

    def ask(x: Array, timestep: float, led: int) -> Array:
        velocity = video_dit(x, timestep, led, pipeline.denoiser_weights, pipeline.denoiser, operations)
        if first is not None:
            velocity[:, 0] = noise[:, 0] - first
        return velocity

    def model(x: Array, timestep: float) -> Any:
        null = pipeline.denoiser.num_classes
        return Guided(ask(x, timestep, label), ask(x, timestep, null), pipeline.guidance_scale)

    *_, latent = pipeline.scheduler.solve(noise, model, plan, iter(()), operations)
    return latent


def chain(pipeline: Pipeline, label: int, pieces: int, seed: int = 0) -> Array:
    """Return a video [1 frames Y X], each piece of 4 frames built on the decoded last frame of the one before."""
    spec, shape = pipeline.autoencoder, latent_shape(pipeline)
    kept, first = [], None
    for number in range(pieces):
        latent = piece(pipeline, label, noise_of(seed, label, number, shape), first)
        video = picture_of(pipeline, latent[:, :2], operations)
        kept.append(video if number == 0 else video[:, 1:])
        last = video[:, -1:].clip(-1, 1)
        first = spec.scaling_factor * encode_video(last, pipeline.autoencoder_weights, spec, operations)[0][:, 0]
    return np.concatenate(kept, 1)


def likeness(video: Array) -> Array:
    """Return how like its first frame every frame is, both moved so that the middle of the ink is the picture's."""
    ink = (np.clip(video[0], -1, 1) + 1) / 2
    places, total = np.arange(ink.shape[1]), ink.sum((1, 2))
    down, right = (ink.sum(2) @ places) / total, (ink.sum(1) @ places) / total
    turns = np.fft.fftfreq(ink.shape[1])
    phase = np.exp(2j * np.pi * (turns[:, None] * (down - 16)[:, None, None] + turns * (right - 16)[:, None, None]))
    still = np.fft.ifft2(np.fft.fft2(ink) * phase).real
    flat = (still - still.mean((1, 2), keepdims=True)).reshape(len(still), -1)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    return flat @ flat[0]


def main() -> None:
    pipeline = open_pipeline("moving-glyphs")
    count, pieces = 20, 4
    shape = latent_shape(pipeline)
    noises = [noise_of(i // 10, i % 10, 0, shape) for i in range(count)]
    whole = [picture_of(pipeline, piece(pipeline, i % 10, noise), operations) for i, noise in enumerate(noises)]
    chained = [chain(pipeline, i % 10, pieces, i // 10) for i in range(count)]
    for name, shown in (("whole", whole), ("chain", chained)):
        like = np.mean([likeness(each) for each in shown], 0)
        print(
            f"{name}: how like the first frame is every fourth:",
            " ".join(f"{like[t]:.3f}" for t in range(0, 4 * pieces + 1, 4)),
        )


if __name__ == "__main__":
    main()
