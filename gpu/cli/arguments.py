"""What the user asks for: flags to a checked namespace. Nothing heavy is imported, so a slip answers at once."""

import argparse
import os
from collections.abc import Sequence

from gpu.cli.encoders import check_encoding
from refimpl.command import Parser, check_unicode
from refimpl.contract import UsageError, host
from refimpl.flags import (
    FLAGS,
    HUGE,
    RANDOM,
    SAMPLING,
    add_template_flags,
    parse_bias,
    path,
    phrase,
    template_options,
    whole,
)

__all__ = ["parse_arguments"]


def _add_prompt(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompt (one of these; else standard input)")
    group.add_argument("words", nargs="*", metavar="PROMPT", help="words of the prompt, joined by spaces")
    group.add_argument("-p", "--prompt", metavar="TEXT", help="the prompt; - reads standard input")
    group.add_argument("-f", "--file", type=path, metavar="FILE", help="read the prompt from a file")
    group.add_argument(
        "--prompts", type=path, metavar="FILE",
        help="answer many prompts together: a text file with one a line, or a .jsonl file whose lines are each "
             'a JSON string, {"prompt": "..."} or {"messages": [...]}',
    )
    group.add_argument(
        "--prompt-tokens", type=whole(1, HUGE), metavar="N",
        help="a prompt of N tokens, whatever they are: for --explain, and to measure speeds",
    )
    group.add_argument("-i", "--chat", "--interactive", action="store_true", help="talk; /help lists the commands")
    group.add_argument("--system", "--system-prompt", metavar="TEXT", help="the system message")
    group.add_argument("--raw", action="store_true", help="give the model the prompt as it is, without template")
    add_template_flags(group)
    group.add_argument(
        "--embed", nargs="+", metavar="TEXT",
        help="a line of numbers for each text, its vector as the encoder's folder says; -: lines of standard input",
    )
    group.add_argument(
        "--fill-mask", metavar="TEXT", help='what may stand at the mask of a text, "Paris is the [MASK] of France."'
    )


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("answer")
    for name, (convert, default, meaning) in SAMPLING.items():
        group.add_argument(*FLAGS[name], dest=name, type=convert, default=default, metavar="N", help=meaning)
    group.add_argument(
        "--logit-bias", type=parse_bias, action="append", default=[], metavar="ID=BIAS",
        help="add BIAS to a token's logit; repeatable, or a JSON object",
    )
    group.add_argument("--stop", type=phrase, action="append", default=[], metavar="TEXT", help="end before this text")
    group.add_argument("--ignore-eos", action="store_true", help="go on where the model would end")
    group.add_argument("--logprobs", type=whole(0, 100), metavar="N", help="log-probabilities, N likeliest tokens")


def _add_machine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model and machine")
    group.add_argument(
        "-m", "--model", default="smollm2", type=path,
        help="a folder with config.json, a .gguf file, org/name of the hub, smollm2 (default), or random:NAME: "
        "a published model, such as random:llama-3.1-8b, without its weights and tokenizer",
    )
    group.add_argument("--offline", action="store_true", help="never ask the network")
    group.add_argument("--device", choices=("auto", "cpu", "cuda", "emulated"), default="auto")
    group.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto", help="of weights")
    group.add_argument("--activations", choices=("float32", "int8"), default="float32", help="int8: faster, coarser")
    group.add_argument("-t", "--threads", type=whole(1, os.cpu_count() or 1), metavar="N")
    group.add_argument(
        "-c", "--ctx-size", "--ctx", "--n-ctx", "--context-length", type=whole(1, HUGE), metavar="N",
        help="tokens of prompt and answer together (default: as many as the model takes)",
    )
    group.add_argument(
        "--draft-model", "--model-draft", type=path, metavar="REF",
        help="a smaller model that proposes tokens, or ngram: what followed before; the same text, perhaps sooner",
    )
    group.add_argument("--num-draft-tokens", type=whole(1, 256), default=8, metavar="N", help="proposed at once (8)")


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--output", "--output-format", choices=("text", "json", "jsonl"), default="text")
    group.add_argument("--json", dest="output", action="store_const", const="json", help="the same as --output json")
    group.add_argument("-o", "--out", "--output-file", type=path, metavar="FILE", help="write the answer here")
    group.add_argument("--stream", action=argparse.BooleanOptionalAction, default=True, help="show text as it is made")
    group.add_argument(
        "--stats", action=argparse.BooleanOptionalAction, default=None,
        help="speeds and memory on standard error (default: when that is a terminal)",
    )
    group.add_argument(
        "--verify", action="store_true",
        help="compare ids and hidden states with the reference; exit code 1: an id or a layer differs",
    )
    group.add_argument(
        "--perplexity", type=path, metavar="FILE",
        help="how surprised the model is by the text of FILE as it stands, in chunks of --ctx-size tokens (512): the "
        "second half of each is scored, as llama.cpp does",
    )
    group.add_argument("--explain", action="store_true", help="what this costs on this machine, and why")
    group.add_argument("--plot", type=path, metavar="FILE", help="draw what --explain says: a .png, .svg or .pdf")
    group.add_argument("--version", action="store_true", help="print versions")


@host
def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Return the checked flags of ``argv``.

    >>> parse_arguments(["Hello", "--top_p", "0.9", "there"]).words
    ['Hello', 'there']
    """
    parser = Parser(
        prog="python -m gpu.run", usage="python -m gpu.run [PROMPT ...] [-m MODEL] [flags]", allow_abbrev=False,
        description="Run a language model: text to standard output as it is made, all else to standard error. "
        "python -m gpu.run image and python -m gpu.run video draw: each has a --help of its own.",
    )
    for add in (_add_prompt, _add_sampling, _add_machine, _add_output):
        add(parser)
    options = parser.read(argv)
    for name, text in (("--system", options.system or ""), *(("--stop", stop) for stop in options.stop)):
        check_unicode(text, name)
    options.logit_bias = {token: bias for biases in options.logit_bias for token, bias in biases.items()}
    options.template = template_options(options)
    _check_together(options)
    return options


def _check_together(options: argparse.Namespace) -> None:
    """Refuse flags that contradict each other."""
    sources = {
        "PROMPT": bool(options.words), "--prompt": options.prompt is not None, "--file": options.file is not None,
        "--prompts": options.prompts is not None, "--prompt-tokens": options.prompt_tokens is not None,
        "--chat": options.chat, "--embed": options.embed is not None, "--fill-mask": options.fill_mask is not None,
    }
    given = [name for name, present in sources.items() if present]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} both name a prompt: give one")
    if options.prompt_tokens is not None and (options.template or options.system is not None):
        raise UsageError("--prompt-tokens goes through no chat template: leave out --system, --tools and the like")
    if options.model.startswith(RANDOM) and given not in ([], ["--prompt-tokens"]):
        raise UsageError(f"{options.model} has no tokenizer, which {given[0]} needs: give --prompt-tokens N")
    single = "--plot" if options.plot else "--explain" if options.explain else "--verify" if options.verify else None
    if single and (options.chat or options.prompts is not None):
        raise UsageError(f"{single} takes one prompt, not {given[0]}")
    if single in ("--plot", "--explain") and options.draft_model is not None:
        raise UsageError(f"{single} speaks of one model: leave out --draft-model")
    if options.verify and (options.explain or options.plot):
        raise UsageError("--verify compares an answer: --explain and --plot give none")
    if options.raw and options.template:
        raise UsageError("--tools, --now and --chat-template-kwargs need the chat template that --raw leaves out")
    if options.raw and options.system is not None:
        raise UsageError("--system needs the chat template that --raw leaves out")
    if options.raw and options.chat:
        raise UsageError("--chat needs the chat template that --raw leaves out")
    if options.perplexity:
        _check_scoring(options, given)
    if options.embed or options.fill_mask is not None:
        check_encoding(options)
    for name, given_too in (("--chat", options.chat), ("--plot", options.plot), ("--explain", options.explain)):
        if given_too and options.output != "text":
            raise UsageError(f"{name} writes text, not {options.output}")


def _check_scoring(options: argparse.Namespace, prompts: list[str]) -> None:
    """Refuse what a text that is scored has no use for."""
    others = {
        "--explain": options.explain, "--plot": options.plot, "--verify": options.verify, "--system": options.system,
        "--draft-model": options.draft_model, "--tools": options.tools, "--logprobs": options.logprobs is not None,
    }  # fmt: skip
    wrong = [*prompts, *(name for name, given in others.items() if given)]
    if wrong:
        raise UsageError(f"--perplexity scores the text of a file as it stands: leave out {wrong[0]}")
    if options.model.startswith(RANDOM):
        raise UsageError(f"{options.model} has no tokenizer, which --perplexity needs")
    if options.ctx_size == 1:
        raise UsageError("--perplexity takes chunks of 2 tokens or more, not --ctx-size 1")
