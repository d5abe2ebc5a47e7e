"""From prompts to answers: load the model, check the lengths, run, and write what comes."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from gpu.cli.output import Answer, Output
from gpu.cli.prompts import Prompt, shape_prompt
from refimpl.contract import UsageError, host
from refimpl.flags import RANDOM
from refimpl.interrupt import Brake

__all__ = [
    "announce_compilation", "ask", "check_sampling", "generate_settings", "load_model", "prepare", "say",
    "spell_logprobs",
]

_USUAL_TOKENS = 256


@host
def say(*lines: str) -> None:
    """Write lines to standard error, if there is one."""
    if sys.stderr is not None and lines:
        print(*lines, sep="\n", file=sys.stderr, flush=True)


@host
def load_model(options: argparse.Namespace) -> Any:
    """Return the model that the flags name, on the device that they name."""
    import gpu

    for name in (options.model, options.draft_model or ""):
        if name.startswith(RANDOM):
            from gpu.cli.sketch import check_room

            check_room(name)
    return gpu.load(
        options.model, device=options.device, dtype=None if options.dtype == "auto" else options.dtype,
        threads=options.threads, activations=options.activations, context=options.ctx_size, offline=options.offline,
        draft=options.draft_model, num_draft_tokens=options.num_draft_tokens,
    )


@host
def announce_compilation(model: Any) -> None:
    """Say so if the first step will be slow because its kernels have never run on this machine."""
    if model.device != "cpu" or not hasattr(model, "executor"):
        return
    from gpu.executor.cpu import first_step_compiles

    if first_step_compiles():
        say("compiling the kernels for this machine: once, for about half a minute ...")


@host
def check_sampling(options: argparse.Namespace, model: Any) -> None:
    """Refuse what this model cannot do: more context or tokens than it takes, a bias for a token it has not."""
    if options.ctx_size is not None and options.ctx_size > model.spec.max_positions:
        raise UsageError(f"--ctx-size {options.ctx_size} exceeds the {model.spec.max_positions} tokens of this model")
    if options.max_tokens is not None and options.max_tokens > model.context:
        raise UsageError(f"--max-tokens {options.max_tokens} exceeds the context of {model.context} tokens")
    beyond = [token for token in options.logit_bias if token >= model.spec.vocab_size]
    if beyond:
        raise UsageError(f"--logit-bias: there is no token {beyond[0]} in a vocabulary of {model.spec.vocab_size}")


@host
def generate_settings(options: argparse.Namespace, model: Any) -> dict[str, Any]:
    """Return the flags as keywords of ``generate``, which the reference takes alike."""
    from refimpl.llm.sampler import sampling_chain

    chain = sampling_chain(
        options.temperature, options.top_k, options.top_p, options.min_p, options.repetition_penalty,
        options.presence_penalty, options.frequency_penalty, options.logit_bias, typical=options.typical,
        no_repeat_ngram=options.no_repeat_ngram, min_tokens=options.min_tokens, eos_ids=model.eos_ids,
    )  # fmt: skip
    return {
        "max_tokens": options.max_tokens or min(_USUAL_TOKENS, model.context), "chain": chain,
        "stop": tuple(options.stop), "ignore_eos": options.ignore_eos, "seed": options.seed,
        "logprobs": 0 if options.logprobs is None else max(options.logprobs, 1),
    }


@host
def prepare(
    answer: Answer, prompt: Prompt, options: argparse.Namespace, model: Any, name: str = "the prompt"
) -> None:
    """Turn a prompt into the ids that the model gets; they must leave room for an answer."""
    answer.asked = time.perf_counter()
    if isinstance(prompt, range):
        answer.prompt_ids = [7 * i % model.spec.vocab_size for i in prompt]
    else:
        answer.prompt_ids = _text_ids(prompt, options, model)
    if not answer.prompt_ids:
        raise UsageError(f"{name} is empty")
    length = len(answer.prompt_ids)
    if length > getattr(model, "longest_source", length):
        raise UsageError(f"{name} has {length} tokens: the encoder of this model reads {model.longest_source} at most")
    if length >= model.context and not hasattr(model, "longest_source"):
        raise UsageError(f"{name} has {length} tokens: a context of {model.context} leaves no room for an answer")


def _text_ids(prompt: Prompt, options: argparse.Namespace, model: Any) -> list[int]:
    if model.tokenizer is None:
        raise UsageError(f"{options.model} has no tokenizer, which text needs: give --prompt-tokens N")
    templated = not options.raw and model.tokenizer.chat_template is not None
    if options.template and not templated:
        raise UsageError("--tools, --now and --chat-template-kwargs need a model with a chat template")
    shaped = shape_prompt(prompt, options.system, templated)
    ids: list[int] = model.prompt_ids(shaped, raw=options.raw, **options.template)
    return ids


def _tokens(model: Any, answers: Sequence[Answer], settings: dict[str, Any]) -> Iterator[tuple[int, Any]]:
    """Yield (answer number, token) as tokens are made: one prompt alone, many in one batch."""
    for answer in answers:
        answer.begun = time.perf_counter()
    if len(answers) == 1:
        yield from ((0, token) for token in model.generate(answers[0].prompt_ids, **settings))
    else:
        yield from model.generate_batch([answer.prompt_ids for answer in answers], **settings)


def _likely(token: Any, tokenizer: Any, count: int) -> dict[str, Any]:
    """Return a token's log-probability as JSON, with those of the likeliest ones."""

    def spelled(i: int) -> str:
        return tokenizer.token_bytes(i).decode("utf-8", "replace") if tokenizer is not None else ""

    top = [{"id": i, "token": spelled(i), "logprob": p} for i, p in token.top_logprobs[:count]]
    return {"id": token.id, "token": spelled(token.id), "logprob": token.logprob, "top": top}


@host
def spell_logprobs(answer: Answer) -> list[str]:
    """Return a line for each token of an answer: its log-probability, and the likeliest ones."""
    return [
        f"{entry['id']:6} {entry['logprob']:9.4f} {entry['token']!r}"
        + "".join(f"  {top['token']!r} {top['logprob']:.4f}" for top in entry["top"])
        for entry in answer.logprobs
    ]


@host
def ask(
    model: Any, answers: Sequence[Answer], options: argparse.Namespace, output: Output, load_s: float, hand: Brake
) -> None:
    """Run prepared prompts to their ends, writing text as it is made; Ctrl-C leaves what is there and is passed on."""
    settings = generate_settings(options, model)
    announce_compilation(model)
    for number, token in _tokens(model, answers, settings):
        hand.armed = True
        answers[number].take(token, time.perf_counter())
        if options.logprobs is not None:
            answers[number].logprobs.append(_likely(token, model.tokenizer, options.logprobs))
        output.show(token.text)
        output.finish(answers, load_s)
        hand.check()
    hand.armed = False
    hand.check()
