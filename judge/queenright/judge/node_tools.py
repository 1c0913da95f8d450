"""One set of tools for a graph whose nodes mean different things by the same name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from queenright.runtime.tooling.tools import Tool


def by_node(given: Mapping[str, Iterable[Tool]]) -> list[Tool]:
    """
    Return the tools of a graph, each name once; what is called is the tool of the node that calls.

    Tools of one name must look the same to a model, who is shown the first.

    Args:
        given: By node, its tools.

    Raises:
        ValueError: Two tools of one name differ in what a model sees of them.
    """
    named: dict[str, dict[str, Tool]] = {}
    for node_id, tools in given.items():
        for tool in tools:
            named.setdefault(tool.name, {})[node_id] = tool
    return [_one(name, tools) for name, tools in named.items()]


def _one(name: str, tools: Mapping[str, Tool]) -> Tool:
    first = next(iter(tools.values()))
    if any(tool.spec != first.spec for tool in tools.values()):
        raise ValueError(f"tools called {name!r} differ between nodes {', '.join(tools)}; rename one of them")
    if len(tools) == 1:
        return first

    async def run(given: Any, *, node_id: str, **around: object) -> object:
        tool = tools[node_id]
        answer = tool.run(given, **{key: _around(key, node_id, around) for key in tool.context})
        return await answer if inspect.isawaitable(answer) else answer

    wanted = {key for tool in tools.values() for key in tool.context} | {"node_id"}
    return replace(first, run=run, context=tuple(sorted(wanted)))


def _around(key: str, node_id: str, around: Mapping[str, object]) -> object:
    return node_id if key == "node_id" else around[key]
