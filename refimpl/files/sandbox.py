"""A place where chat templates run: they come with checkpoints and are untrusted code.

jinja2's sandbox keeps them from the interpreter; the budget here keeps them from running or growing without end.
Loops, calls, filters, joined text and output all cost steps, as many as they touch items or characters, and a deadline
stands behind the steps.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import wraps
from typing import Any

import regex
from jinja2 import Environment, Template, meta, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.visitor import NodeTransformer

from refimpl.contract import UsageError, host

__all__ = ["render_template", "template_reads"]

_STEPS, _STEPS_PER_CHARACTER, _CALL, _SECONDS = 200_000, 200, 20, 10
_GLOBALS = ("range", "dict", "namespace")  # what templates use of all that jinja2 adds
_WIDENING = ("center", "indent", "slice", "batch", "tojson")  # filters whose integers are sizes of what they make
_MULTIPLYING = ("join", "expandtabs", "indent", "wordwrap", "urlize", "translate")  # each operand once for another
_WIDTH = regex.compile(r"\d+(?=[.a-zA-Z])")  # in a printf format


class _Generation(Extension):
    """The block tag ``generation`` marks an assistant's answer for training; here it is its own content."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Counting(NodeTransformer):
    """Send through filters that cost steps what jinja2 gives no hook for: loops, comparisons, literals and ``~``."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        node.iter = _filtered(node.iter, "counted")
        return self.generic_visit(node)

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:
        node.expr = _filtered(node.expr, "weighed")
        return self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        node.nodes = [_filtered(part, "weighed") for part in node.nodes]
        return self.generic_visit(node)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return _filtered(self.generic_visit(node), "weighed")

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return _filtered(self.generic_visit(node), "weighed")


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _size(value: Any) -> int:
    """Count the items of a value, or the words of a number beyond the first."""
    if isinstance(value, int):
        return value.bit_length() // 64
    return len(value) if hasattr(type(value), "__len__") else 0


def _weight(value: Any, most: int) -> int:
    """Count what a value holds, all the way down and as often as it occurs, but no further than ``most``."""
    rest, weight = [value], 0
    while rest and weight <= most:
        item = rest.pop()
        weight += 1 + _size(item)
        if isinstance(item, Mapping):
            rest += item.values()
        elif isinstance(item, list | tuple):
            rest += item
    return weight


def _growth(name: str, values: Sequence[Any], most: int) -> int:
    """Bound what an operation makes of texts that it widens or repeats."""
    match name, values:
        case "replace", (str(text), str(old), str(new), *_):
            return text.count(old) * len(new)
        case "%" | "format", (str(text), *given):
            stars = (abs(value) for value in given if isinstance(value, int)) if "*" in text else ()
            return sum(map(int, _WIDTH.findall(text))) + sum(stars) + text.count("%") * _weight(given, most)
        case _ if name in _MULTIPLYING:
            return math.prod(1 + (abs(v) if isinstance(v, int) else _weight(v, most)) for v in values)
    return 0


def _listed(name: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Give ``join`` a list to count instead of an iterator."""
    return tuple(list(v) if isinstance(v, Iterator) else v for v in values) if name == "join" else values


class _Formatter(SandboxedFormatter):
    """str.format, whose widths and results cost steps."""

    def __init__(self, sandbox: "_Sandbox") -> None:
        super().__init__(sandbox)
        self.spend = sandbox.spend

    def format_field(self, value: Any, format_spec: str) -> str:
        self.spend(sum(map(int, regex.findall(r"\d+", format_spec))))
        text = str(super().format_field(value, format_spec))
        self.spend(len(text))
        return text


