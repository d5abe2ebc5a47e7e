"""make drill: plant one fault after the other in a copy of the sources, and see that a test catches each.

A fault is an edit of one file (faults.py). Its check, a few tests, must pass before and fail after: no fault is caught
because the check is broken, and none because the copy no longer starts (pytest's exit code 1 means failed tests).
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.drill.chapter import CHAPTER
from tests.drill.encoders import ENCODERS
from tests.drill.families import FAMILIES
from tests.drill.faults import OTHERS, Fault
from tests.drill.numbers import NUMBERS
from tests.drill.order import ORDER
from tests.drill.words import WORDS
from tests.mirror.tree import ROOT

FAULTS = (*OTHERS, *ORDER, *NUMBERS, *CHAPTER, *WORDS, *FAMILIES, *ENCODERS)
LIMIT = 600  # seconds of one check
FAILED = 1  # pytest's exit code for tests that failed


def copy_sources(target: Path) -> Path:
    """Copy what git knows of the working tree, as it stands."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)
    return target


def run_check(folder: Path, checks: Iterable[str]) -> tuple[int, str]:
    """Run tests in a copy; return pytest's exit code and its last lines. A check that does not end has failed."""
    flags = ["-q", "-x", "-p", "no:cacheprovider", "--hypothesis-profile=drill"]
    command = [sys.executable, "-m", "pytest", *flags, *checks]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return FAILED, f"no end after {LIMIT} s"
    return done.returncode, "\n".join(done.stdout.splitlines()[-20:])


def plant(folder: Path, fault: Fault) -> str:
    """Edit the copy; return why that cannot be done, or nothing."""
    path = folder / fault.file
    if not path.is_file():
        return f"{fault.file} is not there"
    if fault.new is None:
        path.unlink()
        return ""
    text = path.read_text(encoding="utf-8")
    if text.count(fault.old) != 1:
        return f"{fault.file} holds the text to edit {text.count(fault.old)} times"
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    return ""


def drill(fault: Fault, clean: Path, copies: "SimpleQueue[Path]") -> str:
    """Return how a fault went: caught, or what is wrong with it.

    A copy is used again, with the file as it was: machine code is kept by the path of its source.
    """
    folder = copies.get()
    try:
        if problem := plant(folder, fault):
            return problem
        code, _ = run_check(folder, fault.checks)
        return "caught" if code == FAILED else f"NOT CAUGHT (exit code {code})"
    finally:
        shutil.copy2(clean / fault.file, folder / fault.file)
        copies.put(folder)


def main() -> int:
    """Plant the faults, or those whose names hold an argument, and print how each went as it is known."""
    wanted = [fault for fault in FAULTS if not sys.argv[1:] or any(word in fault.name for word in sys.argv[1:])]
    with tempfile.TemporaryDirectory() as name:
        clean, workers = copy_sources(Path(name) / "clean"), os.cpu_count() or 1
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(workers):
            copies.put(Path(shutil.copytree(clean, Path(name) / f"copy {number}")))
        checks = sorted({check for fault in wanted for check in fault.checks})
        first = copies.get()
        code, lines = run_check(first, checks)
        copies.put(first)
        if code:
            print(f"{lines}\nthe checks do not pass before any fault is planted (exit code {code})")
            return 1
        caught = 0
        with ThreadPoolExecutor(workers) as pool:
            went = pool.map(lambda fault: drill(fault, clean, copies), wanted)
            for fault, result in zip(wanted, went, strict=True):
                print(f"{result:10}  {fault.name:24}  {fault.what}", flush=True)
                caught += result == "caught"
    print(f"caught {caught} of {len(wanted)}")
    return 0 if wanted and caught == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
