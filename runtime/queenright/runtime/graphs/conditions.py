"""
Conditions over an execution's memory, as words: ``score >= 8 and "draft" in report``.

A name is a key of the memory; ``memory`` is all of it, for keys that are no names and for asking whether
one is there (``"score" in memory``). ``report.title`` is ``report["title"]``: no attribute of an object
is ever read. What could take long or much room is refused: powers, repetition, formatting, comprehensions.
"""

from __future__ import annotations

import ast
import functools
import importlib
import operator
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from queenright.instrumentation.errors import QueenrightError

_MEMORY: Final = "memory"
_LONGEST: Final = 1_000
_DEEPEST: Final = 40

FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "len": len,
        "min": min,
        "max": max,
        "abs": abs,
        "int": int,
        "float": float,
        "str": str,
        "lower": lambda text: str(text).lower(),
    }
)
"""What a condition may call."""

METHODS: Final = frozenset(
    {"get", "keys", "values", "items", "lower", "upper", "strip", "startswith", "endswith"}
)
"""What a condition may call on a value: none of them changes it."""


class ConditionError(QueenrightError):
    """Raised when a condition is none, or cannot be answered with the memory as it is."""

    def __init__(self, expression: str, problem: str) -> None:
        shown = expression if len(expression) <= 200 else expression[:200] + "..."
        super().__init__(f"condition {shown!r}: {problem}")
        self.expression = expression
        self.problem = problem


class NotInMemoryError(ConditionError):
    """Raised when a condition speaks of what is not in the memory (yet)."""


class ConditionsUnavailableError(QueenrightError):
    """Raised when the library that evaluates conditions is not installed."""

    def __init__(self) -> None:
        super().__init__("conditions need simpleeval; install it with: pip install 'queenright[runtime]'")


def check(expression: str) -> None:
    """
    See that ``expression`` is a condition; what is in the memory does not matter.

    Raises:
        ConditionError: It is not; says why.
        ConditionsUnavailableError: The library is missing.
    """
    _simpleeval()
    _parsed(expression)


def holds(expression: str, memory: Mapping[str, Any]) -> bool:
    """
    Return whether ``expression`` is true of ``memory``.

    Raises:
        NotInMemoryError: It needs a name or key that is not there.
        ConditionError: It is no condition, or it compares what cannot be compared. Values of the memory
            are not in the message.
        ConditionsUnavailableError: The library is missing.
    """
    library = _simpleeval()
    evaluator = library.EvalWithCompoundTypes(
        operators=_OPERATORS,
        functions=dict(FUNCTIONS),
        # Not a dict: it cannot be changed, and is not searched through at each look-up.
        names={_MEMORY: MappingProxyType(memory)},
    )
    tree = _parsed(expression)
    try:
        return bool(evaluator.eval(expression, previously_parsed=tree))
    except (KeyError, IndexError) as error:
        raise NotInMemoryError(expression, _missing(tree, error)) from None
    except (TypeError, ZeroDivisionError, _TooMuchError) as error:
        raise ConditionError(expression, str(error)) from None
    except Exception as error:
        # Its text may quote a value, and values may be secrets.
        raise ConditionError(expression, f"cannot be answered ({type(error).__name__})") from None


class _TooMuchError(Exception):
    """A result would be too large."""


def _simpleeval() -> Any:
    try:
        return importlib.import_module("simpleeval")
    except ImportError as error:
        raise ConditionsUnavailableError from error


@functools.lru_cache(maxsize=512)
def _parsed(expression: str) -> ast.expr:
    """Return ``expression`` as a tree in which every look-up is one in the memory."""
    if not expression.strip():
        raise ConditionError(expression, "is empty")
    if len(expression) > _LONGEST:
        raise ConditionError(expression, f"is {len(expression)} characters long; at most {_LONGEST}")
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except SyntaxError as error:
        raise ConditionError(expression, f"{error.msg} at character {error.offset}") from None
    except (ValueError, MemoryError, RecursionError) as error:
        raise ConditionError(expression, f"cannot be read ({type(error).__name__})") from None
    problem = next(_problems(tree, 0), None)
    if problem is not None:
        raise ConditionError(expression, problem)
    looked_up: ast.expr = ast.fix_missing_locations(_LookUps().visit(tree))
    return looked_up


