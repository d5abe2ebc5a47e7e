"""python -m gpu.run image: noise to picture, step by step."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpu import device
from gpu.cli.output import check_writable, spare
from gpu.cli.picture_arguments import parse_picture_arguments
from gpu.media.namespace import namespace, placed
from refimpl.command import check_unicode
from refimpl.contract import UsageError, host
from refimpl.interrupt import Brake
from refimpl.media.pipeline import (
    Pipeline,
    denoise,
    label_of,
    latent_shape,
    noise_of,
    open_pipeline,
    picture_of,
    with_scheduler,
)

__all__ = ["run_image"]

PREVIEWS = 10
"""Pictures of a strip at most."""


@dataclass
class Drawing:
    """What was made so far, and what it took."""

    pictures: list[np.ndarray] = field(default_factory=list)
    way: list[np.ndarray] = field(default_factory=list)  # latents of the first picture
    seconds: list[float] = field(default_factory=list)  # of each pass or pair of passes
    passes: int = 0


@dataclass(frozen=True)
class Job:
    """A drawing that can begin: all that was asked has been checked."""

    pipeline: Pipeline
    plan: Any
    labels: tuple[int, int]
    scale: float
    shape: tuple[int, int, int]
    seed: int
    device: str

    def steps(self, number: int, pipeline: Pipeline, ops: Any, dtype: Any = np.float32) -> Iterator[Any]:
        """Yield the latents of one picture on the way, and last the finished one."""
        noise = noise_of(self.seed, number, 0, self.shape, dtype)
        draws = (noise_of(self.seed, number, 1 + i, self.shape, dtype) for i in range(1 << 30))
        return denoise(pipeline, self.plan, self.labels, self.scale, noise, draws, ops)


@host
def prepare(options: argparse.Namespace) -> Job:
    """Open the model and check what was asked, before any work."""
    for name in filter(None, (options.out, options.preview)):
        check_writable(name)
        spare(name, {"the model": options.model, "the scheduler": options.scheduler})
    check_unicode(options.prompt, "the prompt")
    where = device.pick(options.device)
    pipeline = open_pipeline(options.model)
    if options.scheduler:
        pipeline = with_scheduler(pipeline, options.scheduler)
    away = pipeline.denoiser.num_classes
    if options.negative_prompt is not None:
        away = label_of(pipeline, options.negative_prompt)
    labels = label_of(pipeline, options.prompt), away
    scale = pipeline.guidance_scale if options.guidance_scale is None else options.guidance_scale
    steps = options.steps or pipeline.num_steps
    shape = latent_shape(pipeline, options.height, options.width)
    return Job(pipeline, pipeline.scheduler.plan(steps), labels, scale, shape, options.seed, where)


@host
def draw(job: Job, count: int, hand: Brake, drawing: Drawing, show: bool) -> None:
    """Draw pictures one after the other; Ctrl-C ends after the step in hand, with those that are finished."""
    from tqdm import tqdm

    ops, weights = namespace(job.device), job.pipeline
    weights = replace(
        weights, denoiser_weights=placed(dict(weights.denoiser_weights), job.device),
        autoencoder_weights=placed(dict(weights.autoencoder_weights), job.device),
    )  # fmt: skip
    total, hand.armed = len(job.plan.timesteps), True
    for number in range(count):
        with tqdm(total=total, desc=f"picture {number + 1} of {count}", leave=False, disable=not show) as bar:
            last, before = None, time.perf_counter()
            for i, latent in enumerate(job.steps(number, weights, ops)):
                now = time.perf_counter()
                if i:
                    drawing.seconds.append(now - before)
                    drawing.passes += 1 if job.scale == 1 else 2
                    bar.update(min(1, total - bar.n))
                before, last = now, latent
                _check_finite(device.to_host(latent), i)
                if number == 0:
                    drawing.way.append(device.to_host(latent))
                hand.check()
        drawing.pictures.append(device.to_host(picture_of(weights, last, ops)))


def _check_finite(latent: np.ndarray, step: int) -> None:
    if not np.isfinite(latent).all():
        raise UsageError(f"the latent is not finite after step {step}: the model or its weights gave NaN or infinity")


def _pixels(picture: np.ndarray) -> np.ndarray:
    """Return [Y X] or [Y X 3] bytes of a picture of values in -1..1."""
    values = np.round((np.clip(picture, -1, 1).astype(np.float64) + 1) * 127.5).astype(np.uint8)
    return values[0] if len(values) == 1 else np.moveaxis(values[:3], 0, -1)


@host
def write_picture(path: str, pictures: Sequence[np.ndarray], columns: int | None = None) -> None:
    """Write pictures into one file, side by side: to a file beside it first, so that nothing is ever half written."""
    from PIL import Image

    columns = columns or int(np.ceil(np.sqrt(len(pictures))))
    shown = [_pixels(picture) for picture in pictures]
    shown += [np.zeros_like(shown[0])] * (-len(shown) % columns)
    rows = [np.concatenate(shown[i : i + columns], 1) for i in range(0, len(shown), columns)]
    target = Path(path).resolve()
    beside = target.with_name(f".{target.name}.part{target.suffix}")
    try:
        Image.fromarray(np.concatenate(rows)).save(beside)
        beside.replace(target)
    finally:
        with suppress(OSError):
            beside.unlink()


def _strip(job: Job, drawing: Drawing) -> list[np.ndarray]:
    """Return up to PREVIEWS pictures of the way, evenly chosen, decoded; the first is noise and the last is finished."""
    chosen = np.unique(np.linspace(0, len(drawing.way) - 1, min(PREVIEWS, len(drawing.way))).round().astype(int))
    plain = namespace("cpu")
    return [picture_of(job.pipeline, drawing.way[i], plain) for i in chosen]


def _lines(job: Job, drawing: Drawing, wall: float) -> list[str]:
    steps = len(job.plan.timesteps)
    median = 1e3 * statistics.median(drawing.seconds) if drawing.seconds else 0.0
    way = "one pass a step" if job.scale == 1 else f"two passes a step, guidance scale {job.scale:g}"
    return [
        f"solver   {job.pipeline.scheduler.name}, {steps} steps, {way}",
        f"passes   {drawing.passes} of the denoiser for {len(drawing.pictures)} pictures",
        f"step     {median:.2f} ms (median)",
        f"wall     {wall:.2f} s on {job.device}",
    ]


def _verify(job: Job, drawing: Drawing) -> tuple[bool, list[str]]:
    """Go the way of the first picture again with the specification in float64."""
    from refimpl.media import operations

    wide = open_pipeline(job.pipeline.path, np.float64)
    wide = replace(wide, scheduler=job.pipeline.scheduler)
    far = 0.0
    for ours, truth in zip(drawing.way, job.steps(0, wide, operations, np.float64), strict=True):
        far = max(far, float(np.linalg.norm(ours - truth) / np.linalg.norm(truth)))
    picture = picture_of(wide, truth, operations)
    off = float(np.abs(drawing.pictures[0] - picture).max())
    same = far < 1e-3 and off < 0.05
    said = f"latents off by {far:.1e} at most, values of the picture by {off:.1e}"
    return same, [f"verify   {len(drawing.way)} latents against the reference in float64: {said}: {'the same' if same else 'DIFFERENT'}"]


@host
def run_image(argv: Sequence[str], hand: Brake) -> int:
    """Draw what the flags ask for; return the exit code."""
    options = parse_picture_arguments(argv)
    job, drawing, start, code = prepare(options), Drawing(), time.perf_counter(), 0
    if options.explain:
        from gpu.cli.picture_explanation import explain_picture

        sys.stdout.write("\n".join(explain_picture(job)) + "\n")
        return 0
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    try:
        with nullcontext() if job.device == "cpu" else device.use(job.device):
            draw(job, options.num_images, hand, drawing, is_terminal)
    except KeyboardInterrupt:
        code = 130
    hand.armed = False
    if drawing.pictures:
        write_picture(options.out, drawing.pictures)
    if options.preview and drawing.way:
        strip = _strip(job, drawing)
        write_picture(options.preview, strip, len(strip))
    wall, lines = time.perf_counter() - start, [] if code else [f"{options.out}"]
    if options.json:
        record = {
            "out": options.out, "images": len(drawing.pictures), "steps": len(job.plan.timesteps), "seed": job.seed,
            "passes": drawing.passes, "guidance_scale": job.scale, "scheduler": job.pipeline.scheduler.name,
            "device": job.device, "step_s": drawing.seconds, "wall_s": round(wall, 6),
        }  # fmt: skip
        lines = [json.dumps(record)]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    said = _lines(job, drawing, wall) if options.stats or (options.stats is None and is_terminal) else []
    if options.verify and code == 0:
        same, verdict = _verify(job, drawing)
        code, said = 0 if same else 1, said + verdict
    if sys.stderr is not None:
        sys.stderr.write("".join(f"{line}\n" for line in said))
    return code
