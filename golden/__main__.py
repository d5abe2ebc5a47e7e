"""python -m golden: list the cases, judge an implementation, make the vectors, print the conventions."""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from golden import SPECIFICATION
from golden.adapters import NAMES, implementation
from golden.case import Case, read_cases, vector_files
from golden.conventions import markdown
from golden.corners import CORNERS, concerned, shown
from golden.exchange import export, judge_folder
from golden.verify import Implementation, Outcome, verify

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
    names = list(dict.fromkeys(corner.name for corner in CORNERS))
    concerns, shows = concerned(cases), shown(cases)
    marks = {
        op: ["-" if name not in concerns[op] else "x" if name in shows[op] else "lacks" for name in names]
        for op in concerns
    }
    print()
    _table([("corners", *names), *((op, *marks[op]) for op in marks)])
    print(f"{len(cases)} cases of {len(marks)} operations, specification {SPECIFICATION}")
    return 0


def _matrix(outcomes: Sequence[Outcome]) -> list[tuple[object, ...]]:
    """One row for each operation, dtype and kernel: what was judged, and the worst error of it."""
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.case.op, outcome.case.dtype[0], outcome.kernel), []).append(outcome)
    named = any(kernel for _, _, kernel in groups)
    rows: list[tuple[object, ...]] = [("operation", "dtype", *(["kernel"] if named else []), "passed", "worst")]
    for (op, dtype, kernel), group in groups.items():
        judged = [outcome for outcome in group if outcome.status not in ("missing", "absent")]
        passed = sum(outcome.status == "pass" for outcome in judged)
        worst = f"{max(outcome.ulps for outcome in judged):.1f} ulp" if judged else group[0].status
        rows.append((op, dtype, *([kernel] if named else []), f"{passed} of {len(judged)}", worst))
    return rows


def _report(who: Implementation, outcomes: Sequence[Outcome], *, whole: bool, as_json: bool) -> int:
    """Print the verdicts; 0 when all that was judged is right, or wrong as a convention explains."""
    by = {status: [o for o in outcomes if o.status == status] for status in ("pass", "missing", "explained", "absent")}
    wrong = [outcome for outcome in outcomes if outcome.status in ("fail", "error")]
    stale = {each.row for each in who.deviations} - {outcome.row for outcome in outcomes} if whole else set()
    if as_json:
        fields = ("kernel", "status", "ulps", "reason")
        print(json.dumps([{"id": o.case.id} | {name: getattr(o, name) for name in fields} for o in outcomes], indent=1))
    else:
        _table(_matrix([o for o in outcomes if not (who.partial and o.status == "missing")]))
        for outcome in [*wrong, *by["explained"]]:
            pins = outcome.case.row if outcome.status != "explained" else None
            row = f" (convention {pins}: {outcome.case.choice})" if pins else ""
            kernel = f" [{outcome.kernel}]" if outcome.kernel else ""
            print(f"{outcome.status.upper()} {outcome.case.id}{kernel}: {outcome.reason}{row}")
        for number in sorted(stale):
            print(f"FAIL convention {number}: {who.name} is said to choose otherwise, which no case shows")
        others = {"explained by a convention": by["explained"], "not offered": by["absent"]}
        more = "".join(f", {len(group)} {name}" for name, group in others.items() if group)
        nothing = "" if by["pass"] or wrong or by["explained"] else "; nothing was judged"
        print(f"{who.name}: {len(by['pass'])} passed, {len(wrong)} wrong, {len(by['missing'])} missing{more}{nothing}")
    return 0 if by["pass"] and not wrong and not stale and (who.partial or not by["missing"]) else 1


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
    judging.add_argument("--against", required=True, metavar="NAME", help=f"{', '.join(NAMES)}, or MODULE:ATTRIBUTE")
    judging.add_argument("--device", choices=("cuda", "emulated", "cpu"), help="where the kernels of gpu run")
    making = commands.add_parser("make", help="store seeded inputs and derive what is expected")
    making.add_argument("--check", action="store_true", help="write nothing; fail where a vector is stale")
    giving = commands.add_parser("export", help="write the cases to a folder, for any language")
    taking = commands.add_parser("judge", help="judge the results that lie in an exported folder")
    for each in (giving, taking):
        each.add_argument("folder", type=Path, metavar="DIR")
    for each in (listing, judging, giving, taking):
        each.add_argument("--op", action="append", help="only this operation (may be given again)")
    for each in (listing, judging, taking):
        each.add_argument("--json", action="store_true", help="print JSON")
    for each in (judging, taking):
        each.add_argument("--partial", action="store_true", help="missing operations are no failure, unless all are")
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
    if asked.command == "export":
        print(f"{export(cases, asked.folder)} cases, and how to read them: {asked.folder / 'cases.json'}")
        return 0
    if asked.command == "judge":
        who = Implementation(str(asked.folder), (), partial=asked.partial)
        return _report(who, judge_folder(cases, asked.folder), whole=not asked.op, as_json=asked.json)
    who = implementation(asked.against, asked.device)
    who = replace(who, partial=who.partial or asked.partial)
    return _report(who, verify(cases, who), whole=not asked.op, as_json=asked.json)


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
