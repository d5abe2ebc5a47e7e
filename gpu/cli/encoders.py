"""--embed and --fill-mask, and what keeps a model from what its kind cannot do."""

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any

from gpu.cli.output import Output
from gpu.cli.prompts import check_text, read_text
from refimpl.contract import UsageError, host

__all__ = ["check_encoding", "check_kind", "encode_texts", "seq2seq_statistics"]

_GUESSES = 5
_DECODERS_ALONE = ("--explain", "--plot", "--perplexity", "--chat", "--system")


def _given(options: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """List those of these flags that are set."""
    values = {name: getattr(options, name[2:].replace("-", "_")) for name in names}
    return [name for name, value in values.items() if value is not None and value is not False and value != {}]


def _flag(options: argparse.Namespace) -> str:
    return "--embed" if options.embed else "--fill-mask"


@host
def check_encoding(options: argparse.Namespace) -> None:
    """Refuse what a text that becomes a vector, or is filled, has no use for."""
    wrong = _given(options, (
        "--explain", "--plot", "--system", "--raw", "--draft-model", "--logprobs", "--tools", "--now",
        "--chat-template-kwargs", "--max-tokens",
    ))  # fmt: skip
    if wrong:
        raise UsageError(f"{_flag(options)} writes no answer: leave out {wrong[0]}")
    for number, text in enumerate(options.embed or [options.fill_mask], 1):
        check_text(text, f"text {number}" if options.embed else "the text")


@host
def check_kind(options: argparse.Namespace, model: Any) -> str:
    """Return what kind of model this is: decoder, encoder or encoder-decoder; refuse what its kind cannot do."""
    from refimpl.encoder_model import EncoderModel
    from refimpl.seq2seq_model import Seq2SeqModel

    encodes, name = options.embed or options.fill_mask is not None, f"{options.model} ({model.spec.family})"
    if isinstance(model, EncoderModel):
        if not encodes:
            raise UsageError(f"{name} is an encoder, which answers nothing: --embed TEXT or --fill-mask TEXT runs it")
        return "encoder"
    kind = "encoder-decoder" if isinstance(model, Seq2SeqModel) else "decoder"
    if encodes:
        raise UsageError(f"{name} is {'a' if kind == 'decoder' else 'an'} {kind}: {_flag(options)} needs an encoder")
    wrong = _given(options, _DECODERS_ALONE) if kind == "encoder-decoder" else []
    if wrong:
        raise UsageError(f"{name} is an encoder-decoder: {wrong[0]} is for decoders alone")
    return kind


def _texts(options: argparse.Namespace) -> list[str]:
    """Return the texts of --embed; a - stands for the lines of standard input, none of which is blank."""
    texts: list[str] = []
    for text in options.embed:
        lines = read_text("-").split("\n") if text == "-" else [text]
        for number, line in enumerate(lines, 1):
            if not line.strip():
                raise UsageError(f"line {number} of standard input is empty")
        texts += lines
    return texts


def _embeddings(model: Any, options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the vector of each text, as a line and as a record."""
    from gpu.cli.answering import say

    for number, text in enumerate(_texts(options), 1):
        ids, left_out = model.text_ids(text)
        if left_out:
            say(f"text {number} has {len(ids) + left_out} tokens and the model takes {len(ids)}: the rest is left out")
        vector = [float(f"{x:.9g}") for x in model.embed([ids])[0].tolist()]  # what tells float32 apart
        record = {"text": text, "ids": ids, "left_out": left_out, "embedding": vector}
        yield " ".join(f"{x:.9g}" for x in vector), record


def _guesses(model: Any, options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what may stand at the masks of a text, as lines and as a record."""
    masks = model.fill_mask(options.fill_mask, options.top_k or _GUESSES)
    lines = ("\n".join(f"{guess.probability:.4f}  {guess.text.strip()}" for guess in mask) for mask in masks)
    named = [[{"id": g.id, "token": g.text.strip(), "probability": g.probability} for g in mask] for mask in masks]
    ids = model.text_ids(options.fill_mask, masked=True)[0]
    yield "\n\n".join(lines), {"text": options.fill_mask, "ids": ids, "masks": named}


@host
def encode_texts(model: Any, options: argparse.Namespace, output: Output, load_s: float) -> int:
    """Write a vector for every text, or guesses for every mask, as each is made."""
    from gpu.cli.answering import say
    from gpu.machine import peak_memory

    if model.tokenizer is None:
        raise UsageError(f"{options.model} has no tokenizer, which {_flag(options)} needs")
    start, records = time.perf_counter(), list[dict[str, Any]]()
    try:
        for line, record in _embeddings(model, options) if options.embed else _guesses(model, options):
            records.append(record)
            if output.form != "json":
                output.write(line, record)
    except KeyboardInterrupt:
        return 130
    if output.form == "json":
        output.write("", records if options.embed and len(records) > 1 else records[0])
    seconds, tokens = time.perf_counter() - start, sum(len(record["ids"]) for record in records)
    if options.stats:
        say(f"load     {load_s:.2f} s", f"encode   {tokens} tokens in {seconds:.2f} s: {tokens / seconds:.1f} tok/s",
            f"memory   {peak_memory() / 1e6:.0f} MB at most")  # fmt: skip
    if not options.verify:
        return 0
    from gpu.verify_encoder import verify_texts

    same, lines = verify_texts(model, [record["ids"] for record in records], options)
    say(*lines)
    return 0 if same else 1


@host
def seq2seq_statistics(model: Any, answers: Sequence[Any], load_s: float) -> list[str]:
    """Return the lines of --stats for an encoder-decoder, which answers one text after the other."""
    from gpu.machine import peak_memory

    lines, ran = [f"load     {load_s:.2f} s"], [answer for answer in answers if answer.ids]
    if ran:
        asked, made = sum(len(answer.prompt_ids) for answer in ran), sum(len(answer.ids) for answer in ran)
        seconds = max(answer.last for answer in ran) - min(answer.begun for answer in ran)
        lines.append(f"answer   {asked} tokens read and {made} made in {seconds:.2f} s: {made / seconds:.1f} tok/s")
    lines.append(f"memory   {peak_memory() / 1e6:.0f} MB at most")
    return [*lines, "stop     " + ", ".join(answer.stop for answer in answers)]
