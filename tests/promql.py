"""Analysis of PromQL expressions."""

from __future__ import annotations

import promql_parser as promql


def list_kept_labels(expr: str) -> set[str]:
    """Return the labels that the outermost aggregations of an expression keep."""
    return _kept_labels(promql.parse(expr))


def _kept_labels(node: promql.Expr) -> set[str]:
    match node:
        case promql.AggregateExpr(modifier=modifier):
            return set() if modifier is None else set(modifier.labels)
        case promql.BinaryExpr(lhs=lhs, rhs=rhs):
            return _kept_labels(lhs) | _kept_labels(rhs)
        case promql.ParenExpr(expr=inner):
            return _kept_labels(inner)
        case promql.Call(args=args):
            return set().union(*map(_kept_labels, args))
        case _:
            return set()
