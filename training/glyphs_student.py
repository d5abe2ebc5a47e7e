"""Distil the denoiser of the glyphs into one that draws in one to four steps.

    python training/glyphs_student.py TEACHER FOLDER [--steps 9000]

The student learns where the teacher's guided flow ends: it is shown points of the teacher's trajectories at noise
levels 1, 3/4, 1/2 and 1/4, and gives the velocity (x - x0) / sigma that leads straight to the end x0 of that path.
So an Euler step to sigma = 0 lands there, and one to a level between goes a part of the way. Guidance is in it: it is
used at scale 1.
"""

import argparse
import copy
import time
from itertools import pairwise
from pathlib import Path

import torch
from diffusers import DiTTransformer2DModel
from glyphs_denoiser import CLASSES, save, velocity

LEVELS = (1.0, 0.75, 0.5, 0.25)


@torch.no_grad()
def guided(
    model: DiTTransformer2DModel, x: torch.Tensor, sigma: float, label: torch.Tensor, scale: float
) -> torch.Tensor:
    """Return the velocity of the teacher, guided."""
    none = torch.full_like(label, CLASSES)
    both = velocity(model, torch.cat([x, x]), torch.full((2 * len(x),), sigma), torch.cat([label, none]))
    cond, uncond = both.chunk(2)
    return uncond + scale * (cond - uncond)


@torch.no_grad()
def trajectories(
    model: DiTTransformer2DModel, count: int, scale: float, steps: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return points at LEVELS [count, 4, ...], ends [count, ...] and labels of guided flows."""
    torch.manual_seed(seed)
    points, ends, labels, start = [], [], torch.arange(count) % CLASSES, time.time()
    levels = torch.linspace(1, 0, steps + 1).tolist()
    for label in labels.split(500):
        x, seen = torch.randn(len(label), 4, 8, 8), []
        for sigma, end in pairwise(levels):
            if any(abs(sigma - level) < 1e-6 for level in LEVELS):
                seen.append(x)
            slope = guided(model, x, sigma, label, scale)
            if end > 0:  # Heun: the mean of both slopes
                slope = (slope + guided(model, x + (end - sigma) * slope, end, label, scale)) / 2
            x = x + (end - sigma) * slope
        points.append(torch.stack(seen, 1))
        ends.append(x)
        print(f"{sum(map(len, ends)):6} trajectories {time.time() - start:5.0f} s", flush=True)
    return torch.cat(points), torch.cat(ends), labels


def distil(
    teacher: DiTTransformer2DModel,
    points: torch.Tensor,
    ends: torch.Tensor,
    labels: torch.Tensor,
    steps: int,
    batch: int = 128,
) -> DiTTransformer2DModel:
    """Train a student that begins as its teacher; return the running mean of its weights."""
    student = copy.deepcopy(teacher)
    mean, start = copy.deepcopy(student), time.time()
    optimizer = torch.optim.AdamW(student.parameters(), 1e-3, weight_decay=0.0, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps, pct_start=0.05)
    levels = torch.tensor(LEVELS)
    for step in range(steps):
        chosen = torch.randint(len(ends), (batch,))
        which = torch.where(torch.rand(batch) < 0.5, 0, torch.randint(len(LEVELS), (batch,)))
        x, sigma = points[chosen, which], levels[which]
        x0 = x - sigma[:, None, None, None] * velocity(student, x, sigma, labels[chosen])
        away = x0 - ends[chosen]
        loss = (away.square() + 1e-3).sqrt().mean()  # between absolute and squared: blurs less than the square
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            keep = min(0.999, (step + 1) / (step + 10))
            torch._foreach_lerp_(list(mean.parameters()), list(student.parameters()), 1 - keep)
        if step % 200 == 0:
            print(f"step {step:5} loss {loss.item():.4f} {time.time() - start:5.0f} s", flush=True)
    return mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=9000)
    parser.add_argument("--guidance-scale", type=float, default=3.0)
    parser.add_argument("--trajectories", type=int, default=20000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = DiTTransformer2DModel.from_pretrained(options.teacher / "transformer").float().eval()
    data = trajectories(known, options.trajectories, options.guidance_scale, 16, 3)
    save(distil(known, *data, options.steps), options.folder)
