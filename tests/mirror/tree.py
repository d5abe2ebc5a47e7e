"""The source as a tree: what the structure tests read, by AST and without importing anything."""

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

__all__ = [
    "ROLES", "ROOT", "Function", "Module", "code_lines", "imports", "is_compiled", "module_lines", "modules",
    "public_functions", "roles",
]  # fmt: skip

ROOT = Path(__file__).parents[2]
ROLES = ("op", "host", "composed", "kernel")
COMPILED = ("jit", "inlined", "spliced", "allocating", "intrinsic", "device_function")


def _is_all(node: ast.stmt) -> TypeGuard[Any]:
    return isinstance(node, ast.Assign | ast.AnnAssign) and ast.unparse(node).startswith("__all__")


@dataclass(frozen=True)
class Module:
    name: str  # dotted, as it is imported
    path: Path
    tree: ast.Module
    is_package: bool

    @property
    def where(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def has_code(self) -> bool:
        return any(not isinstance(node, ast.Expr) and not _is_all(node) for node in self.tree.body)

    def all_names(self) -> list[str] | None:
        return next((list(ast.literal_eval(node.value)) for node in self.tree.body if _is_all(node)), None)


@dataclass(frozen=True)
class Function:
    module: Module
    node: ast.FunctionDef

    @property
    def where(self) -> str:
        return f"{self.module.where}:{self.node.lineno} {self.node.name}"

    @property
    def doc(self) -> str:
        return ast.get_docstring(self.node) or ""


@cache
def modules(folder: str) -> tuple[Module, ...]:
    """Return every module below ``folder`` of the repository, in path order."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found.append(Module(name, path, ast.parse(path.read_text(encoding="utf-8")), is_package))
    return tuple(found)


def is_compiled(node: ast.FunctionDef) -> bool:
    """Tell whether Numba compiles a function into the kernels that call it: it is a part of them and has no role."""
    return any(name.split("(")[0] in COMPILED for name in map(ast.unparse, node.decorator_list))


def roles(node: ast.FunctionDef) -> list[str]:
    """Return the role decorators of a function, outermost first."""
    return [name for name in map(ast.unparse, node.decorator_list) if name in ROLES]


def public_functions(module: Module) -> list[Function]:
    """Return the top-level functions of a module whose name has no leading underscore."""
    return [
        Function(module, node)
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]


def imports(module: Module) -> Iterator[tuple[str, str | None]]:
    """Yield (module, name or None) of every import in a module, lazy ones included, relative ones resolved."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.name.split(".")
                parts = parts[: len(parts) - node.level + module.is_package]
                base = ".".join([*parts, base]).rstrip(".")
            yield from ((base, alias.name) for alias in node.names)


@cache
def _lines_with_code(source: str) -> frozenset[int]:
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    spans = [range(t.start[0], t.end[0] + 1) for t in tokens if t.type not in layout]
    return frozenset(line for span in spans for line in span)


def _docstring(node: ast.FunctionDef | ast.ClassDef | ast.Module) -> range:
    """Return the lines of a docstring."""
    first = node.body[0] if node.body and ast.get_docstring(node) else None
    return range(first.lineno, (first.end_lineno or 0) + 1) if first else range(0)


def code_lines(node: ast.FunctionDef, source: str) -> int:
    """Count the lines of a function that hold code: no docstring, comment, decorator or blank line."""
    held = _lines_with_code(source) & set(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(held.difference(_docstring(node)))


def module_lines(module: Module) -> int:
    """Count the lines of a module that hold code, without any docstring."""
    documented = (n for n in ast.walk(module.tree) if isinstance(n, ast.FunctionDef | ast.ClassDef | ast.Module))
    held = _lines_with_code(module.path.read_text(encoding="utf-8"))
    return len(held.difference(*map(_docstring, documented)))
