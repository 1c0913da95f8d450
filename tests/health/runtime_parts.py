"""A worker on a real runtime in a folder, for tests of actions on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from queenright.health.interventions.target import Target
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.graphs.graph import EdgeSpec, EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.llm.model import Message, ModelReply, OnText, ToolSpec
from queenright.runtime.storage.checkpoint_store import CheckpointStore
from queenright.runtime.storage.session_state import ExecutionState
from tests.runtime.conftest import FakeTime
from tests.runtime.node_parts import output_reply


class HeldModel:
    """
    A model that answers the first node at once, and the second when it is released. It records its messages.
    """

    name = "bee"

    def __init__(self) -> None:
        self.answer_allowed = asyncio.Event()
        self.second_call_started = asyncio.Event()
        self.requests: list[list[Message]] = []

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        self.requests.append(list(messages))
        if messages[0].content == "Gather.":
            return output_reply(nectar="sweet")
        self.second_call_started.set()
        await self.answer_allowed.wait()
        return output_reply(honey="gold")

    def format_last_messages(self) -> str:
        """Return the messages of the last call as one text."""
        return "\n".join(message.content for message in self.requests[-1])


def make_two_node_graph(*, repeatable: bool = False, **second_node: object) -> GraphSpec:
    second_fields = {"output_keys": ("honey",), **second_node}
    return GraphSpec(
        id="hive",
        repeatable=repeatable,
        nodes=(
            NodeSpec(id="gather", system_prompt="Gather.", output_keys=("nectar",)),
            NodeSpec(id="make", system_prompt="Make.", **second_fields),  # type: ignore[arg-type]
        ),
        edges=(EdgeSpec(source="gather", target="make"),),
        entry_points=(EntryPointSpec(id="start", node_id="gather"),),
    )


class Colony:
    """A process's runtime with the worker ``bee``. A second one on the same folder is a restart."""

    def __init__(
        self, path: Path, time: FakeTime, *, model: object | None = None, **second_node: object
    ) -> None:
        self.path, self.time = path, time
        self.held_model = HeldModel()
        self.events: list[AgentEvent] = []
        bus = EventBus()
        bus.on_publish(self.events.extend)
        self.runtime = AgentRuntime(
            bus=bus,
            storage=path,
            clock=time,
            monotonic=time,
            sleep=time.sleep,
            disk=time.disk,
        )
        graph, model = make_two_node_graph(**second_node), model or self.held_model  # type: ignore[arg-type]
        self.runtime.add_graph(graph, model=model, agent_id="bee", primary=True)  # type: ignore[arg-type]

    async def begin_run(self) -> Target:
        """Begin a run. Return its worker when the model call of its second node has begun."""
        await self.runtime.start()
        run = await self.runtime.trigger("start", {"message": "Make honey."})
        await self.held_model.second_call_started.wait()
        await self.time.settle()
        return self.get_target(run)

    def get_target(self, run: str = "") -> Target:
        """Return the running worker as a target."""
        [execution] = [
            candidate
            for candidate in self.runtime.get_stream("start").executions
            if run in ("", candidate.id)
        ]
        return Target(
            agent_id="bee",
            session_id=execution.session_id or "",
            incarnation_id=execution.incarnation_id,
        )

    def read_state(self, session_id: str) -> ExecutionState:
        return self.runtime.session_store().read_state(session_id).executions["hive::start"]

    def read_memory(self, session_id: str) -> dict[str, object]:
        return self.runtime.session_store().read_state(session_id).memory

    def open_checkpoint_store(self, session_id: str) -> CheckpointStore:
        session = self.runtime.session_store().open(session_id)
        return CheckpointStore(session.checkpoints, clock=self.time, ids=lambda: "x")

    def list_event_types(self) -> list[EventType]:
        return [event.type for event in self.events]
