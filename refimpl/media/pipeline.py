"""From a word to a picture: a folder as diffusers lays it out, opened; noise, steps, and the picture at their end."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from refimpl.contract import Array, CheckpointError, UsageError, composed, host
from refimpl.files.checkpoint import read_json, read_safetensors
from refimpl.llm.rng import exponential
from refimpl.media.dit import DiTSpec, dit, dit_spec, dit_weights
from refimpl.media.plan import Plan
from refimpl.media.scheduler import Scheduler, read_scheduler
from refimpl.media.step import Guided, combine
from refimpl.media.vae import AutoencoderSpec, autoencoder_spec, autoencoder_weights, decode

__all__ = [
    "DEMOS", "Pipeline", "denoise", "label_of", "latent_shape", "noise_of", "open_pipeline", "picture_of",
    "with_scheduler",
]  # fmt: skip

DEMOS = ("glyphs", "glyphs-fast")
"""The models that come with the project, by name."""

_WEIGHTS = "diffusion_pytorch_model.safetensors"
_FLOW = {"num_train_timesteps": 1000, "prediction_type": "flow_prediction", "use_flow_sigmas": True}
_SHORT: Mapping[str, dict[str, Any]] = {
    "euler": {"_class_name": "FlowMatchEulerDiscreteScheduler"},
    "heun": {"_class_name": "FlowMatchHeunDiscreteScheduler"},
    "dpm++": {"_class_name": "DPMSolverMultistepScheduler", **_FLOW},
    "unipc": {"_class_name": "UniPCMultistepScheduler", **_FLOW},
}
"""Solvers of a straight flow by short names."""


@dataclass(frozen=True)
class Pipeline:
    """A denoiser, an autoencoder and a scheduler that belong together, with their weights as arrays."""

    path: Path
    labels: tuple[tuple[str, ...], ...]  # the words of each class
    guidance_scale: float
    num_steps: int
    scheduler: Scheduler
    denoiser: DiTSpec
    denoiser_weights: Mapping[str, Array]
    autoencoder: AutoencoderSpec
    autoencoder_weights: Mapping[str, Array]


@host
def open_pipeline(ref: str | Path, dtype: Any = np.float32) -> Pipeline:
    """Open one of DEMOS, or a folder with model_index.json, scheduler, transformer and vae.

    >>> open_pipeline("glyphs").labels[7]
    ('seven', '7')
    """
    path = Path(__file__).parents[1] / "demo" / ref if str(ref) in DEMOS else Path(ref)
    if not path.is_dir():
        raise UsageError(f"{ref} is neither a folder nor one of {', '.join(DEMOS)}")
    index = read_json(path / "model_index.json")
    if index.get("_class_name") != "DiTPipeline":
        raise CheckpointError(f"{path / 'model_index.json'}: {index.get('_class_name')!r} is not read here; DiTPipeline is")
    denoiser = dit_spec(read_json(path / "transformer" / "config.json"))
    autoencoder = autoencoder_spec(read_json(path / "vae" / "config.json"))
    if denoiser.in_channels != autoencoder.latent_channels:
        channels = f"{denoiser.in_channels} channels, the autoencoder {autoencoder.latent_channels}"
        raise CheckpointError(f"{path}: the denoiser has {channels}")
    steps, scale = index.get("num_inference_steps", 50), index.get("guidance_scale", 4.0)
    if not (isinstance(steps, int) and steps > 0 and isinstance(scale, int | float) and abs(scale) < 1e3):
        raise CheckpointError(f"{path / 'model_index.json'}: {steps!r} steps, guidance scale {scale!r}")
    tensors = [read_safetensors(path / part / _WEIGHTS) for part in ("transformer", "vae")]
    return Pipeline(
        path, _labels(path, index.get("id2label"), denoiser.num_classes), float(scale), steps,
        read_scheduler(read_json(path / "scheduler" / "scheduler_config.json")), denoiser,
        dit_weights(tensors[0], denoiser, dtype), autoencoder, autoencoder_weights(tensors[1], autoencoder, dtype),
    )  # fmt: skip


def _labels(path: Path, named: Any, count: int) -> tuple[tuple[str, ...], ...]:
    """Read id2label: words by commas; a class without a name has its number."""
    if named is not None and not (isinstance(named, dict) and all(isinstance(each, str) for each in named.values())):
        raise CheckpointError(f"{path / 'model_index.json'}: id2label gives each class its words, not {named!r}")
    words = [(named or {}).get(str(i), str(i)) for i in range(count)]
    return tuple(tuple(word.strip() for word in each.split(",")) for each in words)


@host
def with_scheduler(pipeline: Pipeline, wanted: str) -> Pipeline:
    """Take another solver: a short name, a class of diffusers, or a scheduler_config.json; it keeps the prediction.

    >>> with_scheduler(open_pipeline("glyphs"), "heun").scheduler.name
    'FlowMatchHeunDiscreteScheduler'
    """
    if wanted in _SHORT:
        config = dict(_SHORT[wanted])
    elif Path(wanted).is_file():
        config = read_json(Path(wanted))
    else:
        config = next((c for c in _SHORT.values() if c["_class_name"] == wanted), {"_class_name": wanted})
        if not wanted.endswith("Scheduler"):
            raise UsageError(f"a scheduler is {', '.join(_SHORT)}, a class of diffusers or a file, not {wanted!r}")
    scheduler = read_scheduler(config)
    trained, said = (each.plan(1).prediction for each in (pipeline.scheduler, scheduler))
    if trained != said:
        raise UsageError(f"{scheduler.name} is set to {said}, but this model was trained to give {trained}")
    return replace(pipeline, scheduler=scheduler)


@host
def label_of(pipeline: Pipeline, prompt: str) -> int:
    """Return the class that a word names.

    >>> label_of(open_pipeline("glyphs"), " Seven")
    7
    """
    word = prompt.strip().casefold()
    for label, words in enumerate(pipeline.labels):
        if word in (each.casefold() for each in words):
            return label
    known = ", ".join(words[0] for words in pipeline.labels[:20]) + (", ..." if len(pipeline.labels) > 20 else "")
    raise UsageError(f"{pipeline.path.name} draws {known}; not {prompt.strip()!r}")


@host
def latent_shape(pipeline: Pipeline, height: int | None = None, width: int | None = None) -> tuple[int, int, int]:
    """Return the shape of the latent of a picture; None: as large as those of the training.

    >>> latent_shape(open_pipeline("glyphs"))
    (4, 8, 8)
    """
    spec, factor = pipeline.denoiser, pipeline.autoencoder.factor
    sides = [spec.sample_size * factor if side is None else side for side in (height, width)]
    unit = factor * spec.patch_size
    for name, side in zip(("height", "width"), sides, strict=True):
        if side < unit or side % unit:
            raise UsageError(f"{name} is a multiple of {unit} pixels (patches of {spec.patch_size} latents), not {side}")
    return spec.in_channels, sides[0] // factor, sides[1] // factor


@host
def noise_of(seed: int, image: int, draw: int, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    """Return normal noise that depends on seed, image and draw alone, not on what else is drawn.

    Math: sqrt(2 e) cos(2 pi u), e and -log(1 - u) exponential (Box, Muller, 1958).

    >>> noise_of(0, 3, 0, (2, 2)).shape
    (2, 2)
    """
    size = int(np.prod(shape))
    radius, angle = (exponential(seed, image, 2 * draw + part, size).astype(np.float64) for part in (0, 1))
    return (np.sqrt(2 * radius) * np.cos(2 * np.pi * -np.expm1(-angle))).reshape(shape).astype(dtype)


@composed
def denoise(
    pipeline: Pipeline, plan: Plan, labels: tuple[int, int], guidance_scale: float, noise: Array, draws: Iterator[Array],
    ops: Any, **settings: Any,
) -> Iterator[Array]:
    """Yield the latent before every pass of the denoiser, and last the finished one.

    ``labels`` are the class that is wanted and the one that is led away from; a scale of 1 asks for the first alone.
    A model that also gives a variance is read without it.
    """
    spec, weights, channels = pipeline.denoiser, pipeline.denoiser_weights, pipeline.denoiser.in_channels

    def model(x: Array, timestep: float) -> Any:
        cond = dit(x, timestep, labels[0], weights, spec, ops)[:channels]
        if guidance_scale == 1:
            return cond
        return Guided(cond, dit(x, timestep, labels[1], weights, spec, ops)[:channels], guidance_scale)

    x = noise if plan.initial_scale == 1 else combine(((plan.initial_scale, noise),), ops)
    yield from pipeline.scheduler.solve(x, model, plan, draws, ops, **settings)


@composed
def picture_of(pipeline: Pipeline, latent: Array, ops: Any) -> Array:
    """Decode a denoiser's latent to a picture of values about -1..1 [C Y X]."""
    spec = pipeline.autoencoder
    scaled = combine(((1 / spec.scaling_factor, latent),), ops)
    if spec.shift_factor:
        scaled = scaled + spec.shift_factor
    return decode(scaled, pipeline.autoencoder_weights, spec, ops)
