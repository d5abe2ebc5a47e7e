"""Tests that judge by files beside the repository: collected where these files are, and counted."""

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared"
collect_ignore_glob = [] if SHARED.is_dir() else ["test_*.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    here = Path(__file__).parent.relative_to(terminalreporter.config.rootpath).as_posix() + "/"
    reports = [r for group in ("passed", "failed", "error") for r in terminalreporter.stats.get(group, [])]
    count = len({r.nodeid for r in reports if r.nodeid.startswith(here)})
    place = "found" if SHARED.is_dir() else "not found: nothing collected"
    terminalreporter.write_line(f"{here}: {count} tests run (files beside the repository {place})")
