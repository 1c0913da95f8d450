"""The agent runtime: several graphs at work on one event bus."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.bus import EventBus
from queenright.runtime.deadline import Sleep
from queenright.runtime.events import Clock
from queenright.runtime.graph import EntryPointSpec, GraphSpec
from queenright.runtime.model import LLMProvider
from queenright.runtime.sessions import persistent_session
from queenright.runtime.stream import Entry, RunNode, Stream, Surroundings, Trigger
from queenright.runtime.tools import Tool, ToolRegistry


class GraphError(QueenrightError):
    """Raised when a graph or entry point is asked for that is not there, or is added twice."""


@dataclass(frozen=True, slots=True)
class _Graph:
    spec: GraphSpec
    streams: Mapping[str, Stream]


class AgentRuntime:
    """
    Runs graphs. All of them share one bus; each entry point has a session, a queue and one run at a time.

    Args:
        bus: Where events come from and go to.
        storage: The folder under which graphs keep their sessions (``graphs/{graph_id}/sessions/...``).
        clock: Times of events.
        monotonic: The clock that timers go by, in seconds from anywhere.
        sleep: Waits on that clock.
    """

    def __init__(
        self,
        *,
        bus: EventBus,
        storage: Path,
        clock: Clock = time.time,
        monotonic: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._around = Surroundings(bus=bus, clock=clock, monotonic=monotonic, sleep=sleep)
        self._storage = storage
        self._graphs: dict[str, _Graph] = {}
        self._started = False

    async def start(self) -> None:
        """Start every graph added so far; those added later start at once."""
        if not self._started:
            self._started = True
            for graph in self._graphs.values():
                _start(graph)

    async def stop(self) -> None:
        """Stop everything; no task and no subscription is left."""
        self._started = False
        await asyncio.gather(*(s.stop() for g in self._graphs.values() for s in g.streams.values()))

    def add_graph(
        self,
        graph: GraphSpec,
        *,
        model: LLMProvider,
        tools: Iterable[Tool] = (),
        entries: Mapping[str, Entry] | None = None,
    ) -> None:
        """
        Add a graph, before the start or after.

        Args:
            graph: What it is.
            model: Who thinks in its nodes.
            tools: What its nodes may use.
            entries: By entry point, what to do when it fires. Without one, the node runs once on the
                trigger's ``message``, or on its input or event as JSON.

        Raises:
            GraphError: The id is taken, a node names a tool that is not in ``tools``, or
                ``entries`` names an entry point that the graph has not.
        """
        if graph.id in self._graphs:
            raise GraphError(f"graph {graph.id!r} is there already; remove it first")
        registry = ToolRegistry(tools)
        for node in graph.nodes:
            missing = [name for name in node.tools if name not in registry]
            if missing:
                raise GraphError(
                    f"graph {graph.id!r}: node {node.id!r} uses tool {missing[0]!r}, which is not given"
                )
        chosen = dict(entries or {})
        unknown = chosen.keys() - {entry.id for entry in graph.entry_points}
        if unknown:
            raise GraphError(f"graph {graph.id!r} has no entry point {min(unknown)!r}")
        path = self._storage / "graphs" / graph.id
        streams = {
            spec.id: Stream(
                graph,
                spec,
                session=persistent_session(path, spec.id, self._around.clock),
                model=model,
                tools=registry,
                entry=chosen.get(spec.id, _run_once),
                around=self._around,
            )
            for spec in graph.entry_points
        }
        self._graphs[graph.id] = _Graph(graph, streams)
        if self._started:
            _start(self._graphs[graph.id])

    async def remove_graph(self, graph_id: str) -> None:
        """
        Cancel what the graph is doing and forget it; its sessions stay on disk.

        Raises:
            GraphError: There is no such graph.
        """
        graph = self._graph(graph_id)
        del self._graphs[graph_id]
        await asyncio.gather(*(stream.stop() for stream in graph.streams.values()))

    def list_graphs(self) -> list[str]:
        """Ids of the graphs, in the order they were added."""
        return list(self._graphs)

    def get_graph(self, graph_id: str) -> GraphSpec:
        """
        Return a graph's specification.

        Raises:
            GraphError: There is no such graph.
        """
        return self._graph(graph_id).spec

    def get_entry_points(self, graph_id: str | None = None) -> list[EntryPointSpec]:
        """
        Return the entry points of a graph; without an id, of the first one added.

        Raises:
            GraphError: There is no such graph.
        """
        return list(self._graph(graph_id).spec.entry_points)

    def get_stream(self, entry_point_id: str, *, graph_id: str | None = None) -> Stream:
        """
        Return the stream of an entry point: its session, what waits, ticks skipped.

        Raises:
            GraphError: There is no such graph or entry point.
        """
        graph = self._graph(graph_id)
        stream = graph.streams.get(entry_point_id)
        if stream is None:
            have = ", ".join(graph.streams)
            raise GraphError(f"graph {graph.spec.id!r} has no entry point {entry_point_id!r}; it has: {have}")
        return stream

    def trigger(
        self,
        entry_point_id: str,
        input_data: Mapping[str, Any] | None = None,
        *,
        graph_id: str | None = None,
    ) -> asyncio.Future[Any]:
        """
        Fire an entry point, whatever its own trigger is; the run waits its turn behind those before it.

        Returns:
            A future of what the run returned: a ``NodeResult`` where the graph has no entry of its
            own, ``Failed`` if it raised. It may be left alone. Cancelled if the graph is removed.

        Raises:
            GraphError: There is no such graph or entry point, or the runtime is not started.
        """
        stream = self.get_stream(entry_point_id, graph_id=graph_id)
        if not self._started:
            raise GraphError(f"cannot trigger {stream.id!r}: the runtime is not started")
        return stream.fire(Trigger(input_data=input_data or {}))

    def _graph(self, graph_id: str | None) -> _Graph:
        if graph_id is None and self._graphs:
            return next(iter(self._graphs.values()))
        graph = self._graphs.get(graph_id or "")
        if graph is None:
            raise GraphError(
                f"there is no graph {graph_id!r}; there are: {', '.join(self._graphs) or 'none'}"
            )
        return graph


def _start(graph: _Graph) -> None:
    for stream in graph.streams.values():
        stream.start()


async def _run_once(trigger: Trigger, run: RunNode) -> Any:
    """Run the node once on what the trigger brought."""
    message = trigger.input_data.get("message")
    if not isinstance(message, str):
        brought = trigger.event.to_dict() if trigger.event is not None else dict(trigger.input_data)
        message = json.dumps(brought, ensure_ascii=False)
    return await run(message)
