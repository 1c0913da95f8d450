"""
Agents in the service's own runtime go through the same intervention ladder as others, even if they loop fast.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from queenright.runtime.events import AgentEvent, EventType
from tests.server.agents.parts import SEARCH, AgentService, run_agent_service, write_files
from tests.server.agents.test_watched import select_events
from tests.waiting import until

AGENT = '''
import asyncio

from queenright.runtime.agents.agent_spec import AgentSpec
from queenright.runtime.llm.model import ModelReply, ToolCall


class Circling:
    """Does the same again, as fast as it can, until it reads a reminder."""

    name = "circling"

    def __init__(self):
        self.asked = 0

    async def complete(self, messages, tools, on_text=None):
        self.asked += 1
        await asyncio.sleep(0)
        if any("REMINDER" in message.content for message in messages):
            return ModelReply(tool_calls=(ToolCall(f"c{self.asked}", "set_output", '{"honey": "gold"}'),))
        return REPLY


provider = Circling
agent = AgentSpec.model_validate(
    {
        "name": "looper",
        "graph": {
            "nodes": [{"id": "a", "system_prompt": "Seek.", "tools": ["search"], "output_keys": ["honey"]}],
            "entry_points": [{"id": "start", "node_id": "a"}],
        },
    }
)
'''
REPLIES = {
    "replies with text": 'ModelReply(text="I am on it.")',
    "repeats a call": """ModelReply(tool_calls=(ToolCall(f"c{self.asked}", "search", '{"q": "honey"}'),))""",
}
GRACE = {"judge": {"start_grace_seconds": 1.5}}


async def start_run(home: AgentService) -> tuple[str, list[AgentEvent]]:
    events: list[AgentEvent] = []
    home.service.bus.subscribe(events.append, name="test", filter_agent="looper")
    response = await home.request("POST", "/api/agents/looper/chat", json={"message": "go"})
    return response["execution_id"], events


@pytest.mark.parametrize("reply_kind", REPLIES)
async def test_fast_loop_pauses_until_the_agent_is_nudged(tmp_path: Path, reply_kind: str) -> None:
    """The loop makes its twenty bad steps before the first check may open a ticket, and is not terminated."""
    write_files(
        tmp_path / "agents" / "looper", agent=AGENT.replace("REPLY", REPLIES[reply_kind]), tools=SEARCH
    )
    settings = GRACE | {"intervention": {"quiet_seconds": 4}}
    async with run_agent_service(tmp_path, agents={"load": ["looper"]}, health_monitoring=settings) as home:
        run, events = await start_run(home)
        result = await asyncio.wait_for(home.service.agents.get("looper").runtime.wait(run), 30)
        await home.service.bus.drain()

    ticket_event = next(
        candidate for candidate in events if candidate.type is EventType.WORKER_ESCALATION_TICKET
    )
    kinds = [event.type for event in events]
    first_positions = [
        kinds.index(kind) for kind in (EventType.WORKER_ESCALATION_TICKET, EventType.NUDGE_SENT)
    ]
    assert result.succeeded
    assert ticket_event.data["ticket"]["severity"] == "critical"
    assert first_positions == sorted(first_positions)
    assert not select_events(events, EventType.EXECUTION_FAILED)
    assert len(select_events(events, EventType.LLM_CALL_COMPLETED)) < 25


async def test_paused_run_fails_without_an_intervention(tmp_path: Path) -> None:
    """With the ladder disabled, the run waits for the judge and then fails."""
    reply = REPLIES["replies with text"]
    write_files(tmp_path / "agents" / "looper", agent=AGENT.replace("REPLY", reply), tools=SEARCH)
    settings = {
        "judge": {"start_grace_seconds": 0.5, "interval_seconds": 0.5, "triage_timeout_seconds": 1},
        "intervention": {"enabled": False},
    }
    async with run_agent_service(tmp_path, agents={"load": ["looper"]}, health_monitoring=settings) as home:
        run, events = await start_run(home)
        await until(
            lambda: select_events(events, EventType.QUEEN_INTERVENTION_REQUESTED),
            "the queen requests a person",
        )
        running = not select_events(events, EventType.EXECUTION_FAILED)
        result = await asyncio.wait_for(home.service.agents.get("looper").runtime.wait(run), 30)

    assert running
    assert not result.succeeded
    assert "retry_storm" in result.error_type
