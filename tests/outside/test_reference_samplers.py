"""Chains of logits processors as transformers' generate applies them."""

import json
from pathlib import Path

import numpy as np
import pytest

from refimpl.llm.cuts import top_k, top_p
from tests.reference_adapter_samplers import process_logits

FOLDER = Path(__file__).parents[3] / "shared" / "reference" / "samplers"
BY_COUNT = "ties_top_p"  # which of its equal tokens survive is the choice of a sort that is not stable
CASES = sorted(path.name for path in FOLDER.iterdir() if path.name != BY_COUNT)


def test_there_are_28_cases():
    assert len(CASES) + (FOLDER / BY_COUNT).is_dir() == 28


def stored(name: str) -> tuple[dict, dict, dict]:
    """Return what is stored of a case: its arrays, its settings and its description."""
    config, meta = (json.loads((FOLDER / name / f"{part}.json").read_text()) for part in ("config", "meta"))
    with np.load(FOLDER / name / "expected.npz") as archive:
        return dict(archive), config, meta


def processed(name: str, dtype: str, monkeypatch) -> tuple[np.ndarray, np.ndarray, dict]:
    """Return our answer, theirs and the case's description; in float64 theirs has its remainder added."""
    monkeypatch.setenv("DTYPE", dtype)
    arrays, config, meta = stored(name)
    wanted = arrays["processed"].astype(dtype)
    if dtype == "float64" and "processed_lo" in arrays:
        cut = np.isneginf(wanted)
        wanted = np.where(cut, wanted, wanted + np.where(cut, 0, arrays["processed_lo"]))
    return process_logits("", arrays["input_ids"], arrays["logits"], config), wanted, meta


@pytest.mark.parametrize("name", CASES)
def test_equals_transformers(name, monkeypatch):
    got, wanted, meta = processed(name, "float32", monkeypatch)
    assert (np.isneginf(got) == np.isneginf(wanted)).all()
    left = np.isfinite(wanted)
    assert left.sum(-1).tolist() == meta["kept_per_row"]
    noise = meta["tolerances"]["processed"]["noise_max_abs"]
    np.testing.assert_allclose(got[left], wanted[left], rtol=0, atol=noise)


@pytest.mark.parametrize("name", CASES)
def test_equals_transformers_in_float64(name, monkeypatch):
    got, wanted, _ = processed(name, "float64", monkeypatch)
    np.testing.assert_allclose(got, wanted, rtol=1e-13)


def test_ties_of_top_k_keep_exactly_k_by_default():
    """Transformers keeps every logit that equals the k-th; we keep k, those of lower index (CONVENTIONS, row 17)."""
    arrays, config, meta = stored("ties_top_k")
    k = config["generation"]["top_k"]
    got = np.stack([top_k(row, k) for row in arrays["logits"]])
    assert (np.isfinite(got).sum(-1) == k).all() and max(meta["kept_per_row"]) > k
    for ours, theirs in zip(got, arrays["processed"], strict=True):
        extra = np.flatnonzero(np.isfinite(theirs) & np.isneginf(ours))
        boundary = ours[np.isfinite(ours)].min()
        assert (theirs[extra] == boundary).all() and (theirs[np.isfinite(ours)] == ours[np.isfinite(ours)]).all()
        assert all(i > np.flatnonzero(ours == boundary).max() for i in extra)


def test_ties_of_top_p_keep_as_many():
    """Which of two equal logits survives there depends on a sort; how many does not."""
    arrays, config, meta = stored(BY_COUNT)
    got = np.stack([top_p(row, config["generation"]["top_p"]) for row in arrays["logits"]])
    assert np.isfinite(got).sum(-1).tolist() == meta["kept_per_row"]
    assert (np.sort(got) == np.sort(arrays["processed"])).all()
