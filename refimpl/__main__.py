"""python -m refimpl: the table of contents, with the lines of code and the minutes that each module takes to read."""

import ast
import importlib.util
import io
import tokenize
from collections.abc import Sequence
from pathlib import Path

from refimpl import CONTENTS, HOUR
from refimpl.command import Parser, guard, run_program
from refimpl.contract import host
from refimpl.interrupt import Brake

__all__ = ["code_lines", "contents", "main"]

_SECTIONS = {
    "contract": "The contract", "basics": "2.1 Neural networks", "llm": "2.2 LLM mechanics",
    "blocks": "2.2 LLM mechanics", "media": "2.3 Images and video", "models": "Models", "bottleneck": "2.4 Bottlenecks",
    "efficient": "2.5 Optimizing attention", "files": "Files",
}  # fmt: skip
_LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip
_LINES_A_MINUTE = 2000 / 60


@host
def code_lines(source: str) -> int:
    """Count the lines that hold code: no docstrings, comments or blank lines.

    >>> code_lines("def f():\\n    'Do it.'\\n\\n    return 1  # done\\n")
    2
    """
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    held = {line for token in tokens if token.type not in _LAYOUT for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and node.body and ast.get_docstring(node):
            held -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(held)


def _source(name: str) -> str:
    spec = importlib.util.find_spec(f"refimpl.{name}")
    return Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""


@host
def contents() -> list[str]:
    """Return the lines of the table: a module of the hour has its minutes, another a bracket."""
    lines, section, read, hour = [], "", 0, 0
    for name, what in CONTENTS:
        title = _SECTIONS.get(name.split(".")[0], "The commands")
        if title != section:
            lines += ["", title]
            section = title
        count = code_lines(_source(name))
        read, hour = read + count, hour + (count if name in HOUR else 0)
        minutes = f"{count / _LINES_A_MINUTE:4.1f} min" if name in HOUR else "       "
        lines.append(f"  {name:28} {count:5} lines {minutes}  {what}")
    share = f"{hour} lines of code, {hour / _LINES_A_MINUTE:.0f} minutes"
    return [*lines[1:], "", f"The hour (modules with minutes): {share}. All: {read} lines. Docstrings are not counted."]


@host
def main(argv: Sequence[str] | None = None) -> int:
    """Print the table of contents; return the exit code, never raise."""

    def work(_: Brake) -> int:
        Parser(prog="python -m refimpl", description=(__doc__ or "").split(": ", 1)[1]).parse_args(argv)
        print("\n".join(contents()))
        return 0

    return guard("refimpl", work)


if __name__ == "__main__":
    run_program(main)
