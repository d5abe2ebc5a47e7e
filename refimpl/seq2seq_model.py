"""Encoder-decoders, opened: a text is read once, and answered token by token."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from refimpl.contract import Array, UsageError, host
from refimpl.encoder_model import EncoderModel, Place, check_rows, real_rows
from refimpl.files.sentence import read_recipe
from refimpl.files.vocabulary import Tokenizer
from refimpl.llm.generate import Reply, Step, Token
from refimpl.llm.sampler import Chain, sample, sampling_chain, settings_chain
from refimpl.models.encoder_decoder import answer_caches, decode_answer, encode_source, memorise, token_logits
from refimpl.models.encoder_spec import EncoderDecoderSpec, EncoderSpec

__all__ = ["Seq2SeqModel", "other_model"]


@dataclass(frozen=True, eq=False)
class Seq2SeqModel:
    """An encoder-decoder in memory, its weights as arrays of the place where it runs."""

    spec: EncoderDecoderSpec
    weights: Mapping[str, Array]
    tokenizer: Tokenizer | None = None
    place: Place = field(default_factory=Place)

    @property
    def context(self) -> int:
        """The most tokens that ``generate`` lets an answer have."""
        return self.spec.max_positions

    @property
    def longest_source(self) -> int:
        """The most tokens of a text: as many as there are, where positions are relative."""
        return self.spec.source_positions or 2**31 - 1

    @property
    def device(self) -> str:
        """The name of the place where it runs."""
        return self.place.device

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids that end an answer: those of the config, or else of the tokenizer."""
        return self.spec.eos_ids or (self.tokenizer.eos_ids if self.tokenizer else ())

    def prompt_ids(self, prompt: str | Sequence[int], *, system: str | None = None, raw: bool = False) -> list[int]:
        """Turn text into the ids that the encoder reads; ids stay what they are. There is no template, raw or not."""
        if system is not None:
            raise UsageError("a system message needs a model with a chat template, and this one reads plain text")
        if not isinstance(prompt, str):
            return list(prompt)
        if self.tokenizer is None:
            raise UsageError("this model has no tokenizer: give it token ids")
        return self.tokenizer.prompt_ids(prompt)

    def forward(self, input_ids: Any, decoder_input_ids: Any, attention_mask: Any = None) -> dict[str, Array]:
        """Run texts and the beginnings of their answers, and return what transformers returns, by its names.

        logits [R T V]; encoder_last_hidden_state [R S D]; encoder_hidden_states and decoder_hidden_states, of all
        layers, [L + 1 R T D].
        """
        rows = check_rows(input_ids, self.spec.vocab_size, self.spec.source_positions)
        answers = check_rows(decoder_input_ids, self.spec.vocab_size, None)
        seen = real_rows(attention_mask, rows)
        outputs = [self._run(*row) for row in zip(rows, answers, seen, strict=True)]
        return {
            name: np.stack([output[name] for output in outputs], axis=1 if "states" in name else 0)
            for name in outputs[0]
        }

    def _run(self, ids: Array, answer: Array, seen: Array | None) -> dict[str, Array]:
        spec, weights, ops, to_host = self.spec, self.weights, self.place.ops, self.place.to_host
        with self.place.around():
            read = encode_source(ids, weights, spec, ops, seen=seen)
            caches = answer_caches(spec, len(answer), weights["embedding"].dtype)
            memory = memorise(read[-1], weights, spec, ops)
            states, _ = decode_answer(answer, weights, spec, caches, memory, ops, seen=seen)
            logits = to_host(token_logits(states[-1], weights, spec, ops))
            held, made = np.stack([to_host(x) for x in read]), np.stack([to_host(x) for x in states])
        return {
            "logits": logits, "encoder_last_hidden_state": held[-1], "encoder_hidden_states": held,
            "decoder_hidden_states": made,
        }  # fmt: skip

    def sequence(self, ids: Sequence[int] | Array, capacity: int, mask: Any = None) -> Step:
        """Read a text, and begin an answer of at most ``capacity`` tokens: a function that appends ids to it.

        It returns the logits after the last of them. The first ids of every answer are ``spec.start_ids``.
        """
        (known,) = check_rows(ids, self.spec.vocab_size, self.spec.source_positions)
        (seen,) = real_rows(mask, known[None])
        spec, weights, ops = self.spec, self.weights, self.place.ops
        with self.place.around():
            memory = memorise(encode_source(known, weights, spec, ops, seen=seen)[-1], weights, spec, ops)
        caches = answer_caches(spec, capacity, weights["embedding"].dtype)

        def step(ids: list[int]) -> Array:
            nonlocal caches
            (new,) = check_rows(ids, spec.vocab_size, None)
            with self.place.around():
                states, caches = decode_answer(new, weights, spec, caches, memory, ops, seen=seen)
                return self.place.to_host(token_logits(states[-1][-1:], weights, spec, ops))[0]

        return step

    def greedy(self, ids: Sequence[int] | Array, n: int, mask: Any = None) -> list[int]:
        """Answer by the n likeliest tokens, one after the other, whatever they are."""
        begun, output = list(self.spec.start_ids), list[int]()
        step = self.sequence(ids, len(begun) + n, mask)
        while len(output) < n:
            output.append(sample(step(output[-1:] or begun), (), (), sampling_chain(), 0.0))
        return output

    def generate(self, prompt: str | Sequence[int], **settings: Any) -> Iterator[Token]:
        """Answer a text, token by token; ``settings`` are those of ``generate_batch``."""
        return (token for _, token in self.generate_batch([prompt], **settings))

    def generate_batch(
        self, prompts: Iterable[str | Sequence[int]], *, max_tokens: int | None = None, chain: Chain | None = None,
        stop: Sequence[str] = (), ignore_eos: bool = False, seed: int = 0, logprobs: int = 0, **sampling: Any,
    ) -> Iterator[tuple[int, Token]]:  # fmt: skip
        """Answer texts, one after the other, as (number of the text, token); its number keys its draws.

        ``sampling`` takes the keywords of ``sampling_chain`` (temperature, top_k ...), ``chain`` any other order of
        steps. The tokens of ``spec.start_ids`` are no part of an answer.
        """
        if isinstance(prompts, str) or not isinstance(prompts, Iterable):
            raise UsageError(f"prompts are a list, got {prompts!r}")
        texts = [check_rows(self.prompt_ids(p), self.spec.vocab_size, self.spec.source_positions)[0] for p in prompts]
        replies = [
            Reply(
                list(self.spec.start_ids), context=self.context, max_tokens=max_tokens,
                chain=settings_chain(chain, sampling, self.eos_ids), stop=stop, seed=seed, request=number,
                logprobs=logprobs, eos_ids=() if ignore_eos else self.eos_ids,
                token_bytes=self.tokenizer.from_start() if self.tokenizer else None,
            )
            for number in range(len(texts))
        ]  # fmt: skip
        return self._answer(texts, replies)

    def _answer(self, texts: list[Array], replies: list[Reply]) -> Iterator[tuple[int, Token]]:
        for number, (text, reply) in enumerate(zip(texts, replies, strict=True)):
            step = self.sequence(text, reply.longest) if reply.ended is None else None
            while step is not None and reply.ended is None:
                yield number, reply.take(step(reply.pending))


@host
def other_model(
    spec: EncoderSpec | EncoderDecoderSpec, weights: Mapping[str, Array], tokenizer: Tokenizer | None, folder: Path,
    place: Place | None = None,
) -> EncoderModel | Seq2SeqModel:
    """Return a model that is no decoder alone, ready to run."""
    if isinstance(spec, EncoderSpec):
        return EncoderModel(spec, weights, tokenizer, read_recipe(folder), place or Place())
    return Seq2SeqModel(spec, weights, tokenizer, place or Place())
