"""Encoders, opened: texts become states and vectors, and masked words are guessed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refimpl import operations
from refimpl.basics.activation import softmax
from refimpl.contract import Array, Float, Int, UsageError, host, require
from refimpl.files.sentence import Recipe, pool
from refimpl.files.vocabulary import Tokenizer
from refimpl.models.encoder import encode, place_of_text, run_heads
from refimpl.models.encoder_spec import EncoderSpec

__all__ = ["EncoderModel", "Guess", "Place", "check_rows", "real_rows"]


@dataclass(frozen=True)
class Place:
    """Where a model runs: its operations, what has to be around them, and how an array comes from there."""

    ops: Any = operations
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    to_host: Callable[[Array], Array] = np.asarray
    device: str = "cpu"


@dataclass(frozen=True)
class Guess:
    """A token that may stand where the mask stands."""

    id: int
    text: str
    probability: float


@host
def check_rows(ids: Any, vocab_size: int, most: int | None) -> Int[Array, "R T"]:
    """Return token ids of several texts as an array, after a look at each.

    Constraints:
        (C1) every text has a token, and not more than the model has positions for.
        (C2) ids are whole numbers in the vocabulary.
    """
    rows = np.atleast_2d(np.asarray(ids))
    require(rows.ndim == 2 and rows.size > 0, "C1", f"ids are one text or several, each with a token, not {rows.shape}")
    require(most is None or rows.shape[1] <= most, "C1", f"{rows.shape[1]} tokens exceed the {most} positions")
    good = rows.dtype.kind in "iu" and bool(((rows >= 0) & (rows < vocab_size)).all())
    require(good, "C2", f"ids are whole numbers in the vocabulary 0..{vocab_size - 1}")
    return rows.astype(np.int64)


@host
def real_rows(mask: Any, rows: Int[Array, "R T"], name: str = "attention_mask") -> list[Any]:
    """Return for each text which of its tokens are no padding; None where no mask is given.

    Constraints:
        (C3) a mask has an entry for each token, 0 for padding and 1 for the others.
    """
    if mask is None:
        return [None] * len(rows)
    array = np.atleast_2d(np.asarray(mask))
    good = array.shape == rows.shape and bool(np.isin(array, (0, 1)).all())
    require(good, "C3", f"{name} holds 0 and 1 for {rows.shape} ids, got shape {array.shape}")
    return list(array.astype(bool))


@dataclass(frozen=True, eq=False)
class EncoderModel:
    """An encoder in memory, its weights as arrays of the place where it runs."""

    spec: EncoderSpec
    weights: Mapping[str, Array]
    tokenizer: Tokenizer | None = None
    recipe: Recipe | None = None  # None: the folder says nothing of vectors
    place: Place = field(default_factory=Place)

    def forward(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> dict[str, Array]:
        """Run texts of one length, padded where the mask has 0, and return what transformers returns, by its names.

        last_hidden_state [R T D]; hidden_states [L + 1 R T D], the last behind the final norm (transformers' CLIP has
        the state before it there); and of the heads that the checkpoint has, pooler_output, text_embeds, logits. Each
        text runs alone: none depends on its neighbours.

        Constraints:
            (C4) there is a token type for each token, where any are given.
        """
        rows = check_rows(input_ids, self.spec.vocab_size, self.spec.max_positions)
        seen = real_rows(attention_mask, rows)
        types = None if token_type_ids is None else np.atleast_2d(np.asarray(token_type_ids))
        require(types is None or types.shape == rows.shape, "C4", f"a token type for each of {rows.shape} ids")
        each = zip(rows, seen, [None] * len(rows) if types is None else types, strict=True)
        outputs = [self._run(*row) for row in each]
        return {
            name: np.stack([output[name] for output in outputs], axis=1 if name == "hidden_states" else 0)
            for name in outputs[0]
        }

    def _run(self, ids: Array, seen: Array | None, types: Array | None) -> dict[str, Array]:
        with self.place.around():
            states = encode(ids, self.weights, self.spec, self.place.ops, seen=seen, types=types)
            outputs = run_heads(states[-1], place_of_text(ids, self.spec), self.weights, self.spec, self.place.ops)
            outputs = {name: self.place.to_host(x) for name, x in outputs.items()}
            held = [self.place.to_host(state) for state in states]
        return {"last_hidden_state": held[-1], "hidden_states": np.stack(held), **outputs}

    @property
    def device(self) -> str:
        """The name of the place where it runs."""
        return self.place.device

    @property
    def max_tokens(self) -> int | None:
        """The most tokens of a text, special ones included; None: as many as there are."""
        limits = [self.spec.max_positions, self.recipe.max_tokens if self.recipe else None]
        return min((limit for limit in limits if limit is not None), default=None)

    def text_ids(self, text: str, *, masked: bool = False) -> tuple[list[int], int]:
        """Turn a text into ids between the model's special tokens; what is too long is cut, and its length returned.

        ``masked``: the text may spell the token that stands for a hidden word.
        """
        if self.tokenizer is None:
            raise UsageError("this model has no tokenizer: give it token ids")
        text = text.lower() if self.recipe and self.recipe.lower and not masked else text
        around = len(self.tokenizer.prefix) + len(self.tokenizer.suffix)
        ids = self.tokenizer.encode(text, special=masked)
        room = len(ids) if self.max_tokens is None else max(self.max_tokens - around, 0)
        return [*self.tokenizer.prefix, *ids[:room], *self.tokenizer.suffix], max(len(ids) - room, 0)

    def embed(self, texts: Sequence[str] | Sequence[Sequence[int]]) -> Float[Array, "R width"]:
        """Return a vector for each text: as the folder says, or CLIP's own, or the mean over the tokens."""
        if isinstance(texts, str):
            raise UsageError(f"texts are a list, got {texts!r}")
        ids = [self.text_ids(text)[0] if isinstance(text, str) else list(text) for text in texts]
        if not ids:
            return np.zeros((0, self.spec.hidden_size), np.float32)
        return np.stack([self._vector(row) for row in ids])

    def _vector(self, ids: list[int]) -> Float[Array, " width"]:
        outputs = self.forward([ids])
        own = outputs.get("text_embeds", outputs.get("pooler_output"))
        if self.recipe is None and self.spec.pool_activation is None and own is not None:
            return own[0]
        return pool(outputs["last_hidden_state"][0], self.recipe or Recipe())

    def fill_mask(self, text: str, count: int = 5) -> list[list[Guess]]:
        """Guess what stands at each mask of a text: the ``count`` likeliest tokens, with their probabilities."""
        mask = None if self.tokenizer is None else self.tokenizer.mask_id
        if "mask.w_map" not in self.weights or self.tokenizer is None or mask is None:
            raise UsageError("this model does not guess masked words: it has no head for them, or no mask token")
        ids, left_out = self.text_ids(text, masked=True)
        if mask not in ids:
            spelled = self.tokenizer.decode([mask])
            where = f"among its first {self.max_tokens} tokens" if left_out else "in it"
            raise UsageError(f"a text to fill holds {spelled}, and there is none {where}")
        rows = self.forward([ids])["logits"][0][np.array(ids) == mask]
        return [self._guesses(softmax(row.astype(np.float64)), count, self.tokenizer) for row in rows]

    @staticmethod
    def _guesses(probs: Array, count: int, tokenizer: Tokenizer) -> list[Guess]:
        best = np.argsort(-probs, kind="stable")[:count].tolist()
        return [Guess(i, tokenizer.token_bytes(i).decode("utf-8", "replace"), float(probs[i])) for i in best]
