"""A model, opened and run plainly: NumPy arrays, one sequence, every operation as it is written."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from refimpl import operations
from refimpl.contract import Array, Float, Int, UsageError, host, require, whole
from refimpl.encoder_model import EncoderModel
from refimpl.files.chat import chat_ids
from refimpl.files.checkpoint import read_folder
from refimpl.files.gguf import read_gguf
from refimpl.files.hub import resolve
from refimpl.files.tokenizer import Tokenizer, tokenizer_from_folder, tokenizer_from_gguf
from refimpl.llm.generate import Step, Token, generate
from refimpl.llm.kv_cache import KVCache
from refimpl.llm.sampler import Chain, sample, sampling_chain, settings_chain
from refimpl.llm.speculative import Verify
from refimpl.models.decoder import forward, new_caches, project_logits
from refimpl.models.families import read_spec, read_weights
from refimpl.models.gguf_names import gguf_spec, gguf_weights
from refimpl.models.held import HeldWeights
from refimpl.models.published import PREFIX, published_config, random_weights
from refimpl.models.spec import ModelSpec
from refimpl.models.tensor import Tensor
from refimpl.seq2seq_model import Seq2SeqModel, other_model

__all__ = ["Model", "Prompt", "Source", "check_ids", "load", "open_model", "prompt_ids"]

Prompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids, or the messages of a chat."""

_DTYPES = {
    "float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
}


@dataclass(frozen=True)
class Source:
    """A model as its files hold it: what every executor starts from."""

    spec: Any  # a ModelSpec, EncoderSpec or EncoderDecoderSpec
    weights: dict[str, Tensor]
    tokenizer: Tokenizer | None  # None: the folder has none, and the model takes ids alone
    path: Path


@host
def open_model(ref: str | Path, *, offline: bool = False) -> Source:
    """Open a folder, a GGUF file, org/name of the hub, or smollm2; weights stay in their files until they are read.

    ``random:NAME`` is a published model without files: its weights are drawn when they are read.
    """
    if str(ref).startswith(PREFIX):
        spec = read_spec(published_config(str(ref)))
        return Source(spec, random_weights(spec), None, Path(ref))
    path = resolve(str(ref), offline=offline)
    if path.is_dir():
        config, tensors = read_folder(path)
        spec = read_spec(config)
        return Source(spec, read_weights(tensors, spec), tokenizer_from_folder(path), path)
    metadata, tensors = read_gguf(path)
    spec = gguf_spec(metadata, tensors)
    return Source(spec, gguf_weights(metadata, tensors, spec), tokenizer_from_gguf(metadata), path)


@host
def load(
    ref: str | Path, *, dtype: str = "float32", offline: bool = False
) -> "Model | EncoderModel | Seq2SeqModel":
    """Load a model; ``dtype`` is that of weights, activations and cache: float32, float64, bfloat16 or float16.

    Weights are read when a layer needs them, and kept as far as a quarter of the free memory holds them.
    A decoder comes as a ``Model``, an encoder as an ``EncoderModel``, both together as a ``Seq2SeqModel``.
    """
    if dtype not in _DTYPES:
        raise UsageError(f"dtype is one of {', '.join(_DTYPES)}, not {dtype!r}")
    source = open_model(ref, offline=offline)
    weights = HeldWeights(source.weights, _DTYPES[dtype])
    if not isinstance(source.spec, ModelSpec):
        return other_model(source.spec, weights, source.tokenizer, source.path)
    return Model(source.spec, weights, source.tokenizer)


@host
def check_ids(ids: Sequence[int] | Array, spec: ModelSpec) -> Int[Array, " T"]:
    """Return token ids as an array, after a look at each: at least one, whole numbers, all in the vocabulary."""
    array = np.asarray(ids)
    require(array.ndim == 1 and array.size > 0, "C1", f"ids are a list of at least one, got shape {array.shape}")
    require(array.dtype.kind in "iu", "C2", f"ids are whole numbers, got {array.dtype}")
    wrong = array[(array < 0) | (array >= spec.vocab_size)].tolist()
    require(not wrong, "C2", f"id {wrong[:1]} is not in the vocabulary 0..{spec.vocab_size - 1}")
    longest = spec.max_positions if spec.learned_positions else array.size
    require(array.size <= longest, "C3", f"{array.size} ids exceed the {longest} learned positions")
    return array.astype(np.int64)


