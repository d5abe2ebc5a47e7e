"""python -m golden: list the cases, verify an implementation, make the vectors, print the conventions."""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from golden import SPECIFICATION
from golden.adapters import operations_of
from golden.case import Case, read_cases, vector_files
from golden.conventions import markdown
from golden.verify import Outcome, verify

__all__ = ["main"]


def _table(rows: Iterable[Sequence[object]]) -> None:
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _list(cases: Sequence[Case], as_json: bool) -> int:
    fields = ("id", "op", "dtype", "corner", "source", "row", "choice", "rejects")
    if as_json:
        print(json.dumps([{name: getattr(case, name) for name in fields} for case in cases], indent=1))
        return 0
    width = max(len(case.id) for case in cases)
    for case in cases:
        print(f"{case.id.ljust(width)}  {case.corner} [{case.source}]")
    print(f"{len(cases)} cases of {len({case.op for case in cases})} operations, specification {SPECIFICATION}")
    return 0


def _matrix(outcomes: Sequence[Outcome]) -> list[tuple[object, ...]]:
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.case.op, outcome.case.dtype[0]), []).append(outcome)
    rows: list[tuple[object, ...]] = [("operation", "dtype", "passed", "worst")]
    for (op, dtype), group in groups.items():
        passed = sum(outcome.status == "pass" for outcome in group)
        missing = all(outcome.status == "missing" for outcome in group)
        worst = "missing" if missing else f"{max(outcome.ulps for outcome in group):.1f} ulp"
        rows.append((op, dtype, f"{passed} of {len(group)}", worst))
    return rows


def _verify(cases: Sequence[Case], against: str, partial: bool, as_json: bool) -> int:
    outcomes = verify(cases, operations_of(against))
    wrong = [outcome for outcome in outcomes if outcome.status not in ("pass", "missing")]
    missing = [outcome for outcome in outcomes if outcome.status == "missing"]
    passed = len(outcomes) - len(wrong) - len(missing)
    if as_json:
        fields = ("status", "ulps", "reason")
        print(json.dumps([{"id": o.case.id} | {name: getattr(o, name) for name in fields} for o in outcomes], indent=1))
    else:
        _table(_matrix(outcomes))
        for outcome in wrong:
            row = f" (convention {outcome.case.row}: {outcome.case.choice})" if outcome.case.row else ""
            print(f"{outcome.status.upper()} {outcome.case.id}: {outcome.reason}{row}")
        nothing = "; nothing was judged" if len(missing) == len(outcomes) else ""
        print(f"{against}: {passed} passed, {len(wrong)} wrong, {len(missing)} missing{nothing}")
    return 0 if passed and not wrong and (partial or not missing) else 1


def _make(check: bool) -> int:
    from golden.make import make_file, make_index  # derivations are needed by authors only

    files = [Path(str(path)) for path in vector_files()]
    stale = [name for path in files for name in make_file(path, write=not check)]
    stale += make_index(files[0].parent, write=not check) if files else []
    for name in stale:
        print(f"{'stale' if check else 'made'}: {name}")
    return 1 if check and stale else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m golden", description=(__doc__ or "").split(": ", 1)[1])
    parser.add_argument("--version", action="version", version=f"golden, specification {SPECIFICATION}")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="every case: its corner (the point it tests) and its source")
    judging = commands.add_parser("verify", help="judge an implementation by the cases")
    for each in (listing, judging):
        each.add_argument("--op", action="append", help="only this operation (may be given again)")
        each.add_argument("--json", action="store_true", help="print JSON")
    judging.add_argument("--against", required=True, metavar="NAME", help="refimpl, gpu, or MODULE:ATTRIBUTE")
    judging.add_argument("--partial", action="store_true", help="missing operations are no failure, unless all are")
    making = commands.add_parser("make", help="store seeded inputs and derive what is expected")
    making.add_argument("--check", action="store_true", help="write nothing; fail where a vector is stale")
    commands.add_parser("conventions", help="where implementations disagree, as a page")
    return parser


def _answer(asked: argparse.Namespace) -> int:
    if asked.command == "make":  # a case that is not made yet cannot be read
        return _make(asked.check)
    cases = read_cases()
    if asked.command == "conventions":
        print(markdown(cases), end="")
        return 0
    cases = tuple(case for case in cases if not asked.op or case.op in asked.op)
    if not cases:
        raise ValueError(f"no case of {', '.join(asked.op)}; see python -m golden list")
    if asked.command == "list":
        return _list(cases, asked.json)
    return _verify(cases, asked.against, asked.partial, asked.json)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 for a failed verdict, 2 for a request that makes no sense."""
    asked = _parser().parse_args(arguments)
    try:
        code = _answer(asked)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        reason = f"{error.filename or 'the output'} cannot be used: {error.strerror}"
    except ValueError as error:
        reason = " ".join(str(error).split())
    print(f"golden: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
