"""--perplexity: how surprised a model is by the text of a file."""

import argparse
import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tqdm import tqdm

from gpu.cli.answering import say
from gpu.cli.output import Output
from gpu.machine import peak_memory
from refimpl.contract import Array, UsageError, host
from refimpl.perplexity import Advance, chunk_losses, perplexity, text_chunks

__all__ = ["Score", "score_text"]

_USUAL_CHUNK = 512  # as llama.cpp's


@dataclass
class Score:
    """What was scored of a text, chunk by chunk."""

    chunk_size: int
    losses: list[Array] = field(default_factory=list)
    stop: str = "interrupt"  # until all is scored
    seconds: float = 0.0

    def record(self, load_s: float) -> dict[str, Any]:
        """Return the score as JSON shall show it: what is no finite number is null."""
        tokens = np.concatenate(self.losses)
        value, error = perplexity(tokens)
        numbers = {"perplexity": value, "error": error, "loss": float(tokens.mean())}
        return {
            **{name: number if math.isfinite(number) else None for name, number in numbers.items()},
            "tokens": len(tokens), "chunks": len(self.losses), "chunk_size": self.chunk_size, "stop": self.stop,
            "timings": {"load_s": round(load_s, 6), "score_s": round(self.seconds, 6)},
        }  # fmt: skip

    def line(self) -> str:
        """Return the score in words."""
        tokens = np.concatenate(self.losses)
        value, error = perplexity(tokens)
        of = f"{len(self.losses)} chunk{'s' if len(self.losses) > 1 else ''} of {self.chunk_size}"
        return f"perplexity {value:.4f} +/- {error:.4f} ({len(tokens)} tokens, the second half of {of})"


@contextlib.contextmanager
def _advance(model: Any, length: int) -> Iterator[Advance]:
    """Give what a new sequence of the executor does with ids; what it holds is given back."""
    executor = model.executor
    sequence = executor.new_sequence(length, length)
    try:
        yield lambda ids, wanted: executor.step([(sequence, ids)], [wanted])
    finally:
        executor.free(sequence)


def _chunks(text: str, options: argparse.Namespace, model: Any) -> list[list[int]]:
    """Cut a text as it stands, behind the BOS that the model knows."""
    if model.tokenizer is None:
        raise UsageError(f"{options.model} has no tokenizer, which --perplexity needs")
    ids, size = model.tokenizer.prompt_ids(text), min(options.ctx_size or _USUAL_CHUNK, model.context)
    if len(ids) < 2:
        raise UsageError(f"{options.perplexity} has {len(ids)} token: perplexity takes two or more")
    return text_chunks(ids, size, model.tokenizer.bos_id if model.tokenizer.add_bos else None)


@host
def score_text(text: str, options: argparse.Namespace, model: Any, output: Output, load_s: float) -> int:
    """Score a text and write what came out; after Ctrl-C, what there is by then."""
    chunks, start, code = _chunks(text, options, model), time.perf_counter(), 0
    score = Score(len(chunks[0]))
    try:
        with tqdm(chunks, desc="scoring", unit="chunk", disable=not options.stats, leave=False) as bar:
            for chunk in bar:
                with _advance(model, len(chunk)) as advance:
                    score.losses.append(chunk_losses(advance, chunk))
                score.seconds = time.perf_counter() - start
                bar.set_postfix_str(f"perplexity {perplexity(np.concatenate(score.losses))[0]:.4f}")
        score.stop = "end"
    except KeyboardInterrupt:
        code = 130
    if score.losses:
        output.write(score.line(), score.record(load_s))
    if score.losses and options.stats:
        count = len(score.losses) * len(chunks[0])
        say(f"load     {load_s:.2f} s", f"score    {count} tokens in {score.seconds:.2f} s: "
            f"{count / score.seconds:.1f} tok/s", f"memory   {peak_memory() / 1e6:.0f} MB at most")  # fmt: skip
    return code
