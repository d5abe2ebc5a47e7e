"""A model on a device. Its face is that of ``refimpl.model.Model``; what computes is an executor."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu.device import pick
from gpu.draft import Drafts, check_vocabulary
from gpu.encoders import load_encoder
from gpu.executor.page import PAGE
from gpu.explain import Stored, stored
from refimpl.contract import Array, Float, UsageError, host, whole
from refimpl.encoder_model import EncoderModel
from refimpl.files.tokenizer import Tokenizer
from refimpl.llm.generate import Reply, Token
from refimpl.llm.sampler import Chain, sample, sampling_chain, settings_chain
from refimpl.llm.speculative import judge_draft
from refimpl.model import Prompt, Source, check_ids, open_model, prompt_ids
from refimpl.models.spec import ModelSpec
from refimpl.seq2seq_model import Seq2SeqModel

if TYPE_CHECKING:
    from gpu.executor.base import Executor

__all__ = ["Model", "load", "with_draft"]


@host
def load(
    ref: str | Path, device: str = "auto", *, dtype: str | None = None, threads: int | None = None,
    activations: str = "float32", context: int | None = None, offline: bool = False, draft: str | Path | None = None,
    num_draft_tokens: int = 8,
) -> "Model | EncoderModel | Seq2SeqModel":  # fmt: skip
    """Load a model from a folder, a GGUF file, org/name of the hub, or smollm2, and make it ready on a device.

    ``dtype`` converts the weights (None: as they are stored); ``activations`` float32 or int8; ``context`` is the most
    tokens of a sequence. None: as many as the model was made for, which bounds ``generate``; ``logits``,
    ``hidden_states`` and ``greedy`` go beyond it where positions are rotary, as the reference does. On cuda and
    emulated the activations are float32, and there are no threads to choose.

    An encoder or encoder-decoder comes as an ``EncoderModel`` or ``Seq2SeqModel`` over the device's operations.

    A ``draft``, a smaller model of the same vocabulary, or "ngram" (what followed before in the text), proposes up to
    ``num_draft_tokens`` tokens that one pass judges: the same text, sooner where the draft is right.
    """
    place = pick(device)
    if place != "cpu" and (threads is not None or activations != "float32"):
        raise UsageError(f"threads and int8 activations are the CPU's; the device is {place}")
    for name, value in (("threads", threads), ("context", context)):
        if value is not None:
            whole(name, value)
    source = open_model(ref, offline=offline)
    if not isinstance(source.spec, ModelSpec):
        own = {"threads": threads, "context": context, "draft": draft}
        return load_encoder(source, place, dtype, activations=activations, **own)
    most = source.spec.max_positions
    if context is not None and not 0 < context <= most:
        raise UsageError(f"a context of {context} tokens: this model takes from 1 to {most}")
    if place == "cpu":
        from gpu.executor.cpu import CpuExecutor

        own = {"threads": threads, "activations": activations}
        executor: Executor = CpuExecutor(source.spec, source.weights, dtype=dtype, context=context, **own)
    else:
        from gpu.executor.cuda import CudaExecutor

        executor = CudaExecutor(source.spec, source.weights, place, dtype=dtype, context=context)
    model = Model(source, executor, place, dtype)
    return model if draft is None else with_draft(model, draft, num_draft_tokens, threads=threads, offline=offline)


@host
def with_draft(model: "Model", draft: str | Path, num_draft_tokens: int = 8, **settings: Any) -> "Model":
    """Return the model with a draft: "ngram", or another that is loaded on the same device."""
    if whole("num_draft_tokens", num_draft_tokens) < 1:
        raise UsageError(f"num_draft_tokens is at least 1, got {num_draft_tokens}")
    if draft == "ngram":
        return replace(model, draft="ngram", num_draft_tokens=num_draft_tokens)
    smaller = load(draft, model.device, **settings)
    check_vocabulary(smaller, model)
    return replace(model, draft=smaller, num_draft_tokens=num_draft_tokens)


@dataclass(frozen=True, eq=False)
class Model:
    """A model ready to run: the files it came from, and the executor that holds its weights."""

    source: Source
    executor: "Executor"
    device: str  # cpu, cuda or emulated
    dtype: str | None = None  # that matrices are converted to
    draft: "Model | str | None" = None  # a smaller model, or "ngram"
    num_draft_tokens: int = 8

    @property
    def spec(self) -> ModelSpec:
        return self.source.spec

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.source.tokenizer

    @property
    def weights(self) -> dict[str, Stored]:
        """Format, shape and bytes of every weight, as the executor holds it."""
        return stored(self.source.weights, self.dtype)

    @property
    def context(self) -> int:
        """The most tokens of a sequence."""
        return self.executor.context

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids that end an answer: those of the config, or else of the tokenizer."""
        return self.spec.eos_ids or (self.tokenizer.eos_ids if self.tokenizer else ())

    def prompt_ids(
        self, prompt: Prompt, *, system: str | None = None, raw: bool = False, **options: Any
    ) -> list[int]:
        """Turn text, ids or messages into ids; text is a user's message unless ``raw``; ``options`` as ``chat_ids``."""
        return prompt_ids(prompt, self.tokenizer, system=system, raw=raw, **options)

    def logits(self, ids: Sequence[int] | Array) -> Float[Array, "T V"]:
        """Return the logits at every position."""
        return self.executor.logits(check_ids(ids, self.spec))

    def hidden_states(self, ids: Sequence[int] | Array) -> list[Float[Array, "T D"]]:
        """Return L + 1 arrays: the embeddings, then the output of every layer, the last after the final norm."""
        return self.executor.hidden_states(check_ids(ids, self.spec))

    def greedy(self, ids: Sequence[int] | Array, n: int) -> list[int]:
        """Continue by the n likeliest tokens, one after the other, whatever they are."""
        prompt, output = check_ids(ids, self.spec).tolist(), list[int]()
        sequence = self.executor.new_sequence(max(len(prompt), len(prompt) + n - 1))  # the last is not stepped
        try:
            while len(output) < n:
                (logits,) = self.executor.step([(sequence, output[-1:] or prompt)])
                output.append(sample(logits, (), (), sampling_chain(), 0.0))
        finally:
            self.executor.free(sequence)
        return output

    def generate(
        self, prompt: Prompt, *, system: str | None = None, raw: bool = False, **settings: Any
    ) -> Iterator[Token]:
        """Answer a prompt, token by token; ``settings`` are those of ``generate_batch``."""
        return (token for _, token in self.generate_batch([prompt], system=system, raw=raw, **settings))

    def generate_batch(
        self, prompts: Iterable[Prompt], *, system: str | None = None, raw: bool = False, chain: Chain | None = None,
        max_tokens: int | None = None, stop: Sequence[str] = (), ignore_eos: bool = False, seed: int = 0,
        logprobs: int = 0, **sampling: Any,
    ) -> Iterator[tuple[int, Token]]:  # fmt: skip
        """Answer prompts together, as (number of the prompt, token): every step runs all answers that go on.

        What a prompt is answered does not depend on its neighbours; its number keys its draws. Text is a user's
        message where there is a chat template, unless ``raw``. ``sampling`` takes the keywords of ``sampling_chain``
        (temperature, top_k ...), ``chain`` any other order of steps.
        """
        if isinstance(prompts, str) or not isinstance(prompts, Iterable):
            raise UsageError(f"prompts are a list, got {prompts!r}")
        replies = [
            Reply(
                check_ids(self.prompt_ids(prompt, system=system, raw=raw), self.spec).tolist(),
                context=self.context, max_tokens=max_tokens, chain=settings_chain(chain, sampling, self.eos_ids),
                stop=stop, seed=seed, request=number, logprobs=logprobs, eos_ids=() if ignore_eos else self.eos_ids,
                token_bytes=self.tokenizer.token_bytes if self.tokenizer else None,
            )
            for number, prompt in enumerate(prompts)
        ]  # fmt: skip
        return self._run(replies, Drafts(self.draft, self.num_draft_tokens))

    def _run(self, replies: list[Reply], drafts: Drafts) -> Iterator[tuple[int, Token]]:
        """Step the replies that go on; one begins when the cache has room for all that it may become."""
        waiting = [number for number, reply in enumerate(replies) if reply.ended is None]
        places: dict[int, Any] = {}  # of the replies that run: their sequences
        try:
            while waiting or places:
                while waiting and self._fits([replies[number] for number in [*places, waiting[0]]]):
                    number = waiting.pop(0)
                    places[number] = self.executor.new_sequence(replies[number].longest)
                guesses = {number: drafts.propose(number, replies[number]) for number in places}
                items = [(places[number], [*replies[number].pending, *guess]) for number, guess in guesses.items()]
                logits = self.executor.step(items, [len(guess) + 1 for guess in guesses.values()])
                for number, guess in guesses.items():
                    rows, logits, reply = logits[: len(guess) + 1], logits[len(guess) + 1 :], replies[number]
                    yield from ((number, token) for token in judge_draft(reply, rows, guess))
                    if reply.ended is None:
                        self.executor.rewind(places[number], len(reply.prompt) + len(reply.output) - 1)
                    else:
                        drafts.free(number)
                        self.executor.free(places.pop(number))
        finally:
            drafts.close()
            for sequence in places.values():
                self.executor.free(sequence)

    def _fits(self, replies: list[Reply]) -> bool:
        pages = sum(-(-reply.longest // PAGE) for reply in replies)
        return len(replies) == 1 or pages <= self.executor.cache.count
