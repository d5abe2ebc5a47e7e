"""python -m refimpl prints its table, and refuses in one line."""

import subprocess
import sys

import pytest

from refimpl.__main__ import contents, main

Capture = pytest.CaptureFixture[str]


def test_the_table_is_printed(capsys: Capture) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.splitlines() == contents()


@pytest.mark.parametrize("argv", [["basics"], ["--hour"], ["--", "a"]])
def test_it_takes_no_arguments(argv: list[str], capsys: Capture) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and "unrecognized arguments" in err and err.count("\n") == 1


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "refimpl"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "No space left" in done.stderr and done.stderr.count("\n") == 1
