"""Chains of logits processors as transformers' generate applies them."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.reference_adapter_samplers import process_logits

FOLDER = Path(__file__).parents[3] / "shared" / "reference" / "samplers"
CASES = [
    "already_masked",
    "combo_common",
    "combo_rep",
    "min_p",
    "repetition_penalty",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_k_gt_vocab",
    "top_p",
    "top_p_tiny",
]


def processed(name: str, dtype: str, monkeypatch) -> tuple[np.ndarray, np.ndarray, dict]:
    """Return our answer, theirs and the case's description; in float64 theirs has its remainder added."""
    monkeypatch.setenv("DTYPE", dtype)
    config, meta = (json.loads((FOLDER / name / f"{part}.json").read_text()) for part in ("config", "meta"))
    with np.load(FOLDER / name / "expected.npz") as archive:
        stored = dict(archive)
    wanted = stored["processed"].astype(dtype)
    if dtype == "float64" and "processed_lo" in stored:
        cut = np.isneginf(wanted)
        wanted = np.where(cut, wanted, wanted + np.where(cut, 0, stored["processed_lo"]))
    return process_logits("", stored["input_ids"], stored["logits"], config), wanted, meta


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


def test_ties_of_top_k_keep_exactly_k(monkeypatch):
    """Transformers keeps every logit that equals the k-th; we keep k, those of lower index (CONVENTIONS, row 17)."""
    got, wanted, meta = processed("ties_top_k", "float32", monkeypatch)
    assert (np.isfinite(got).sum(-1) == 4).all() and max(meta["kept_per_row"]) > 4
    for ours, theirs in zip(got, wanted, strict=True):
        extra = np.flatnonzero(np.isfinite(theirs) & np.isneginf(ours))
        boundary = ours[np.isfinite(ours)].min()
        assert (theirs[extra] == boundary).all() and (theirs[np.isfinite(ours)] == ours[np.isfinite(ours)]).all()
        assert all(i > np.flatnonzero(ours == boundary).max() for i in extra)


def test_ties_of_top_p_keep_as_many(monkeypatch):
    """Which of two equal logits survives there depends on a sort; how many does not."""
    got, wanted, meta = processed("ties_top_p", "float32", monkeypatch)
    assert np.isfinite(got).sum(-1).tolist() == meta["kept_per_row"]
    assert (np.sort(got) == np.sort(wanted)).all()
