"""Judge videos of moving digits: are their frames recognised, and do they move as real ones do?

    python training/moving_glyphs_judge.py [COUNT]

A classifier learns from the frames of videos that no model was trained on, and is judged by others. Motion is that of
the middle of the ink, in pixels from frame to frame; a jerk is how much that changes from one frame to the next.
"""

import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
from glyphs_judge import new_judge, recognised
from moving_glyphs import videos
from torch import nn

from refimpl.media import operations
from refimpl.media.causal_vae import decode_video, encode_video
from refimpl.media.pipeline import denoise, latent_shape, noise_of, open_pipeline, picture_of

__all__ = ["generated", "motion", "train_judge"]


def train_judge(steps: int = 2500) -> nn.Sequential:
    """Return a classifier of frames."""
    torch.manual_seed(8)
    shown, digits = videos(1500, 2001)
    images, labels = torch.from_numpy(shown[:, 0].reshape(-1, 1, 32, 32)), torch.from_numpy(digits.repeat(17))
    judge = new_judge()
    optimizer = torch.optim.AdamW(judge.parameters(), 2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in range(steps):
        chosen = torch.randint(len(images), (128,))
        loss = nn.functional.cross_entropy(judge(images[chosen] + 0.1 * torch.randn(128, 1, 32, 32)), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return judge.eval()


def generated(count: int, steps: int = 30, scale: float = 3.0, seed: int = 0) -> Iterator[np.ndarray]:
    """Yield videos of the digits 0 to 9 in turn [1 17 32 32]."""
    pipeline = open_pipeline("moving-glyphs")
    plan = pipeline.scheduler.plan(steps, at=np.linspace(1, 1 / steps, steps))
    for number in range(count):
        noise = noise_of(seed, number, 0, latent_shape(pipeline))
        *_, latent = denoise(pipeline, plan, (number % 10, 10), scale, noise, iter(()), operations)
        yield picture_of(pipeline, latent, operations)


def motion(shown: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return lengths of steps and of their changes of videos [count 1 frames Y X], in pixels."""
    ink = (np.clip(shown[:, 0], -1, 1) + 1) / 2
    total, places = ink.sum((2, 3)), np.arange(32)
    middle = np.stack([(ink.sum(3) * places).sum(2) / total, (ink.sum(2) * places).sum(2) / total], -1)
    steps = np.diff(middle, axis=1)
    return np.linalg.norm(steps, axis=-1), np.linalg.norm(np.diff(steps, axis=1), axis=-1)


def report(name: str, judge: nn.Sequential, shown: np.ndarray) -> None:
    """Print how videos of the digits in turn are recognised and move."""
    digits = (np.arange(len(shown)) % 10).repeat(17)
    frames = shown[:, 0].reshape(-1, 1, 32, 32)
    found = judge(torch.from_numpy(frames)).argmax(1).numpy()
    votes = [np.bincount(each, minlength=10).argmax() for each in found.reshape(-1, 17)]
    right = np.mean(votes == np.arange(len(shown)) % 10)
    ink = ((np.clip(shown[:, 0], -1, 1) + 1) / 2).sum((2, 3))
    steps, jerks = motion(shown)
    print(
        f"{name:22} frames {recognised(judge, frames, digits):6.1%}  videos {right:6.1%}  step {np.median(steps):.2f}"
        f" (95 %: {np.quantile(steps, 0.95):.2f})  jerk {np.median(jerks):.2f} (95 %: {np.quantile(jerks, 0.95):.2f})"
        f"  ink varies {np.median(ink.std(1) / ink.mean(1)):.1%}",
        flush=True,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    trained = train_judge()
    real = videos(200, 2002)[0]
    report("real", trained, real)
    own = open_pipeline("moving-glyphs")
    spec, weights = own.autoencoder, own.autoencoder_weights
    latents = [encode_video(each, weights, spec, operations)[0] for each in real[:100]]
    report("encoded and decoded", trained, np.stack([decode_video(z, weights, spec, operations) for z in latents]))
    for steps, scale in ((30, 3.0), (30, 1.0), (10, 3.0)):
        start = time.perf_counter()
        shown = np.stack(list(generated(count, steps, scale)))
        report(f"{steps} steps, guidance {scale:g}", trained, shown.astype(np.float32))
        print(f"    {(time.perf_counter() - start) / count:.2f} s a video")