class _Sandbox(ImmutableSandboxedEnvironment):
    """jinja2's sandbox with a budget of steps."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, steps: int) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constants too are made at run time, on the budget
            extensions=[loopcontrols, _Generation],
            finalize=self._weighed,
        )
        self.steps = steps
        self.deadline = time.monotonic() + _SECONDS
        self.globals = {name: self.globals[name] for name in _GLOBALS}
        self.filters |= {"tojson": self._tojson, "counted": lambda value: value}
        self.filters = {name: self._counting(name, function) for name, function in self.filters.items()}
        self.filters["weighed"] = self._weighed
        self.tests = {name: self._counting(name, function) for name, function in self.tests.items()}

    def spend(self, steps: int) -> None:
        self.steps -= 1 + steps
        if self.steps < 0 or time.monotonic() > self.deadline:
            raise UsageError("the chat template does not end: it used up its steps")

    def spend_on(self, value: Any) -> Any:
        self.spend(_size(value))
        return value

    def _weighed(self, value: Any) -> Any:
        self.spend(_weight(value, self.steps))
        return value

    def _counting(self, name: str, function: Any) -> Callable[..., Any]:
        @wraps(function)
        def counting(*args: Any, **kwargs: Any) -> Any:
            args = _listed(name, args)
            values = (*args, *kwargs.values())
            sizes = (abs(value) for value in values if isinstance(value, int)) if name in _WIDENING else ()
            self.spend(sum(map(_size, values)) + sum(sizes) + _growth(name, values, self.steps))
            return self.spend_on(function(*args, **kwargs))

        return counting

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call from a template; the integers given to a method of a string are sizes of what it makes."""
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        args = _listed(name, args)
        values = (*args, *kwargs.values())
        sizes = () if isinstance(function, Macro) else (abs(value) for value in values if isinstance(value, int))
        growth = _growth(name, (owner, *values), self.steps) if isinstance(owner, str) else 0
        self.spend(_CALL + _size(owner) + sum(sizes) + growth)
        return self.spend_on(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(right, int):
            self.spend(abs(right) * (1 + _size(left)))
        elif operator == "*":
            for count, value in ((left, right), (right, left)):
                self.spend(abs(count) * _size(value) if isinstance(count, int) else 0)
        elif operator == "%":
            self.spend(_growth("%", (left, *(right if isinstance(right, tuple) else (right,))), self.steps))
        return self.spend_on(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        text, formatter = value.__self__, _Formatter(self)
        if value.__name__ == "format_map":
            return lambda fields: formatter.vformat(text, (), fields)
        return lambda *args, **kwargs: formatter.vformat(text, args, kwargs)

    def _tojson(
        self, value: Any, indent: int | str | None = None, *, ensure_ascii: bool = False,
        separators: tuple[str, str] | None = None, sort_keys: bool = False,
    ) -> str:  # fmt: skip
        """Write JSON without HTML escapes, as templates expect it."""
        encoder = json.JSONEncoder(
            indent=indent, ensure_ascii=ensure_ascii, separators=separators, sort_keys=sort_keys
        )  # fmt: skip
        pieces = []
        for piece in encoder.iterencode(value):
            self.spend(len(piece))
            pieces.append(piece)
        return "".join(pieces)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


@host
def render_template(source: str, variables: Mapping[str, Any], now: datetime | None = None) -> str:
    """Render a chat template with its variables; ``now`` is the time that ``strftime_now`` tells.

    Constraints: the template ends within a number of steps that grows with the variables.
    Errors: UsageError with the first line of whatever goes wrong in the template.
    Source: huggingface.co/docs/transformers, "Chat templates" (environment, globals, filters).

    >>> render_template("{% for c in name %}{{ c }}.{% endfor %}", {"name": "ab"})
    'a.b.'
    """
    sandbox = _Sandbox(_STEPS + _STEPS_PER_CHARACTER * len(str(variables)))
    sandbox.globals |= {"raise_exception": _raise_exception, "strftime_now": (now or datetime.now()).strftime}
    try:
        tree = _Counting().visit(sandbox.parse(source)).set_environment(sandbox)
        template = Template.from_code(sandbox, sandbox.compile(tree), sandbox.make_globals(None))
        return template.render(variables)
    except UsageError:
        raise
    except Exception as error:  # whatever untrusted code raises
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UsageError(f"the chat template failed: {reason}") from error


@host
def template_reads(source: str, name: str) -> bool:
    """Tell whether a template that renders looks at a variable.

    >>> template_reads("{% if tools %}{{ tools[0] }}{% endif %}", "tools"), template_reads("{{ messages }}", "tools")
    (True, False)
    """
    return name in meta.find_undeclared_variables(_Sandbox(_STEPS).parse(source))
