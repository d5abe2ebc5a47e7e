"""From a word to a picture or a video: a folder as diffusers lays it out; noise, steps, and pixels at their end."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from refimpl.contract import Array, CheckpointError, UsageError, composed, host
from refimpl.files.checkpoint import read_json, read_safetensors
from refimpl.llm.rng import exponential
from refimpl.media.causal_vae import CausalSpec, causal_spec, causal_weights, decode_video, frames_of
from refimpl.media.dit import DiTSpec, dit, dit_spec, dit_weights
from refimpl.media.plan import Plan
from refimpl.media.scheduler import SCHEDULERS, Scheduler, read_scheduler
from refimpl.media.scheduler_plans import check_steps
from refimpl.media.step import Guided, combine
from refimpl.media.vae import AutoencoderSpec, autoencoder_spec, autoencoder_weights, decode
from refimpl.media.video_dit import VideoDiTSpec, video_dit, video_dit_spec

__all__ = [
    "DEMOS", "Pipeline", "denoise", "label_of", "latent_shape", "noise_of", "open_pipeline", "picture_of",
    "plan_of", "with_scheduler",
]  # fmt: skip

DEMOS = ("glyphs", "glyphs-fast", "moving-glyphs")
"""The models that come with the project, by name."""

_WEIGHTS = "diffusion_pytorch_model.safetensors"
_PARTS = ("transformer", "vae")
_SOLVERS = {  # by short name: the class that follows a straight flow, and that of the other predictions
    "euler": ("FlowMatchEulerDiscreteScheduler", "EulerDiscreteScheduler"),
    "heun": ("FlowMatchHeunDiscreteScheduler", "HeunDiscreteScheduler"),
    "dpm++": ("DPMSolverMultistepScheduler",) * 2, "unipc": ("UniPCMultistepScheduler",) * 2,
}  # fmt: skip
_TRAINED = "num_train_timesteps beta_start beta_end beta_schedule trained_betas prediction_type rescale_betas_zero_snr"
"""Keys of a scheduler that say how the model was trained, whatever the solver."""


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
    autoencoder: AutoencoderSpec | CausalSpec
    autoencoder_weights: Mapping[str, Array]

    @property
    def kind(self) -> str:
        """What it makes: an image or a video."""
        return "video" if isinstance(self.denoiser, VideoDiTSpec) else "image"


@host
def open_pipeline(ref: str | Path, dtype: Any = np.float32) -> Pipeline:
    """Open one of DEMOS, or a folder with model_index.json, scheduler, transformer and vae.

    >>> open_pipeline("glyphs").labels[7]
    ('seven', '7')
    """
    path = Path(__file__).parents[1] / "demo" / ref if str(ref) in DEMOS else Path(ref).expanduser()
    if not path.is_dir():
        raise UsageError(f"{ref} is neither a folder nor one of {', '.join(DEMOS)}")
    index, configs = read_json(path / "model_index.json"), [read_json(path / p / "config.json") for p in _PARTS]
    if index.get("_class_name") not in ("DiTPipeline", "VideoDiTPipeline"):
        known = "DiTPipeline and VideoDiTPipeline are read here"
        raise CheckpointError(f"{path / 'model_index.json'}: {known}, not {index.get('_class_name')!r}")
    is_video = index["_class_name"].startswith("Video")
    denoiser = video_dit_spec(configs[0]) if is_video else dit_spec(configs[0])
    autoencoder = causal_spec(configs[1]) if is_video else autoencoder_spec(configs[1])
    _check_together(path, denoiser, autoencoder)
    steps, scale = index.get("num_inference_steps", 50), index.get("guidance_scale", 4.0)
    if not (isinstance(steps, int) and steps > 0 and isinstance(scale, int | float) and abs(scale) < 1e3):
        raise CheckpointError(f"{path / 'model_index.json'}: {steps!r} steps, guidance scale {scale!r}")
    tensors = [read_safetensors(path / part / _WEIGHTS) for part in _PARTS]
    taken: Any = causal_weights if is_video else autoencoder_weights
    return Pipeline(
        path, _labels(path, index.get("id2label"), denoiser.num_classes), float(scale), steps,
        read_scheduler(read_json(path / "scheduler" / "scheduler_config.json")), denoiser,
        dit_weights(tensors[0], denoiser, dtype), autoencoder, taken(tensors[1], autoencoder, dtype),
    )  # fmt: skip


def _check_together(path: Path, denoiser: DiTSpec, autoencoder: AutoencoderSpec | CausalSpec) -> None:
    """Refuse a denoiser and an autoencoder that do not belong together."""
    if (c := denoiser.in_channels) != (z := autoencoder.latent_channels):
        raise CheckpointError(f"{path}: the denoiser has {c} channels, the autoencoder {z}")
    if denoiser.out_channels not in (c, 2 * c):
        raise CheckpointError(f"{path}: of {c} channels the denoiser gives {denoiser.out_channels}")
    made = autoencoder.in_channels if isinstance(autoencoder, CausalSpec) else autoencoder.out_channels
    if made not in (1, 3):
        raise CheckpointError(f"{path}: a picture has 1 or 3 channels, this autoencoder's has {made}")


def _labels(path: Path, named: Any, count: int) -> tuple[tuple[str, ...], ...]:
    """Read id2label: words by commas; a class without a name has its number."""
    labels = {} if named is None else named
    if not (isinstance(labels, dict) and all(isinstance(each, str) for each in labels.values())):
        raise CheckpointError(f"{path / 'model_index.json'}: id2label gives each class its words, not {named!r}")
    if beyond := sorted(set(labels) - set(map(str, range(count)))):
        raise CheckpointError(f"{path / 'model_index.json'}: id2label names class {beyond[0]!r}; there are {count}")
    words = [labels.get(str(i), str(i)) for i in range(count)]
    return tuple(tuple(word.strip() for word in each.split(",")) for each in words)


@host
def with_scheduler(pipeline: Pipeline, wanted: str) -> Pipeline:
    """Take another solver: a short name, a class of diffusers, or a scheduler_config.json.

    A name keeps what the model's own scheduler says of its training and of its flow; a file says all itself.

    >>> with_scheduler(open_pipeline("glyphs"), "heun").scheduler.name
    'FlowMatchHeunDiscreteScheduler'
    """
    own, trained = pipeline.scheduler.config, pipeline.scheduler.plan(1).prediction
    names = {short: pair[trained != "flow_prediction"] for short, pair in _SOLVERS.items()}
    if Path(wanted).is_file():
        scheduler = read_scheduler(read_json(Path(wanted)))
    elif wanted in names or wanted in SCHEDULERS:
        name = names.get(wanted, wanted)
        keys = SCHEDULERS[name].keys
        kept = {key: own[key] for key in (*_TRAINED.split(), "shift") if key in keys and key in own}
        if trained == "flow_prediction" and "use_flow_sigmas" in keys:
            shift = own.get("shift", own.get("flow_shift", 1.0))
            kept |= {"use_flow_sigmas": True, "flow_shift": shift, "prediction_type": trained}
        scheduler = read_scheduler({"_class_name": name, **kept})
    else:
        raise UsageError(f"a scheduler is {', '.join(names)}, a class of diffusers or a file, not {wanted!r}")
    if trained != (said := scheduler.plan(1).prediction):
        raise UsageError(f"{scheduler.name} is set to {said}, but this model was trained to give {trained}")
    return replace(pipeline, scheduler=scheduler)


@host
def plan_of(pipeline: Pipeline, num_steps: int) -> Plan:
    """Return where so many steps stop. A flow of diffusers' FlowMatch classes stops at 1, 1 - 1 / n ... 1 / n.

    So their pipelines plan, and so few-step models are taught; the class alone would go on to 1 / num_train_timesteps.

    >>> plan_of(open_pipeline("glyphs"), 4).sigmas
    array([1.  , 0.75, 0.5 , 0.25, 0.  ])
    """
    if not pipeline.scheduler.name.startswith("FlowMatch"):
        return pipeline.scheduler.plan(num_steps)
    check_steps(pipeline.scheduler.config, num_steps)
    return pipeline.scheduler.plan(num_steps, at=np.linspace(1, 1 / num_steps, num_steps))


@host
def label_of(pipeline: Pipeline, prompt: str) -> int:
    """Return the class that a word names, or that has the number.

    >>> label_of(open_pipeline("glyphs"), " Seven")
    7
    """
    word = prompt.strip().casefold()
    for label, words in enumerate(pipeline.labels):
        if word in (each.casefold() for each in words):
            return label
    if re.fullmatch("[0-9]{1,9}", word) and int(word) < len(pipeline.labels):
        return int(word)
    known = ", ".join(words[0] for words in pipeline.labels[:20]) + (", ..." if len(pipeline.labels) > 20 else "")
    raise UsageError(f"{pipeline.path.name} draws {known}; not {prompt.strip()!r}")


@host
def latent_shape(
    pipeline: Pipeline, height: int | None = None, width: int | None = None, frames: int | None = None
) -> tuple[int, ...]:
    """Return the shape of the latent of a picture or a video; None: as large as those of the training.

    >>> latent_shape(open_pipeline("glyphs"))
    (4, 8, 8)
    """
    spec, factor = pipeline.denoiser, pipeline.autoencoder.factor
    sides = [spec.sample_size * factor if side is None else side for side in (height, width)]
    unit = factor * spec.patch_size
    for name, side in zip(("height", "width"), sides, strict=True):
        if side < unit or side % unit:
            raise UsageError(f"{name} is a multiple of {unit} pixels, patches of {spec.patch_size} latents, not {side}")
    y, x = (side // factor for side in sides)
    if not (isinstance(spec, VideoDiTSpec) and isinstance(pipeline.autoencoder, CausalSpec)):
        return spec.in_channels, y, x
    each = pipeline.autoencoder.frame_factor
    frames = frames_of(pipeline.autoencoder, spec.sample_frames) if frames is None else frames
    if frames < 1 or (frames - 1) % each:
        raise UsageError(f"a video has 1 + a multiple of {each} frames, not {frames}")
    return spec.in_channels, 1 + (frames - 1) // each, y, x


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
    pipeline: Pipeline, plan: Plan, labels: tuple[int, int], guidance_scale: float, noise: Array,
    draws: Iterator[Array], ops: Any, **settings: Any,
) -> Iterator[Array]:
    """Yield the latent before every pass of the denoiser, and last the finished one.

    ``labels`` are the class that is wanted and the one that is led away from; a scale of 1 asks for the first alone.
    A model that also gives a variance is read without it.

    Source: Ho, Salimans, Classifier-free diffusion guidance, 2022; Peebles, Xie, DiT, 2022.
    """
    spec, weights, channels = pipeline.denoiser, pipeline.denoiser_weights, pipeline.denoiser.in_channels

    def ask(x: Array, timestep: float, label: int) -> Array:
        if isinstance(spec, VideoDiTSpec):
            return video_dit(x, timestep, label, weights, spec, ops)[:channels]
        return dit(x, timestep, label, weights, spec, ops)[:channels]

    def model(x: Array, timestep: float) -> Any:
        cond = ask(x, timestep, labels[0])
        return cond if guidance_scale == 1 else Guided(cond, ask(x, timestep, labels[1]), guidance_scale)

    x = noise if plan.initial_scale == 1 else combine(((plan.initial_scale, noise),), ops)
    yield from pipeline.scheduler.solve(x, model, plan, draws, ops, **settings)


@composed
def picture_of(pipeline: Pipeline, latent: Array, ops: Any) -> Array:
    """Decode a denoiser's latent to values about -1..1: a picture [C Y X], or a video [C frames Y X].

    Source: Rombach et al., Latent diffusion, 2022.
    """
    spec, weights = pipeline.autoencoder, pipeline.autoencoder_weights
    scaled = combine(((1 / spec.scaling_factor, latent),), ops)
    if isinstance(spec, CausalSpec):
        return decode_video(scaled, weights, spec, ops)
    return decode(scaled + spec.shift_factor if spec.shift_factor else scaled, weights, spec, ops)
