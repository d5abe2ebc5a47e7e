"""The real all-MiniLM-L6-v2: the ids and vectors that transformers gives, and what is similar to what."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu
import refimpl

STORED = Path(__file__).parents[3] / "shared" / "reference" / "minilm" / "embeddings.json"
JUDGE = json.loads(STORED.read_text(encoding="utf-8"))
TOLERANCE = 1e-5


@cache
def load(package: str) -> Any:
    return refimpl.load("minilm") if package == "refimpl" else gpu.load("minilm", device="cpu")


@pytest.mark.parametrize("package", ["refimpl", "gpu"])
def test_vectors_are_the_stored_ones(package: str):
    model = load(package)
    assert [model.text_ids(text)[0] for text in JUDGE["sentences"]] == JUDGE["ids"]
    vectors = model.embed(JUDGE["sentences"])
    assert np.abs(vectors - np.array(JUDGE["embeddings"])).max() <= TOLERANCE
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-6)


def test_similar_pairs_are_ranked_as_stored():
    vectors, stored = load("gpu").embed(JUDGE["sentences"]), np.array(JUDGE["embeddings"])
    similar, expected = vectors @ vectors.T, stored @ stored.T
    clear = np.abs(expected[:, :, None] - expected[:, None]) > 2 * TOLERANCE  # of which of two is the more similar
    more = (similar[:, :, None] > similar[:, None]) == (expected[:, :, None] > expected[:, None])
    assert more[clear].all() and clear.mean() > 0.8
    topics = {0: {0, 1, 5}, 3: {3, 6}, 7: {7, 8}}
    for a, b in JUDGE["similar_pairs"]:
        outside = set(range(len(stored))) - next(topic for topic in topics.values() if a in topic)
        assert similar[a, b] > max(similar[a, list(outside)].max(), similar[b, list(outside)].max())


def test_a_long_text_is_cut_as_its_folder_says():
    model = load("gpu")
    ids, left_out = model.text_ids("word " * 1000)
    assert (len(ids), left_out) == (256, 746)
    assert model.embed(["word " * 1000])[0] == pytest.approx(model.embed(["word " * 254])[0], abs=1e-6)
