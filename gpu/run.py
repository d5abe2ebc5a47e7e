"""python -m gpu.run [PROMPT ...] [-m MODEL]: run a language model; python -m gpu.run image or video WORD: draw.

Exit codes: 0, done; 1, --verify found an id or a layer that differs; 2, it cannot be done as asked; 130, Ctrl-C.
"""

import os
import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))  # nothing runs yet that could end in order

import argparse
import importlib
import platform
import sys
import time
from collections.abc import Sequence
from typing import Any

from gpu.cli.arguments import parse_arguments
from gpu.cli.output import Answer, Output, open_output, spare
from gpu.cli.picture_arguments import KINDS, parse_picture_arguments
from gpu.cli.prompts import read_prompts, read_text
from refimpl.command import guard, run_program
from refimpl.contract import UsageError, host
from refimpl.flags import RANDOM
from refimpl.interrupt import Brake

__all__ = ["main"]


def _versions() -> str:
    """Return the versions on which an answer depends."""
    from importlib.metadata import version

    import refimpl

    parts = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba", "llvmlite", "tiktoken"))
    return f"gpu.run {refimpl.__version__} (Python {platform.python_version()}, {parts}, {platform.machine()})"


def _load(options: argparse.Namespace, hand: Brake) -> Any:
    from gpu.cli.answering import check_sampling, load_model
    from gpu.cli.encoders import check_kind

    with hand.held():
        importlib.import_module("gpu.model")  # a second
    model = load_model(options)
    kind = check_kind(options, model)
    if kind != "encoder":
        check_sampling(options, model)
    if kind != "decoder":
        return model
    draft = None if model.draft in (None, "ngram") else model.draft.source.path
    spare(options.out, {"the model": model.source.path, "the draft model": draft})
    return model


def _check_plot(options: argparse.Namespace) -> None:
    """Refuse a picture that cannot be drawn or written, before anything is loaded."""
    from gpu.cli.output import check_writable
    from gpu.cli.plot import check_plot

    check_plot(options.plot)
    check_writable(options.plot)
    read = {"the model": os.path.expanduser(options.model), "the prompt": options.file, "the answer": options.out}
    spare(options.plot, read, "--plot")
    if options.out is not None and os.path.realpath(options.out) == os.path.realpath(options.plot):
        raise UsageError(f"-o and --plot both name {options.plot}")


def _explain(options: argparse.Namespace, output: Output, hand: Brake) -> int:
    """Print what one prompt costs, instead of an answer."""
    from gpu.cli.answering import announce_compilation, prepare
    from gpu.device import pick

    if pick(options.device) != "cpu":
        raise UsageError(f"--explain speaks of the CPU, not of {options.device}")
    prompts, answer, random = read_prompts(options), Answer(), options.model.startswith(RANDOM)
    with hand.held():
        from gpu.cli.costs import draw
        from gpu.cli.sketch import explain_sketch, sketch
        from gpu.machine import machine
    model = sketch(options) if random else _load(options, hand)
    prepare(answer, prompts[0], options, model)
    limits, prompt = machine(again=True), len(answer.prompt_ids)
    tokens = min(options.max_tokens or 256, model.context - prompt)
    if random:
        lines = explain_sketch(model, prompt, tokens, limits)
    else:
        from gpu.cli.explanation import explanation

        announce_compilation(model)
        lines = explanation(model, prompt, tokens, limits)
    output.stream.write("\n".join(lines) + "\n")
    if options.plot:
        draw(options.plot, model, prompt, tokens, limits)
    return 0


def _answer(options: argparse.Namespace, output: Output, hand: Brake) -> int:
    """Answer the prompts of the flags; whatever happens, what was made is written."""
    from gpu.cli.answering import ask, generate_settings, prepare, say, spell_logprobs
    from gpu.cli.encoders import seq2seq_statistics

    prompts = read_prompts(options)
    answers, start, load_s, code = [Answer() for _ in prompts], time.perf_counter(), 0.0, 0
    model = None
    try:
        model = _load(options, hand)
        load_s = time.perf_counter() - start
        for number, (answer, prompt) in enumerate(zip(answers, prompts, strict=True), 1):
            prepare(answer, prompt, options, model, f"prompt {number}" if output.many else "the prompt")
        if model.tokenizer is None and output.form == "text":
            say(f"{options.model} has no tokenizer: its tokens have no text, --output json shows their ids")
        ask(model, answers, options, output, load_s, hand)
    except KeyboardInterrupt:
        code = 130
    if code == 0 or options.out is None or any(answer.ids for answer in answers):  # else its file stays as it was
        output.finish(answers, load_s, all_done=True)
    if output.form == "text":
        say(*(line for answer in answers for line in spell_logprobs(answer)))
    if model is not None and options.stats:
        from gpu.cli.stats import statistics

        tell = statistics if hasattr(model, "executor") else seq2seq_statistics
        say(*tell(model, answers, load_s))
    if model is not None and options.verify and code == 0:
        from gpu.verify import verify
        from gpu.verify_encoder import verify_answer

        judge = verify if hasattr(model, "executor") else verify_answer
        same, lines = judge(model, answers[0], options, generate_settings(options, model))
        say(*lines)
        code = 0 if same else 1
    return code


def _score(options: argparse.Namespace, output: Output, hand: Brake) -> int:
    """Say how surprised the model is by a text."""
    text, start = read_text(options.perplexity), time.perf_counter()
    with hand.held():
        from gpu.cli.scoring import score_text
    model = _load(options, hand)
    load_s = time.perf_counter() - start
    from gpu.cli.answering import announce_compilation

    announce_compilation(model)
    return score_text(text, options, model, output, load_s)


def _run(argv: Sequence[str], hand: Brake) -> int:
    if argv and argv[0] in KINDS:
        asked = parse_picture_arguments(argv[0], argv[1:])
        with hand.held():
            from gpu.cli.pictures import run_picture
        return run_picture(asked, hand)
    options = parse_arguments(argv)
    if options.stats is None:
        options.stats = sys.stderr is not None and sys.stderr.isatty()
    with open_output(None if options.version else options.out) as stream:
        many = options.prompts is not None
        output = Output(stream, options.output, options.stream and not many, options.logprobs is not None, many)
        if options.version:
            stream.write(_versions() + "\n")
            return 0
        model, prompt = os.path.expanduser(options.model), options.file or options.prompts or options.perplexity
        spare(options.out, {"the model": model, "the prompt": prompt, "the tools": options.tools, "standard input": 0})
        from gpu.device import pick

        pick(options.device)
        if options.plot:
            _check_plot(options)
        if options.explain or options.plot:
            return _explain(options, output, hand)
        if options.embed or options.fill_mask is not None:
            from gpu.cli.encoders import encode_texts

            start = time.perf_counter()
            model = _load(options, hand)
            return encode_texts(model, options, output, time.perf_counter() - start)
        if options.perplexity:
            return _score(options, output, hand)
        if options.chat:
            from gpu.cli.chat import chat

            start = time.perf_counter()
            return chat(_load(options, hand), options, output, start, hand)
        return _answer(options, output, hand)


@host
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code, never raise."""
    return guard("gpu.run", lambda hand: _run(sys.argv[1:] if argv is None else argv, hand))


if __name__ == "__main__":
    run_program(main)
