"""A place where chat templates run: they come with checkpoints and are untrusted code.

jinja2's sandbox keeps them from the interpreter; the budget here keeps them from running or growing without end.
Loops, calls, filters, joined text and output all cost steps, as many as they touch items or characters, and a deadline
stands behind the steps.
"""

import json
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import Environment, Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from refimpl.contract import UsageError, host

__all__ = ["render_template"]

_STEPS, _STEPS_PER_CHARACTER, _CALL, _SECONDS = 200_000, 200, 20, 10
_WIDENING = ("center", "indent", "slice", "batch")  # filters whose integers are sizes of what they make


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


class _Sandbox(ImmutableSandboxedEnvironment):
    """jinja2's sandbox with a budget of steps."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, steps: int) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constants too are made at run time, on the budget
            extensions=[loopcontrols, _Generation],
            finalize=self.spend_on,
        )
        self.steps = steps
        self.deadline = time.monotonic() + _SECONDS
        self.filters |= {"tojson": _tojson, "counted": lambda value: value}
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
            values = (*args, *kwargs.values())
            sizes = (abs(value) for value in values if isinstance(value, int)) if name in _WIDENING else ()
            self.spend(sum(map(_size, values)) + sum(sizes))
            return self.spend_on(function(*args, **kwargs))

        return counting

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call from a template; the integers given to a method of a string are sizes of what it makes."""
        values = (*args, *kwargs.values())
        sizes = () if isinstance(function, Macro) else (abs(value) for value in values if isinstance(value, int))
        self.spend(_CALL + _size(getattr(function, "__self__", None)) + sum(sizes))
        return self.spend_on(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(right, int):
            self.spend(abs(right) * (1 + _size(left)))
        elif operator == "*":
            for count, value in ((left, right), (right, left)):
                self.spend(abs(count) * _size(value) if isinstance(count, int) else 0)
        return self.spend_on(super().call_binop(context, operator, left, right))


def _tojson(value: Any, indent: int | None = None, **options: Any) -> str:
    """Write JSON without HTML escapes, as templates expect it."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


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
