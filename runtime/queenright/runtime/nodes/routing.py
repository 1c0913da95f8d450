"""Routers: nodes that only choose the next edge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from queenright.instrumentation.verdict import Verdict
from queenright.runtime.graphs.graph import NodeSpec
from queenright.runtime.nodes.node_judge import Judgement, Turn

ROUTE: Final = "route"
"""The output key of a router: the name of the chosen route."""


def routing_node(spec: NodeSpec) -> NodeSpec:
    """Return the event-loop node for a router with a model: it must set ``route``."""
    routes = "\n".join(f"- {name}: {when}" for name, when in spec.routes.items())
    prompt = f"{spec.system_prompt}\n\nChoose one route, and set it with set_output as {ROUTE!r}:\n{routes}"
    return spec.model_copy(update={"system_prompt": prompt, "output_keys": (ROUTE,), "client_facing": False})


class RouteJudge:
    """Accepts a route that exists."""

    def __init__(self, routes: Mapping[str, str]) -> None:
        self._routes = tuple(routes)

    async def judge(self, turn: Turn) -> Judgement:
        """Judge one turn of a router."""
        if turn.outputs.get(ROUTE) in self._routes:
            return Judgement(Verdict.ACCEPT, "")
        return Judgement(Verdict.RETRY, f"route must be one of: {', '.join(self._routes)}")
