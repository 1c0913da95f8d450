"""
Conditions over an execution's memory, as expressions: ``score >= 8 and "draft" in report``.

A name is a key of the memory. ``memory`` is the whole memory, for keys that are not valid names and for
membership tests (``"score" in memory``). ``report.title`` means ``report["title"]``: attributes of objects
are never read. Operations with unbounded cost are rejected: powers, repetition, formatting, comprehensions.
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
from queenright.instrumentation.extras import get_install_command

_MEMORY: Final = "memory"
_MAX_LENGTH: Final = 1_000
_MAX_DEPTH: Final = 40

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
"""Functions that a condition may call."""

METHODS: Final = frozenset(
    {"get", "keys", "values", "items", "lower", "upper", "strip", "startswith", "endswith"}
)
"""Methods that a condition may call; none of them changes the value."""


class ConditionError(QueenrightError):
    """Raised when a condition is invalid, or cannot be evaluated with the current memory."""

    def __init__(self, expression: str, problem: str) -> None:
        excerpt = expression if len(expression) <= 200 else expression[:200] + "..."
        super().__init__(f"condition {excerpt!r}: {problem}")
        self.expression = expression
        self.problem = problem


class NotInMemoryError(ConditionError):
    """Raised when a condition refers to a key that is not in the memory."""


class ConditionsUnavailableError(QueenrightError):
    """Raised when the library that evaluates conditions is missing."""

    def __init__(self) -> None:
        super().__init__(f"Conditions need the extra 'runtime'. Run: {get_install_command('runtime')}")


def check(expression: str) -> None:
    """
    Check the syntax of a condition, independent of the memory.

    Raises:
        ConditionError: The condition is invalid; says why.
        ConditionsUnavailableError: The library is missing.
    """
    _import_simpleeval()
    _parse(expression)


def evaluate(expression: str, memory: Mapping[str, Any]) -> bool:
    """
    Evaluate a condition over ``memory``.

    Raises:
        NotInMemoryError: The condition refers to a name or key that is not in the memory.
        ConditionError: The condition is invalid, or cannot be evaluated. The message contains no values
            of the memory.
        ConditionsUnavailableError: The library is missing.
    """
    library = _import_simpleeval()
    evaluator = library.EvalWithCompoundTypes(
        operators=_OPERATORS,
        functions=dict(FUNCTIONS),
        # Read-only, and not a dict: simpleeval searches a dict at each look-up.
        names={_MEMORY: MappingProxyType(memory)},
    )
    tree = _parse(expression)
    try:
        return bool(evaluator.eval(expression, previously_parsed=tree))
    except (KeyError, IndexError) as error:
        raise NotInMemoryError(expression, _describe_missing(tree, error)) from None
    except (TypeError, ZeroDivisionError, _ResultTooLargeError) as error:
        raise ConditionError(expression, str(error)) from None
    except Exception as error:
        # The message may quote a value, which may be a secret.
        raise ConditionError(expression, f"cannot be evaluated ({type(error).__name__})") from None


class _ResultTooLargeError(Exception):
    """Raised when a result would be too large."""


def _import_simpleeval() -> Any:
    try:
        return importlib.import_module("simpleeval")
    except ImportError as error:
        raise ConditionsUnavailableError from error


@functools.lru_cache(maxsize=512)
def _parse(expression: str) -> ast.expr:
    """Parse ``expression`` into a tree in which every name is a look-up in the memory."""
    if not expression.strip():
        raise ConditionError(expression, "is empty")
    if len(expression) > _MAX_LENGTH:
        raise ConditionError(
            expression, f"is {len(expression)} characters long; the maximum is {_MAX_LENGTH}"
        )
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except SyntaxError as error:
        raise ConditionError(expression, f"{error.msg} at character {error.offset}") from None
    except (ValueError, MemoryError, RecursionError) as error:
        raise ConditionError(expression, f"cannot be parsed ({type(error).__name__})") from None
    problem = next(_find_problems(tree, 0), None)
    if problem is not None:
        raise ConditionError(expression, problem)
    tree_of_lookups: ast.expr = ast.fix_missing_locations(_LookUpTransformer().visit(tree))
    return tree_of_lookups


def _find_problems(node: ast.AST, depth: int) -> Iterator[str]:
    """Yield what is not allowed in ``node`` and its children."""
    if depth > _MAX_DEPTH:
        yield f"is nested more than {_MAX_DEPTH} deep"
        return
    if type(node) not in _ALLOWED_NODES:
        yield f"{_NODE_NAMES.get(type(node), type(node).__name__)} is not allowed"
        return
    if isinstance(node, ast.Constant) and not isinstance(node.value, str | int | float | None):
        yield f"{type(node.value).__name__} is not allowed"
    if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
        yield f"{node.attr!r} is not allowed: names that start with an underscore are private"
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Call):
        yield from _find_call_problems(node)
        # The function's name is not a key of the memory.
        children = [*node.args, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
    for child in children:
        yield from _find_problems(child, depth + 1)


def _find_call_problems(call: ast.Call) -> Iterator[str]:
    if call.keywords:
        yield "named arguments are not allowed"
    if isinstance(call.func, ast.Name):
        if call.func.id not in FUNCTIONS:
            yield f"unknown function {call.func.id!r}; available: {', '.join(FUNCTIONS)}"
    elif isinstance(call.func, ast.Attribute):
        if call.func.attr not in METHODS:
            yield f"method {call.func.attr!r} is not allowed; allowed: {', '.join(sorted(METHODS))}"
    else:
        yield "only functions can be called"


class _LookUpTransformer(ast.NodeTransformer):
    """Turns names and attributes into look-ups in the memory."""

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


def _describe_missing(tree: ast.AST, error: LookupError) -> str:
    """Name the missing key, unless the key is itself a value of the memory."""
    literals = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    if isinstance(key, str) and key in literals:
        return f"there is no {key!r}"
    return "there is no such key or index"


def _require_numbers(operation: Callable[[Any, Any], Any], sign: str) -> Callable[[Any, Any], Any]:
    def check_operation(left: Any, right: Any) -> Any:
        for value in (left, right):
            if not isinstance(value, int | float):
                raise TypeError(f"{sign} needs numbers, not {type(value).__name__}")
        return operation(left, right)

    return check_operation


def _add(left: Any, right: Any) -> Any:
    if hasattr(left, "__len__") and hasattr(right, "__len__") and len(left) + len(right) > 1_000_000:
        raise _ResultTooLargeError("+ would produce more than a million characters or items")
    return left + right


_OPERATORS: Final[dict[type[ast.AST], Callable[..., Any]]] = {
    ast.Add: _add,
    ast.Sub: operator.sub,
    ast.Mult: _require_numbers(operator.mul, "*"),
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: _require_numbers(operator.mod, "%"),
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

_ALLOWED_NODES: Final = frozenset(
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

_NODE_NAMES: Final[Mapping[type[ast.AST], str]] = {
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
