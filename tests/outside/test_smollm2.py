"""The real SmolLM2-135M-Instruct, raw and chat: the ids that transformers gives, from prompt to end."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import gpu
import refimpl

STORED = Path(__file__).parents[3] / "shared" / "reference" / "smollm2" / "greedy.json"
CASES = json.loads(STORED.read_text(encoding="utf-8"))["cases"] if STORED.is_file() else []


@cache
def load(package: str) -> Any:
    return refimpl.load("smollm2") if package == "refimpl" else gpu.load("smollm2", device="cpu")


@pytest.mark.parametrize("package", ["refimpl", "gpu"])
@pytest.mark.parametrize("case", CASES, ids=[f"{case['kind']}{number}" for number, case in enumerate(CASES)])
def test_ids_are_the_stored_ones(package: str, case: dict[str, Any]):
    model, wanted = load(package), case["greedy_ids"]
    prompt_ids = model.prompt_ids(case["prompt"], raw=True)
    assert prompt_ids == case["prompt_ids"]
    tokens = list(model.generate(prompt_ids, max_tokens=48))
    assert [token.id for token in tokens] == wanted
    assert tokens[-1].stop == ("eos" if wanted[-1] == 2 else "length")
    assert "".join(token.text for token in tokens) == case["greedy_text"].removesuffix("<|im_end|>")


def test_likeliest_first_tokens():
    model = load("refimpl")
    for case in CASES:
        logits = model.logits(case["prompt_ids"])[-1]
        ids, values = zip(*case["first_logits_top5"], strict=True)
        assert logits[list(ids)] == pytest.approx(values, abs=2e-3)
    assert len(CASES) == 8
