"""What a machine can do is kept; what cannot be true is measured again."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpu import machine as limits
from gpu.machine import Machine, machine

MEASURED = Machine(2e10, 1e11)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(limits, "_name", lambda: "here")
    monkeypatch.setattr(limits, "measure", lambda: MEASURED)
    path = tmp_path / "refimpl" / "machine.json"
    path.parent.mkdir()
    return path


def test_what_was_measured_is_kept(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine() == MEASURED
    monkeypatch.setattr(limits, "measure", lambda: Machine(3e10, 5e10))
    assert machine() == MEASURED and machine(again=True) == Machine(3e10, 1e11)


def _speeds(bytes_per_s: Any, flops_per_s: Any) -> bytes:
    return json.dumps({"here": {"bytes_per_s": bytes_per_s, "flops_per_s": flops_per_s}}).encode()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(
    "content",
    [
        b"", b"\0" * 100, b"\xff\xfe", b"{", b"[]", b"null", b"3", b'"here"', b"[" * 100000, b'{"here": 3}',
        b'{"here": []}', b'{"here": {}}', b'{"here": {"bytes_per_s": 1e10}}', b'{"there": {}}', _speeds(0, 0),
        _speeds(0, 1e11), _speeds(1e10, 0), _speeds(-1e10, 1e11), _speeds(float("nan"), 1e11), _speeds(None, []),
        _speeds(float("inf"), float("inf")), _speeds(10**400, 1), _speeds("fast", "slow"), _speeds(1e-300, 1e300),
    ],
    ids=lambda content: repr(content[:60]),
)
def test_a_damaged_file_is_measured_again(kept: Path, content: bytes, again: bool) -> None:
    kept.write_bytes(content)
    assert machine(again=again) == MEASURED == machine()
    assert json.loads(kept.read_text())["here"]["bytes_per_s"] == MEASURED.bytes_per_s
