"""python -m gpu.run image and video: from noise to pixels, step by step."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
from tqdm import tqdm

from gpu import device
from gpu.cli.answering import say
from gpu.cli.output import open_output, spare
from gpu.cli.picture_files import check_target, names_of, write_picture, write_video
from gpu.media.namespace import namespace, placed
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
    plan_of,
    with_scheduler,
)
from refimpl.media.plan import Plan

__all__ = ["Drawing", "Job", "draw", "prepare", "run_picture"]

_PREVIEWS = 10  # pictures of a strip at most


@dataclass
class Drawing:
    """What was made so far, and what it took."""

    pictures: list[np.ndarray] = field(default_factory=list)
    way: list[np.ndarray] = field(default_factory=list)  # latents of the first picture
    seconds: list[float] = field(default_factory=list)  # of each time that the denoiser was asked
    passes: int = 0


@dataclass(frozen=True)
class Job:
    """A drawing that can begin: all that was asked has been checked."""

    pipeline: Pipeline
    plan: Plan
    labels: tuple[int, int]
    scale: float
    shape: tuple[int, ...]
    seed: int
    device: str

    def steps(self, number: int, pipeline: Pipeline, ops: Any, dtype: Any = np.float32) -> Iterator[Any]:
        """Yield the latents of one picture on the way, and last the finished one."""

        def drawn(draw: int) -> Any:
            noise = noise_of(self.seed, number, draw, self.shape, dtype)
            return noise if ops is namespace("cpu") else device.array(noise)

        return denoise(pipeline, self.plan, self.labels, self.scale, drawn(0), map(drawn, count(1)), ops)


@host
def prepare(options: argparse.Namespace) -> Job:
    """Open the model and check what was asked, before any work."""
    where = device.pick(options.device)
    if options.explain and where != "cpu":
        raise UsageError(f"--explain speaks of the CPU, not of {options.device}")
    files = [] if options.explain else [*names_of(options.out, options.num_images), *filter(None, [options.preview])]
    for name in files:
        check_target(name)
        spare(name, {"the model": options.model, "the scheduler": options.scheduler})
    pipeline = open_pipeline(options.model)
    if pipeline.kind != options.kind:
        raise UsageError(f"{options.model} is a model of {pipeline.kind}s: python -m gpu.run {pipeline.kind}")
    if options.scheduler:
        pipeline = with_scheduler(pipeline, options.scheduler)
    away = pipeline.denoiser.num_classes
    if options.negative_prompt is not None:
        away = label_of(pipeline, options.negative_prompt)
    labels = label_of(pipeline, options.prompt), away
    scale = pipeline.guidance_scale if options.guidance_scale is None else options.guidance_scale
    shape = latent_shape(pipeline, options.height, options.width, getattr(options, "num_frames", None))
    plan = plan_of(pipeline, options.steps or pipeline.num_steps)
    return Job(pipeline, plan, labels, scale, shape, options.seed, where)


@host
def draw(job: Job, wanted: int, hand: Brake, drawing: Drawing, show: bool) -> None:
    """Draw pictures one after the other; Ctrl-C ends after the pass in hand, with those that are finished."""
    ops, pipeline, each = namespace(job.device), job.pipeline, 1 if job.scale == 1 else 2
    pipeline = replace(
        pipeline, denoiser_weights=placed(dict(pipeline.denoiser_weights), job.device),
        autoencoder_weights=placed(dict(pipeline.autoencoder_weights), job.device),
    )  # fmt: skip
    hand.armed = True
    for number in range(wanted):
        name = pipeline.kind if wanted == 1 else f"{pipeline.kind} {number + 1} of {wanted}"
        with tqdm(desc=name, unit="step", total=len(job.plan.timesteps), leave=False, disable=not show) as bar:
            latent, before = None, time.perf_counter()
            for i, latent in enumerate(job.steps(number, pipeline, ops)):
                if i:
                    drawing.seconds.append(time.perf_counter() - before)
                    drawing.passes += each
                    bar.update(min(1, bar.total - bar.n))
                held = _finite(latent, f"the denoiser gave NaN or infinity in step {i} of {name}")
                if number == 0:
                    drawing.way.append(held)
                hand.check()
                before = time.perf_counter()
        picture = picture_of(pipeline, latent, ops)
        drawing.pictures.append(_finite(picture, f"the decoder gave NaN or infinity for {name}"))
        hand.check()
    hand.armed = False


def _finite(x: Any, otherwise: str) -> np.ndarray:
    values = device.to_host(x)
    if not np.isfinite(values).all():
        raise UsageError(f"{otherwise}: the weights are damaged, or the guidance scale is too large")
    return values


def _strip(job: Job, drawing: Drawing) -> list[np.ndarray]:
    """Return up to _PREVIEWS pictures of the way, evenly chosen, decoded: from noise to what is finished."""
    chosen = np.unique(np.linspace(0, len(drawing.way) - 1, min(_PREVIEWS, len(drawing.way))).round().astype(int))
    decoded = [picture_of(job.pipeline, drawing.way[i], namespace("cpu")) for i in chosen]
    return [np.nan_to_num(x if x.ndim == 3 else x[:, x.shape[1] // 2]) for x in decoded]


def _write(job: Job, drawing: Drawing, options: argparse.Namespace) -> list[str]:
    """Write what is finished; return the names of the files."""
    names = names_of(options.out, options.num_images)
    if options.kind == "video":
        for name, video in zip(names, drawing.pictures, strict=False):
            write_video(name, video, options.fps)
    elif len(names) == options.num_images:
        for name, picture in zip(names, drawing.pictures, strict=False):
            write_picture(name, [picture])
    elif drawing.pictures:
        write_picture(names[0], drawing.pictures)
    written = names[: len(drawing.pictures)]
    if options.preview and drawing.way:
        strip = _strip(job, drawing)
        write_picture(options.preview, strip, len(strip))
        written.append(options.preview)
    return written


def _statistics(job: Job, drawing: Drawing, wall: float) -> list[str]:
    steps, asked = len(job.plan.timesteps), len(drawing.seconds)
    ms = 1e3 * statistics.median(drawing.seconds or [0.0])
    guided = "no guidance" if job.scale == 1 else f"guidance scale {job.scale:g}, so two passes each"
    each = asked / max(len(drawing.pictures), 1)
    return [
        f"solver   {job.pipeline.scheduler.name}, {steps} steps; {guided}",
        f"step     {ms * max(each / steps, 1):.2f} ms; the denoiser was asked {asked} times at {ms:.2f} ms (median)",
        f"passes   {drawing.passes} of the denoiser, {len(drawing.pictures)} of the decoder",
        f"wall     {wall:.2f} s on {job.device}",
    ]


def _record(job: Job, drawing: Drawing, files: list[str], code: int, wall: float) -> str:
    pixels = drawing.pictures[0].shape[1:] if drawing.pictures else ()
    return json.dumps({
        "files": files, "pictures": len(drawing.pictures), "shape": pixels, "stop": "interrupt" if code else "done",
        "label": job.labels[0], "seed": job.seed, "scheduler": job.pipeline.scheduler.name,
        "steps": len(job.plan.timesteps), "guidance_scale": job.scale, "passes": drawing.passes, "device": job.device,
        "timings": {"steps_s": [round(each, 6) for each in drawing.seconds], "wall_s": round(wall, 6)},
    })  # fmt: skip


@host
def run_picture(options: argparse.Namespace, hand: Brake) -> int:
    """Draw what the flags ask for; return the exit code."""
    with open_output(None) as stream, np.errstate(all="ignore"):  # NaN has a sentence of its own
        job, drawing, code = prepare(options), Drawing(), 0
        if options.explain:
            from gpu.cli.picture_explanation import explain_picture

            stream.write("\n".join(explain_picture(job)) + "\n")
            return 0
        start, is_terminal = time.perf_counter(), sys.stderr is not None and sys.stderr.isatty()
        try:
            with nullcontext() if job.device == "cpu" else device.use(job.device):
                draw(job, options.num_images, hand, drawing, is_terminal)
        except KeyboardInterrupt:
            code = 130
        hand.armed = False
        files, wall = _write(job, drawing, options), time.perf_counter() - start
        lines = [_record(job, drawing, files, code, wall)] if options.json else files
        stream.write("".join(f"{line}\n" for line in lines))
        if options.stats or (options.stats is None and is_terminal):
            say(*_statistics(job, drawing, wall))
        if options.verify and code == 0:
            from gpu.verify_picture import verify_picture

            same, lines = verify_picture(job, drawing.way, drawing.pictures[0])
            say(*lines)
            code = 0 if same else 1
    return code