def _problems(node: ast.AST, depth: int) -> Iterator[str]:
    """Yield what is not allowed in ``node`` and below."""
    if depth > _DEEPEST:
        yield f"is nested more than {_DEEPEST} deep"
        return
    if type(node) not in _ALLOWED:
        yield f"{_WORDS.get(type(node), type(node).__name__)} is not allowed"
        return
    if isinstance(node, ast.Constant) and not isinstance(node.value, str | int | float | None):
        yield f"{type(node.value).__name__} is not allowed"
    if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
        yield f"{node.attr!r} is not allowed: names with an underscore in front are private"
    below = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Call):
        yield from _call_problems(node)
        # The name of a function is none of the memory's.
        below = [*node.args, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
    for child in below:
        yield from _problems(child, depth + 1)


def _call_problems(call: ast.Call) -> Iterator[str]:
    if call.keywords:
        yield "named arguments are not allowed"
    if isinstance(call.func, ast.Name):
        if call.func.id not in FUNCTIONS:
            yield f"there is no function {call.func.id!r}; there are: {', '.join(FUNCTIONS)}"
    elif isinstance(call.func, ast.Attribute):
        if call.func.attr not in METHODS:
            yield f"{call.func.attr!r} cannot be called; what can: {', '.join(sorted(METHODS))}"
    else:
        yield "only functions can be called"


class _LookUps(ast.NodeTransformer):
    """Turns names and attributes into look-ups by key."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.args = [self.visit(argument) for argument in node.args]
        if isinstance(node.func, ast.Attribute):
            node.func.value = self.visit(node.func.value)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == _MEMORY:
            return node
        return ast.Subscript(ast.Name(_MEMORY, ast.Load()), ast.Constant(node.id), ast.Load())

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return ast.Subscript(self.visit(node.value), ast.Constant(node.attr), ast.Load())


def _missing(tree: ast.AST, error: LookupError) -> str:
    """Say what is not there; a key that was itself taken from the memory is not named."""
    said = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    if isinstance(key, str) and key in said:
        return f"there is no {key!r}"
    return "there is no such key or position"


def _numbers_only(do: Callable[[Any, Any], Any], sign: str) -> Callable[[Any, Any], Any]:
    def checked(left: Any, right: Any) -> Any:
        for value in (left, right):
            if not isinstance(value, int | float):
                raise TypeError(f"{sign} is for numbers, not {type(value).__name__}")
        return do(left, right)

    return checked


def _add(left: Any, right: Any) -> Any:
    if hasattr(left, "__len__") and hasattr(right, "__len__") and len(left) + len(right) > 1_000_000:
        raise _TooMuchError("+ would make more than a million characters or items")
    return left + right


_OPERATORS: Final[dict[type[ast.AST], Callable[..., Any]]] = {
    ast.Add: _add,
    ast.Sub: operator.sub,
    ast.Mult: _numbers_only(operator.mul, "*"),
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: _numbers_only(operator.mod, "%"),
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.Lt: operator.lt,
    ast.GtE: operator.ge,
    ast.LtE: operator.le,
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.In: lambda item, whole: item in whole,
    ast.NotIn: lambda item, whole: item not in whole,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}

_ALLOWED: Final = frozenset(
    {
        *_OPERATORS,
        ast.And,
        ast.Attribute,
        ast.BinOp,
        ast.BoolOp,
        ast.Call,
        ast.Compare,
        ast.Constant,
        ast.IfExp,
        ast.List,
        ast.Load,
        ast.Name,
        ast.Or,
        ast.Slice,
        ast.Subscript,
        ast.Tuple,
        ast.UnaryOp,
    }
)

_WORDS: Final[Mapping[type[ast.AST], str]] = {
    ast.Pow: "a power",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.JoinedStr: "an f-string",
    ast.Lambda: "a lambda",
    ast.ListComp: "a comprehension",
    ast.GeneratorExp: "a comprehension",
    ast.Starred: "*",
    ast.NamedExpr: ":=",
    ast.Dict: "a dictionary",
}
