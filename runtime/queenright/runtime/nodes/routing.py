"""Routers: nodes that only choose the next edge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from queenright.instrumentation.verdict import Verdict
from queenright.runtime.graphs.graph import NodeSpec
from queenright.runtime.nodes.node_judge import FunctionJudge, Judgement, NodeJudge

ROUTE: Final = "route"
"""The output key of a router: the name of the chosen route."""


def make_routing_node(spec: NodeSpec) -> NodeSpec:
    """Return the event-loop node for a router with a model: it must set ``route``."""
    routes = "\n".join(f"- {name}: {when}" for name, when in spec.routes.items())
    prompt = f"{spec.system_prompt}\n\nChoose one route, and set it with set_output as {ROUTE!r}:\n{routes}"
    return spec.model_copy(update={"system_prompt": prompt, "output_keys": (ROUTE,), "client_facing": False})


def route_judge(routes: Mapping[str, str]) -> NodeJudge:
    """Return a judge that accepts a route that exists."""
    retry = Judgement(Verdict.RETRY, f"route must be one of: {', '.join(routes)}")
    names = tuple(routes)  # compared, not hashed: the output may be any JSON value
    return FunctionJudge(lambda turn: turn.outputs.get(ROUTE) in names or retry)