@host
def prompt_ids(
    prompt: Prompt, tokenizer: Tokenizer | None, *, system: str | None = None, raw: bool = False, **options: Any
) -> list[int]:
    """Turn a prompt into ids.

    Messages go through the chat template, with the ``options`` of ``chat_ids``: tools, now, whatever the template asks
    for. Text stays as it is, behind the first token that its model expects; unless ``raw`` it is a user's message, if
    there is a template.
    """
    if isinstance(prompt, bytes) or not isinstance(prompt, Iterable):
        raise UsageError(f"a prompt is text, ids or messages, got {prompt!r}")
    templated = tokenizer is not None and tokenizer.chat_template is not None
    if isinstance(prompt, str) and templated and not raw:
        first = [] if system is None else [{"role": "system", "content": system}]
        prompt, system = [*first, {"role": "user", "content": prompt}], None
    if system is not None:
        raise UsageError("a system message needs text, a model with a chat template, and not raw")
    messages = [] if isinstance(prompt, str) else [part for part in prompt if isinstance(part, Mapping)]
    if options and not messages:
        raise UsageError(f"{', '.join(sorted(options))} need messages, or text with a chat template and not raw")
    if not isinstance(prompt, str) and not messages:
        return [token for token in prompt if not isinstance(token, Mapping)]
    if tokenizer is None:
        raise UsageError("this model has no tokenizer: give it token ids")
    return tokenizer.prompt_ids(prompt) if isinstance(prompt, str) else chat_ids(tokenizer, messages, **options)


@dataclass(frozen=True, eq=False)
class Model:
    """A model that runs plainly; its weights are arrays of one dtype, in memory or read when they are asked for."""

    spec: ModelSpec
    weights: Mapping[str, Array]
    tokenizer: Tokenizer | None = None
    ops: Any = operations

    @property
    def context(self) -> int:
        """The most tokens that ``generate`` lets a sequence have."""
        return self.spec.max_positions

    def prompt_ids(
        self, prompt: Prompt, *, system: str | None = None, raw: bool = False, **options: Any
    ) -> list[int]:
        """Turn text, ids or messages into ids; text is a user's message unless ``raw``; ``options`` as ``chat_ids``."""
        return prompt_ids(prompt, self.tokenizer, system=system, raw=raw, **options)

    def hidden_states(self, ids: Sequence[int] | Array) -> list[Float[Array, "T D"]]:
        """Return L + 1 arrays: the embeddings, then the output of every layer, the last after the final norm."""
        known = check_ids(ids, self.spec)
        return forward(known, self.weights, self.spec, self._caches(len(known)), self.ops)[0]

    def logits(self, ids: Sequence[int] | Array) -> Float[Array, "T V"]:
        """Return the logits at every position."""
        return project_logits(self.hidden_states(ids)[-1], self.weights, self.spec, self.ops)

    def sequence(self, capacity: int) -> Step:
        """Begin a sequence of at most ``capacity`` tokens: a function that appends ids and returns the last logits."""
        verify, held = self.verifier(capacity), 0

        def step(ids: list[int]) -> Array:
            nonlocal held
            logits = verify(held, ids, 1)
            held += len(ids)
            return logits[0]

        return step

    def verifier(self, capacity: int) -> Verify:
        """Begin a sequence of at most ``capacity`` tokens that can be taken back: what ``speculate`` calls."""
        caches = self._caches(capacity)

        def verify(kept: int, ids: list[int], wanted: int) -> Array:
            nonlocal caches
            caches = [replace(cache, length=kept) for cache in caches]
            states, caches = forward(check_ids(ids, self.spec), self.weights, self.spec, caches, self.ops)
            return project_logits(states[-1][-wanted:], self.weights, self.spec, self.ops)

        return verify

    def greedy(self, ids: Sequence[int] | Array, n: int) -> list[int]:
        """Continue by the n likeliest tokens, one after the other, whatever they are."""
        prompt = check_ids(ids, self.spec).tolist()
        step, output = self.sequence(len(prompt) + n), list[int]()
        while len(output) < n:
            output.append(sample(step(output[-1:] or prompt), (), (), sampling_chain(), 0.0))
        return output

    def generate(
        self, prompt: Prompt, *, system: str | None = None, raw: bool = False, max_tokens: int | None = None,
        chain: Chain | None = None, stop: Sequence[str] = (), ignore_eos: bool = False, seed: int = 0,
        logprobs: int = 0, **sampling: Any,
    ) -> Iterator[Token]:
        """Answer a prompt, token by token.

        Text is a user's message where there is a chat template, unless ``raw``. ``sampling`` takes the keywords of
        ``sampling_chain`` (temperature, top_k ...), ``chain`` any other order of steps.
        """
        ids = self.prompt_ids(prompt, system=system, raw=raw)
        room = self.context if max_tokens is None else min(self.context, len(ids) + whole("max_tokens", max_tokens))
        return generate(
            self.sequence(room), check_ids(ids, self.spec).tolist(), context=self.context, max_tokens=max_tokens,
            chain=settings_chain(chain, sampling, self.eos_ids), stop=stop, seed=seed, logprobs=logprobs,
            eos_ids=() if ignore_eos else self.eos_ids,
            token_bytes=self.tokenizer.token_bytes if self.tokenizer else None,
        )  # fmt: skip

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids that end an answer: those of the config, or else of the tokenizer."""
        return self.spec.eos_ids or (self.tokenizer.eos_ids if self.tokenizer else ())

    def _caches(self, capacity: int) -> list[KVCache]:
        return new_caches(self.spec, capacity, self.weights["embedding"].dtype)
