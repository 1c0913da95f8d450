"""Interventions on workers that hang in the service's own runtime, without mocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from queenright.health.detection.health_state import HealthState
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.graphs.graph import EdgeSpec, EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.llm.model import Message, ModelReply, OnText, ToolSpec
from queenright.runtime.storage.checkpoint_store import CheckpointStore
from queenright.server.build import build
from queenright.server.service import Service
from queenright.server.settings import load_settings
from tests.runtime.node_parts import call_reply, output_reply

WAIT_SECONDS = 15.0
SHORT_LIMITS = {
    "stall": {"idle_seconds": 0.4, "llm_seconds": 0.4, "tool_seconds": 0.4, "unknown_seconds": 1},
    "judge": {"start_grace_seconds": 0},
    "intervention": {
        "quiet_seconds": 0,
        "nudge": {"max_attempts": 1, "interval_seconds": 0.6},
        "escalation": {"timeout_seconds": 1.5, "orchestrator": "none"},
    },
    "recovery": {"backoff_seconds": [0.1]},
}
"""Settings whose limits are seconds instead of minutes."""


class Digger:
    """A model whose second call hangs until it is released or its worker restarts."""

    name = "digger"

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.requests: list[list[Message]] = []

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        self.requests.append(list(messages))
        if messages[0].content == "Gather.":
            return output_reply(nectar="sweet")
        result = self.join_last_request()
        if "REMINDER" in result or "Recovery, attempt" in result:
            return output_reply(honey="gold")
        await self.free.wait()
        return call_reply(text="Where was I?")

    def join_last_request(self) -> str:
        """Return all messages of the last request as one string."""
        return "\n".join(message.content for message in self.requests[-1])


def make_two_node_graph() -> GraphSpec:
    return GraphSpec(
        id="hive",
        nodes=(
            NodeSpec(id="gather", system_prompt="Gather.", output_keys=("nectar",)),
            NodeSpec(id="make", system_prompt="Make.", output_keys=("honey",), model_timeout_seconds=600),
        ),
        edges=(EdgeSpec(source="gather", target="make"),),
        entry_points=(EntryPointSpec(id="start", node_id="gather"),),
    )


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    service = await build(load_settings(storage=tmp_path, health_monitoring=SHORT_LIMITS))
    await service.start()
    yield service
    await service.stop()


async def start_run(service: Service, model: Digger) -> str:
    service.runtime.add_graph(make_two_node_graph(), model=model, agent_id="bee")
    return await service.runtime.trigger("start", {"message": "Make honey."}, graph_id="hive")


def list_interventions(events: Sequence[AgentEvent]) -> list[str]:
    return [f"{event.data['kind']} {event.data['outcome']}" for event in events]


async def test_hanging_worker_is_nudged_and_recovers_without_further_interventions(service: Service) -> None:
    """002 §11: it is found stuck, gets a nudge before its next turn, and completes its task."""
    model, interventions = Digger(), list[AgentEvent]()
    bus = service.bus
    bus.subscribe(interventions.append, name="test", types={EventType.INTERVENTION_RECORDED})
    # The call returns when somebody intervenes.
    bus.subscribe(lambda _: model.free.set(), name="way", types={EventType.NUDGE_SENT})
    with bus.expect(EventType.EXECUTION_COMPLETED, filter_agent="bee") as completion:
        run = await start_run(service, model)
        await completion.within(WAIT_SECONDS)
    result = await service.runtime.wait(run)
    await service.interventions.wait_until_idle()
    await bus.drain()

    assert result.succeeded
    assert "REMINDER" in model.join_last_request()
    assert list_interventions(interventions) == ["nudge done"]
    worker = service.monitor.get("bee")
    assert worker is not None
    assert worker.state is HealthState.HEALTHY


async def test_unresponsive_worker_is_escalated_terminated_and_recovered(
    service: Service,
) -> None:
    """
    002 §11: there is a nudge, an escalation, a termination that saves the state, and a recovery that
    completes the task.
    """
    model, interventions = Digger(), list[AgentEvent]()
    bus = service.bus
    bus.subscribe(interventions.append, name="test", types={EventType.INTERVENTION_RECORDED})
    with (
        bus.expect(EventType.ESCALATION_TRIGGERED, filter_agent="bee") as escalation,
        bus.expect(EventType.AGENT_TERMINATED, filter_agent="bee") as termination,
        bus.expect(EventType.RECOVERY_INITIATED, filter_agent="bee") as recovery,
        bus.expect(EventType.EXECUTION_COMPLETED, filter_agent="bee") as completion,
    ):
        await start_run(service, model)
        result = await escalation.within(WAIT_SECONDS)
        termination_event = await termination.within(WAIT_SECONDS)
        recovery_started = await recovery.within(WAIT_SECONDS)
        completion_event = await completion.within(WAIT_SECONDS)
    await service.interventions.wait_until_idle()
    await bus.drain()

    assert list_interventions(interventions) == [
        "nudge done",
        "escalate done",
        "terminate done",
        "recover done",
    ]
    assert result.session_id == termination_event.session_id == completion_event.session_id
    assert termination_event.data["confirmed"] is True
    assert termination_event.data["signature"]
    assert recovery_started.data["from_checkpoint"] == termination_event.data["checkpoint_id"] is not None
    assert completion_event.incarnation_id != termination_event.incarnation_id
    assert [message[0].content for message in model.requests].count("Gather.") == 1
    assert "Recovery, attempt 1" in model.join_last_request()
    store = service.runtime.session_store("hive")
    session = store.open(completion_event.session_id)
    assert store.read_state(completion_event.session_id).memory["honey"] == "gold"
    checkpoints = CheckpointStore(session.checkpoints, clock=service.clock, ids=str).list_checkpoints()
    assert termination_event.data["checkpoint_id"] in {checkpoint.checkpoint_id for checkpoint in checkpoints}
