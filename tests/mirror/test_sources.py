"""The source of every operation resolves: what it cites stands in docs/sources.md, and nothing stands there idly."""

import re

import pytest

from tests.mirror.test_stanzas import OPS
from tests.mirror.tree import ROOT, Function, modules, public_functions, roles

ROWS = [
    line.strip("| ").split(" | ")
    for line in (ROOT / "docs" / "sources.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| cited as")
]
WORKS = [row[0] for row in ROWS]
CITING = [f for m in modules("refimpl") for f in public_functions(m) if roles(f.node) in (["op"], ["composed"])]


def source(function: Function) -> str:
    """Return the source stanza in one line."""
    stanza = re.search(r"^ *Source: (.*?)(?:\n\s*\n|\Z)", function.doc, re.S | re.M)
    return " ".join(stanza[1].split()) if stanza else ""


def cites(text: str, work: str) -> bool:
    """Whether one citation names a work: its first author and its year, or its name."""
    name, _, year = work.rpartition(" ")
    if re.fullmatch(r"\d{4}", year):
        return re.search(rf"\b{name}\b", text) is not None and year in text
    return work in text


def citations(text: str) -> list[str]:
    """Split a stanza into what cites one work each."""
    return [part for part in re.split(r"; |\. ", text) if re.search(r"\b(19|20)\d\d\b", part)] or [text]


@pytest.mark.parametrize("function", CITING, ids=lambda f: f"{f.module.name}.{f.node.name}")
def test_source_resolves(function: Function):
    text = source(function)
    unknown = [part for part in citations(text) if not any(cites(part, work) for work in WORKS)]
    assert text and unknown == [], function.where


def test_every_work_is_cited():
    assert {function.node.name for function in OPS} <= {function.node.name for function in CITING}
    everything = [part for m in modules("refimpl") for f in public_functions(m) for part in citations(source(f))]
    assert [work for work in WORKS if not any(cites(part, work) for part in everything)] == []


def test_works_are_in_order_and_complete():
    assert all(len(row) == 3 and all(row) for row in ROWS)
    by_year = [work for work in WORKS if re.search(r"\d{4}$", work)]
    assert by_year == sorted(by_year) and len(set(WORKS)) == len(WORKS)
