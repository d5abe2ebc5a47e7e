"""The flags of ``python -m gpu.run image`` and ``video``. Nothing heavy is imported, so a slip answers at once."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from refimpl.command import Parser, check_unicode
from refimpl.contract import UsageError, host
from refimpl.flags import HUGE, path, real, whole

__all__ = ["FORMATS", "KINDS", "parse_picture_arguments"]

KINDS = ("image", "video")
FORMATS = {"image": (".png", ".gif", ".webp", ".bmp", ".tif", ".tiff"), "video": (".gif", ".webp", ".png")}
"""What is written, by the end of a file's name; a video as .png is a strip of its frames."""


def _add_picture(parser: argparse.ArgumentParser, kind: str) -> None:
    add = parser.add_argument_group("what to draw").add_argument
    add("words", nargs="*", metavar="PROMPT", help="a word that the model knows, or the number of a class")
    add("-p", "--prompt", metavar="TEXT", help="the same")
    add("--negative-prompt", metavar="WORD", help="lead away from this class, not from no class")
    add("-s", "--seed", type=whole(0, 2**64 - 1), default=0, metavar="N", help="the same seed, the same picture (0)")
    add("--height", type=whole(1, 65536), metavar="PIXELS", help="default: that of the training")
    add("--width", type=whole(1, 65536), metavar="PIXELS")
    if kind == "video":
        add("--num-frames", type=whole(1, 65536), metavar="N", help="default: as many as in training")
        add("--fps", type=real(0.1, 100), default=8.0, metavar="N", help="frames a second (8)")
    else:
        add("-n", "--num-images", type=whole(1, 10000), default=1, metavar="N",
            help="side by side in one file, or with %%d in its name each in its own (1)")


def _add_way(parser: argparse.ArgumentParser, kind: str) -> None:
    add = parser.add_argument_group("model, solver and machine").add_argument
    models = "glyphs (default), glyphs-fast (1 to 4 steps)" if kind == "image" else "moving-glyphs (default)"
    add("-m", "--model", default=models.split()[0], type=path, help=f"{models} or a folder with model_index.json")
    add("--steps", "--num-inference-steps", type=whole(1, HUGE), metavar="N", help="default: what the model says")
    add("--scheduler", type=path, metavar="NAME",
        help="euler, heun, dpm++, unipc, a class of diffusers, or a scheduler_config.json; default: the model's")
    add("--guidance-scale", type=real(-100, 100), metavar="S", help="1: none, half the work; default: the model's")
    add("--device", choices=("auto", "cpu", "cuda", "emulated"), default="auto")


def _add_output(parser: argparse.ArgumentParser, kind: str) -> None:
    add = parser.add_argument_group("output").add_argument
    suffix = FORMATS[kind][0]
    known = f"{', '.join(FORMATS[kind][:3])}{' ...' if kind == 'image' else ' (a strip)'}"
    add("-o", "--out", type=path, metavar="FILE", help=f"{known}; default: PROMPT-SEED{suffix}")
    add("--preview", type=path, metavar="FILE", help="also draw the way from noise: up to 10 latents, decoded")
    add("--stats", action=argparse.BooleanOptionalAction, default=None,
        help="times and passes on standard error (default: when that is a terminal)")
    add("--json", action="store_true", help="say on standard output, as JSON, what was made and how")
    add("--verify", action="store_true", help="compare every step with the reference; exit code 1: one differs")
    add("--explain", action="store_true", help="what a step costs on this machine, and why; nothing is drawn")


@host
def parse_picture_arguments(kind: str, argv: Sequence[str]) -> argparse.Namespace:
    """Return the checked flags of ``argv``, which begins behind the word ``image`` or ``video``.

    >>> parse_picture_arguments("image", ["seven", "--steps", "4"]).out
    'seven-0.png'
    """
    said = f"Draw a{'n' if kind == 'image' else ''} {kind}. A text prompt that begins with the word {kind} is still "
    parser = Parser(
        prog=f"python -m gpu.run {kind}", usage=f"python -m gpu.run {kind} PROMPT [-m MODEL] [flags]",
        allow_abbrev=False, description=f'{said}possible: python -m gpu.run -p "{kind} ..."',
    )
    for add in (_add_picture, _add_way, _add_output):
        add(parser, kind)
    options = parser.read(argv)
    options.kind, options.num_images = kind, getattr(options, "num_images", 1)
    if options.words and options.prompt is not None:
        raise UsageError("PROMPT and --prompt both name what to draw: give one")
    options.prompt = " ".join(options.words) if options.prompt is None else options.prompt
    if not check_unicode(options.prompt, "the prompt").strip():
        raise UsageError(f'what shall be drawn? python -m gpu.run {kind} "seven"')
    options.out = options.out or f"{_plain(options.prompt)}-{options.seed}{FORMATS[kind][0]}"
    _check_files(options)
    if options.explain and (options.verify or options.json or options.preview):
        raise UsageError("--explain draws nothing: --verify, --json and --preview speak of a drawing")
    return options


def _check_files(options: argparse.Namespace) -> None:
    """Refuse files of a kind that is not written, or one file for two things."""
    wanted = ("-o", options.out, FORMATS[options.kind]), ("--preview", options.preview, FORMATS["image"])
    for flag, name, known in wanted:
        if name and Path(name).suffix.lower() not in known:
            raise UsageError(f"{flag} writes {', '.join(known)} files, not {name}")
    if options.preview and os.path.realpath(options.preview) == os.path.realpath(options.out):
        raise UsageError(f"-o and --preview both name {options.out}")


def _plain(prompt: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in prompt.strip())[:64]
