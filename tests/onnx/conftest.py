"""The table of the node cases, at the end of a run."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [r for group in ("passed", "failed") for r in terminalreporter.stats.get(group, [])]
    rows = [value for r in reports for name, value in getattr(r, "user_properties", ()) if name == "onnx"]
    if not rows:
        return
    terminalreporter.section("node cases of the onnx wheel")
    for operator, passed, total, exceptions in rows:
        terminalreporter.write_line(f"{operator:<20} {passed:>3} of {total:>3}")
        for name, reason in exceptions:
            terminalreporter.write_line(f"    {name}: {reason}")
