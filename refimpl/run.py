"""python -m refimpl.run [PROMPT ...] -m MODEL: slow, plain generation by the specification itself.

Text goes to standard output as it is made. Exit codes: 0, done; 2, it cannot be done as asked; 130, Ctrl-C.
"""

import os
import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))  # nothing runs yet that could end in order

import argparse
import io
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from refimpl.command import Parser, check_unicode, guard, run_program
from refimpl.contract import UsageError, host
from refimpl.flags import FLAGS, SAMPLING, add_template_flags, phrase, template_options
from refimpl.interrupt import Brake

__all__ = ["Run", "main"]

_TIMINGS = ("load_s", "ttft_s", "prompt_s", "decode_s")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="python -m refimpl.run", description=__doc__, allow_abbrev=False)
    parser.add_argument("words", nargs="*", metavar="PROMPT", help="words of the prompt; none or -: standard input")
    models = "a folder, a .gguf file, org/name, smollm2 (default)"
    parser.add_argument("-m", "--model", type=phrase, default="smollm2", help=models)
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    parser.add_argument("--raw", action="store_true", help="give the model the prompt as it is, without template")
    add_template_flags(parser)
    for name, (convert, default, meaning) in SAMPLING.items():
        parser.add_argument(*FLAGS[name], dest=name, type=convert, default=default, metavar="N", help=meaning)
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text")
    parser.add_argument("--ignore-eos", action="store_true", help="go on where the model would end")
    parser.add_argument("--dtype", choices=("float32", "float64", "bfloat16", "float16"), default="float32")
    parser.add_argument("--offline", action="store_true", help="never ask the network")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    options = parser.read(argv)
    for name, text in (("--system", options.system or ""), *(("--stop", stop) for stop in options.stop)):
        check_unicode(text, name)
    options.template = template_options(options)
    return options


def _prompt(words: list[str]) -> str:
    text = " ".join(words)
    if text in ("", "-"):
        if sys.stdin is None or (not words and sys.stdin.isatty()):
            raise UsageError("no prompt: give PROMPT, or text on standard input")
        try:
            text = sys.stdin.read().removesuffix("\n")
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read standard input: {error}") from None
    if not text:
        raise UsageError("the prompt is empty")
    return check_unicode(text, "the prompt")


@dataclass
class Run:
    """One answer as it grows, and how long it took."""

    prompt_ids: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    text: str = ""
    stop: str = "interrupt"  # until the model says otherwise
    timings: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_TIMINGS, 0.0))

    def record(self) -> dict[str, Any]:
        """Return the answer as JSON shall show it."""
        usage = {"prompt_tokens": len(self.prompt_ids), "completion_tokens": len(self.ids)}
        return {
            "prompt_ids": self.prompt_ids, "ids": self.ids, "text": self.text, "stop": self.stop, "usage": usage,
            "timings": {name: round(seconds, 6) for name, seconds in self.timings.items()},
        }  # fmt: skip


def _generate(options: argparse.Namespace, run: Run, hand: Brake) -> None:
    """Load the model and let it answer; the run holds what there is, whenever this ends."""
    with hand.held():
        from refimpl.encoder_model import EncoderModel
        from refimpl.model import load  # tokenizers and templates: a slip in the flags need not wait for them

    prompt, start = _prompt(options.words), time.perf_counter()
    model = load(options.model, dtype=options.dtype, offline=options.offline)
    if isinstance(model, EncoderModel):
        raise UsageError(f"{options.model} is an encoder: it answers nothing; python -m gpu.run --embed TEXT runs it")
    asked = time.perf_counter()
    run.timings["load_s"] = asked - start
    run.prompt_ids = model.prompt_ids(prompt, system=options.system, raw=options.raw, **options.template)
    tokens = model.generate(
        run.prompt_ids, stop=options.stop, ignore_eos=options.ignore_eos,
        **{name: getattr(options, name) for name in SAMPLING} | {"max_tokens": options.max_tokens or 256},
    )  # fmt: skip
    first = None
    for token in tokens:
        hand.armed = True
        now = time.perf_counter()
        first = first or now
        run.ids.append(token.id)
        run.text += token.text
        run.stop = token.stop or run.stop
        run.timings |= {"ttft_s": first - asked, "prompt_s": first - asked, "decode_s": now - first}
        if options.output == "text":
            print(token.text, end="", flush=True)
        hand.check()
    hand.armed = False
    hand.check()


def _answer(argv: Sequence[str], hand: Brake) -> int:
    options, run, code = _parse(argv), Run(), 0
    if sys.stdout is None:
        raise UsageError("standard output is closed")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character shows a question mark
    try:
        _generate(options, run, hand)
    except KeyboardInterrupt:
        code = 130
    print(json.dumps(run.record()) if options.output == "json" else "", flush=True)
    return code


@host
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code, never raise."""
    return guard("refimpl.run", lambda hand: _answer(sys.argv[1:] if argv is None else argv, hand))


if __name__ == "__main__":
    run_program(main)
