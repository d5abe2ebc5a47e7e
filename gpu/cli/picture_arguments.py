"""The flags of ``python -m gpu.run image``. Nothing heavy is imported, so a slip answers at once."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from refimpl.command import Parser
from refimpl.contract import UsageError, host
from refimpl.flags import HUGE, path, real, whole

__all__ = ["FORMATS", "parse_picture_arguments"]

FORMATS = (".png", ".gif", ".webp", ".bmp", ".tif", ".tiff")


@host
def parse_picture_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Return the checked flags of ``argv``, which begins behind the word ``image``.

    >>> parse_picture_arguments(["seven", "--steps", "4"]).out
    'seven-0.png'
    """
    parser = Parser(
        prog="python -m gpu.run image", usage="python -m gpu.run image PROMPT [-m MODEL] [flags]", allow_abbrev=False,
        description="Draw a picture. A text prompt that begins with the word image: python -m gpu.run -p 'image ...'.",
    )
    add = parser.add_argument
    add("words", nargs="*", metavar="PROMPT", help="what to draw: a word that the model knows")
    add("-m", "--model", default="glyphs", type=path,
        help="glyphs (default), glyphs-fast (1 to 4 steps), or a folder with model_index.json")
    add("--steps", "--num-inference-steps", type=whole(1, HUGE), metavar="N", help="default: what the model says")
    add("--scheduler", type=path, metavar="NAME",
        help="euler, heun, dpm++, unipc, a class of diffusers, or a scheduler_config.json")
    add("--guidance-scale", type=real(-100, 100), metavar="S", help="1: no guidance, half the work; default: the model's")
    add("--negative-prompt", metavar="WORD", help="lead away from this class, not from no class")
    add("--height", type=whole(1, 65536), metavar="PIXELS", help="default: that of the training")
    add("--width", type=whole(1, 65536), metavar="PIXELS")
    add("-s", "--seed", type=whole(0, 2**63), default=0, metavar="N", help="the same seed, the same pictures (0)")
    add("-n", "--num-images", type=whole(1, 10000), default=1, metavar="N", help="in one file, side by side (1)")
    add("-o", "--out", type=path, metavar="FILE", help=f"{', '.join(FORMATS[:3])} ...; default: PROMPT-SEED.png")
    add("--preview", type=path, metavar="FILE", help="also draw the way: the picture after each of up to 10 steps")
    add("--device", choices=("auto", "cpu", "cuda", "emulated"), default="auto")
    add("--stats", action=argparse.BooleanOptionalAction, default=None, help="times and passes on standard error")
    add("--json", action="store_true", help="say on standard output, as JSON, what was made and how")
    add("--verify", action="store_true", help="compare every step with the reference in float64; exit code 1: they differ")
    add("--explain", action="store_true", help="what a step costs on this machine, and why")
    options = parser.read(argv)
    options.prompt = " ".join(options.words)
    if not options.prompt.strip():
        raise UsageError('what shall be drawn? python -m gpu.run image "seven"')
    options.out = options.out or f"{_plain(options.prompt)}-{options.seed}.png"
    for flag, name in (("-o", options.out), ("--preview", options.preview)):
        if name and Path(name).suffix.lower() not in FORMATS:
            raise UsageError(f"{flag} writes {', '.join(FORMATS)} files, not {name}")
    if options.preview and Path(options.preview).resolve() == Path(options.out).resolve():
        raise UsageError(f"-o and --preview both name {options.out}")
    return options


def _plain(prompt: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in prompt.strip())[:64]
