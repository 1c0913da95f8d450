"""A test bench with a real node that can be reopened from disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from queenright.instrumentation.telemetry import Telemetry
from queenright.instrumentation.worker import Worker
from queenright.runtime.bus import EventBus
from queenright.runtime.deadline import Sleep
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.graphs.graph import NodeSpec
from queenright.runtime.llm.model import LLMProvider, ModelReply, ToolCall
from queenright.runtime.nodes.cursor import NodeCursor
from queenright.runtime.nodes.event_loop import EventLoopNode, NodeResult
from queenright.runtime.nodes.node_guard import Guard
from queenright.runtime.nodes.node_judge import ImplicitJudge, NodeJudge
from queenright.runtime.nodes.reporting import Origin, Reporter
from queenright.runtime.storage.conversation import Conversation
from queenright.runtime.storage.files import Disk
from queenright.runtime.tooling.tools import Tool, ToolError, ToolRegistry
from tests.runtime.conftest import FakeTime

T = TypeVar("T")


class Place(BaseModel):
    place: str


def look(place: Place) -> str:
    if place.place == "nowhere":
        raise ToolError("there is no nowhere; try the hive")
    if place.place == "void":
        raise OSError("void")
    return f"looked at {place.place}"


LOOK = Tool("look", "Look at a place.", Place, look)


class InlineDisk(Disk):
    """A disk that works synchronously between two yields to the loop, so that runs are deterministic."""

    async def run(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        result = work()
        await asyncio.sleep(0)
        return result


class Bench:
    """One node with its dependencies; a new bench on the same folder acts as a restarted process."""

    def __init__(
        self,
        path: Path,
        model: LLMProvider,
        time: FakeTime,
        *,
        tools: Iterable[Tool] = (LOOK,),
        disk: Disk | None = None,
        judge: NodeJudge | None = None,
        guard: Guard | None = None,
        fresh: bool = False,
        context: dict[str, object] | None = None,
        telemetry: Telemetry | None = None,
        storage: Path | None = None,
        sleep: Sleep | None = None,
        **spec: Any,
    ) -> None:
        tools = list(tools)
        fields = {
            "id": "n",
            "system_prompt": "Be a bee.",
            "tools": tuple(tool.name for tool in tools),
            "output_keys": ("verdict",),
        }
        self.spec = NodeSpec(**(fields | spec))
        self.path = path
        self.time = time
        self.disk = disk or time.disk
        self.events: list[AgentEvent] = []
        self.worker = Worker(
            "bee",
            session_id="s1",
            graph_id="g",
            telemetry=telemetry or Telemetry.muted(),
            registry=CollectorRegistry(),
            storage=storage,
            clock=time,
        )
        origin = Origin(
            agent_id="bee",
            session_id="s1",
            incarnation_id=self.worker.incarnation_id,
            graph_id="g",
            stream_id="g::main",
            execution_id="x1",
        )
        bus = EventBus()
        bus.on_publish(self.events.extend)
        self.reporter = Reporter(bus=bus, worker=self.worker, origin=origin, clock=time)
        self.conversation = Conversation.open(path, disk=self.disk, clock=time)
        self.node = EventLoopNode(
            self.spec,
            model=model,
            tools=ToolRegistry(tools),
            conversation=self.conversation,
            folder=path,
            reporter=self.reporter,
            disk=self.disk,
            clock=time,
            sleep=sleep or time.sleep,
            judge=judge or ImplicitJudge(),
            guard=guard,
            context=context or {},
            random=Random(1),
            fresh=fresh,
        )

    async def run(self, visit: str = "x1:n:1", message: str = "Go.") -> NodeResult:
        return await self.node.run(visit, message)

    @property
    def cursor(self) -> NodeCursor:
        return self.node.cursor

    def list_event_types(self) -> list[str]:
        return [event.type.value for event in self.events]

    def list_event_data(self, type_: EventType) -> list[dict[str, Any]]:
        return [dict(event.data) for event in self.events if event.type is type_]

    def list_contents(self) -> list[tuple[str, str]]:
        return [(entry.kind.value, entry.message.content) for entry in self.conversation.entries]


def call_reply(*calls: tuple[str, str], text: str = "") -> ModelReply:
    """Return a reply with tool calls, each a name with arguments."""
    tool_calls = tuple(ToolCall(f"c{n}", name, arguments) for n, (name, arguments) in enumerate(calls))
    return ModelReply(text=text, tool_calls=tool_calls, input_tokens=10, output_tokens=2, cost=0.5)


def output_reply(**outputs: str) -> ModelReply:
    """Return a reply that sets outputs."""
    import json

    return call_reply(("set_output", json.dumps(outputs)))


def event_types(events: Sequence[AgentEvent]) -> list[str]:
    return [event.type.value for event in events]
