"""Events of the runtime's own workers give the expected vital signs; the test sets the time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from queenright.health.action_kind import ActionKind
from queenright.health.detection.health_state import HealthState
from queenright.health.findings import FindingKind
from queenright.health.interventions.permit import permit
from queenright.health.interventions.target import Target
from queenright.health.monitoring.monitor import HealthMonitor, WorkerHealth
from queenright.health.monitoring.worker_summary import summarise
from queenright.health.settings import HealthSettings
from queenright.health.tickets.ticket_rules import objections, reasons
from queenright.instrumentation.identity import InvalidSessionIdError
from queenright.instrumentation.names import WaitingReason
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent
from queenright.runtime.execution import ExecutionResult
from queenright.runtime.graphs.graph import EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.llm.model import Message, ModelReply, OnText, ToolCall, ToolSpec, TransientModelError
from queenright.runtime.tooling.tools import Tool
from queenright.server.agents.node_guards import make_health_guard
from queenright.server.views.worker_rows import describe_activity
from tests.runtime.conftest import FakeTime

MINUTE = 60.0
AGENT = "bee"

Reply = ModelReply | Exception | Callable[[], Awaitable[ModelReply]]


class ListModel:
    """Responds from a list; a function in it is awaited; at the end of the list it reports completion."""

    name = "listed"

    def __init__(self) -> None:
        self.replies: Sequence[Reply] = ()

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        reply, self.replies = (
            (self.replies[0], self.replies[1:]) if self.replies else (ModelReply(text="done"), ())
        )
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, ModelReply) else await reply()


class Nothing(BaseModel):
    pass


class MonitoredRuntime:
    """A runtime with one worker, and a monitor that applies its events."""

    def __init__(self, path: Path, time: FakeTime) -> None:
        self.path, self.time = path, time
        self.settings = HealthSettings()
        self.monitor = HealthMonitor(self.settings)
        self.model = ListModel()
        self.tools: list[Tool] = []
        self.open()

    def open(self, hold_seconds: float = 0) -> None:
        """Start another incarnation of the process on the same folder."""
        self.bus = EventBus()
        self.bus.on_publish(self._see)
        self.runtime = AgentRuntime(
            bus=self.bus,
            storage=self.path,
            clock=self.time,
            monotonic=self.time,
            sleep=self.time.sleep,
            disk=self.time.disk,
            guards=make_health_guard(self.settings, hold_seconds=hold_seconds),
        )

    def _see(self, events: Sequence[AgentEvent]) -> None:
        for event in events:
            self.monitor.apply(event, self.time.now)

    async def load(self, **node: Any) -> None:
        fields: dict[str, Any] = {"system_prompt": "work", "model_timeout_seconds": 10_000} | node
        spec = NodeSpec(id="work", **fields)
        graph = GraphSpec(id="hive", nodes=(spec,), entry_points=(EntryPointSpec(id="e", node_id="work"),))
        self.runtime.add_graph(graph, model=self.model, tools=self.tools, agent_id=AGENT, primary=True)
        await self.runtime.start()

    async def begin(self, **given: Any) -> str:
        execution_id = await self.runtime.trigger("e", {"message": "go"}, **given)
        await self.time.settle()
        return execution_id

    async def run(self) -> ExecutionResult:
        return await self.runtime.wait(await self.begin())

    async def pass_time(self, minutes: float) -> None:
        await self.time.advance(minutes * MINUTE)
        self.monitor.advance(self.time.now)

    def hangs(self, minutes: float) -> Callable[[], Awaitable[ModelReply]]:
        async def hang() -> ModelReply:
            await self.time.sleep(minutes * MINUTE)
            return ModelReply(text="at last")

        return hang

    def slow_tool(self, minutes: float, timeout: float | None = None) -> Tool:
        async def run(given: Nothing) -> str:
            await self.time.sleep(minutes * MINUTE)
            return f"done at {self.time.now}"

        return Tool("dig", "Dig.", Nothing, run, timeout_seconds=timeout)

    @property
    def health(self) -> WorkerHealth:
        health = self.monitor.get(AGENT)
        assert health is not None
        return health

    @property
    def found(self) -> list[FindingKind]:
        return [finding.kind for finding in self.health.findings]


@pytest.fixture
async def watched_runtime(tmp_path: Path) -> AsyncIterator[MonitoredRuntime]:
    watched_runtime = MonitoredRuntime(tmp_path, FakeTime())
    yield watched_runtime
    await watched_runtime.runtime.stop()


def tool_reply(*tools: str) -> ModelReply:
    return ModelReply(tool_calls=tuple(ToolCall(f"c{n}", tool, "{}") for n, tool in enumerate(tools)))


# -- sessions and incarnations ------------------------------------------------------------------


async def test_no_ticket_for_a_finding_in_the_start_grace_and_one_after_it(
    watched_runtime: MonitoredRuntime,
) -> None:
    """B1: findings within the start grace open no ticket."""
    watched_runtime.tools = [Tool("look", "Look.", Nothing, lambda _: "the same")]
    watched_runtime.model.replies = [tool_reply("look")] * 4 + [watched_runtime.hangs(60)]
    await watched_runtime.load(tools=("look",))
    await watched_runtime.begin()
    in_grace = {f.kind: f.ticket for f in watched_runtime.health.findings}

    await watched_runtime.pass_time(2)

    assert in_grace[FindingKind.DOOM_LOOP] is False
    assert {f.kind: f.ticket for f in watched_runtime.health.findings}[FindingKind.DOOM_LOOP] is True


async def test_stall_is_counted_from_events_of_the_new_incarnation(watched_runtime: MonitoredRuntime) -> None:
    """B1: a day between two incarnations of a session is not a stall."""
    watched_runtime.model.replies = [watched_runtime.hangs(600)]
    await watched_runtime.load()
    await watched_runtime.begin()
    session = watched_runtime.health.vitals.session_id
    await watched_runtime.runtime.stop()
    await watched_runtime.pass_time(24 * 60)

    watched_runtime.open()
    watched_runtime.model.replies = [watched_runtime.hangs(600)]
    await watched_runtime.load()
    await watched_runtime.runtime.resume(session)
    await watched_runtime.time.settle()
    await watched_runtime.pass_time(3)
    fresh = watched_runtime.found
    await watched_runtime.pass_time(2)

    assert fresh == []
    assert watched_runtime.found == [FindingKind.STALL]
    assert watched_runtime.health.vitals.session_id == session


async def test_agent_is_unknown_before_its_first_run(watched_runtime: MonitoredRuntime) -> None:
    """B2: a loaded, idle graph is not a worker yet."""
    await watched_runtime.load()
    await watched_runtime.pass_time(60)

    assert watched_runtime.monitor.get(AGENT) is None


async def test_active_session_is_shown(watched_runtime: MonitoredRuntime) -> None:
    """B3: also if another session started and ended later; both are monitored."""
    watched_runtime.model.replies = [watched_runtime.hangs(60)]
    await watched_runtime.load(max_turns=5)
    await watched_runtime.begin()
    running = watched_runtime.health.vitals.session_id
    await watched_runtime.pass_time(1)
    # The entry point runs one at a time. Another session ends while this one hangs.
    other = AgentRuntime(
        bus=watched_runtime.bus, storage=watched_runtime.path / "other", clock=watched_runtime.time
    )
    graph = watched_runtime.runtime.get_graph()
    other.add_graph(graph, model=ListModel(), agent_id=AGENT)
    await other.start()
    done = await other.wait(await other.trigger("e", {"message": "go"}))
    await other.stop()

    assert watched_runtime.health.vitals.session_id == running
    over = watched_runtime.monitor.get(AGENT, done.session_id)
    assert over is not None
    assert over.vitals.has_ended


async def test_session_status_follows_its_run(watched_runtime: MonitoredRuntime) -> None:
    """B4: active, paused, completed, failed, cancelled."""
    await watched_runtime.load()

    def status() -> str:
        return str(summarise(watched_runtime.health, watched_runtime.time.now)["status"])

    await watched_runtime.run()
    result = [status()]
    watched_runtime.model.replies = [watched_runtime.hangs(600)] * 3
    execution = await watched_runtime.begin()
    result.append(status())
    await watched_runtime.runtime.pause_execution(execution)
    result.append(status())
    watched_runtime.time.now += 1
    await watched_runtime.runtime.resume(watched_runtime.health.vitals.session_id)
    await watched_runtime.time.settle()
    result.append(status())
    await watched_runtime.runtime.cancel_execution(execution)
    result.append(status())

    assert result == ["completed", "active", "paused", "active", "cancelled"]


async def test_failed_run_has_status_failed_and_is_not_failing(watched_runtime: MonitoredRuntime) -> None:
    """B4: the health of an ended run is not failing."""
    watched_runtime.model.replies = [RuntimeError("the model is broken")]
    await watched_runtime.load(model_attempts=1)

    result = await watched_runtime.run()

    assert not result.succeeded
    assert summarise(watched_runtime.health, watched_runtime.time.now)["status"] == "failed"
    assert watched_runtime.health.state is HealthState.HEALTHY


async def test_new_run_is_a_new_session_and_starts_a_new_trend(watched_runtime: MonitoredRuntime) -> None:
    """B5: its lower step count is not a stall."""
    watched_runtime.tools = [Tool("look", "Look.", Nothing, lambda _: f"at {watched_runtime.time.now}")]
    watched_runtime.model.replies = [tool_reply("look")] * 5
    await watched_runtime.load(tools=("look",))
    await watched_runtime.run()
    first = watched_runtime.health.vitals
    watched_runtime.time.now += 1
    watched_runtime.model.replies = [watched_runtime.hangs(1)]
    await watched_runtime.begin()
    second = watched_runtime.health.vitals

    assert (first.steps_total, second.steps_total) == (6, 0)
    assert first.session_id != second.session_id
    assert watched_runtime.found == []


async def test_session_outside_its_folder_is_refused(watched_runtime: MonitoredRuntime) -> None:
    """B8: nothing runs, so there is no worker."""
    await watched_runtime.load()
    result = await watched_runtime.runtime.wait(
        await watched_runtime.runtime.trigger("e", session_id="../../etc")
    )

    assert result.error_type == InvalidSessionIdError.__name__
    assert "use 1 to 200 printable characters without '/'" in result.error
    assert watched_runtime.monitor.get(AGENT) is None


# -- waits and stalls ---------------------------------------------------------------------------


async def test_waiting_for_a_user_is_not_a_stall_and_silence_restarts_at_the_reply(
    watched_runtime: MonitoredRuntime,
) -> None:
    """B17: here for three hours."""
    watched_runtime.model.replies = [ModelReply(text="What would you like?"), watched_runtime.hangs(600)]
    await watched_runtime.load(client_facing=True)
    await watched_runtime.begin()
    await watched_runtime.pass_time(180)
    waiting = (watched_runtime.health.vitals.waiting, watched_runtime.found)

    assert await watched_runtime.runtime.inject_input("work", "honey")
    await watched_runtime.time.settle()
    replied = watched_runtime.time.now
    await watched_runtime.pass_time(3.9)
    before = watched_runtime.found
    await watched_runtime.pass_time(0.1)

    assert waiting == (WaitingReason.USER_INPUT, [])
    assert before == []
    [finding] = watched_runtime.health.findings
    assert (finding.kind, finding.since) == (FindingKind.STALL, replied)


async def test_paused_run_does_not_stall(watched_runtime: MonitoredRuntime) -> None:
    """B18: paused by the service, or stopped by its user."""
    watched_runtime.model.replies = [watched_runtime.hangs(600)]
    await watched_runtime.load()
    await watched_runtime.runtime.pause_execution(await watched_runtime.begin())
    await watched_runtime.pass_time(180)

    assert (watched_runtime.health.vitals.waiting, watched_runtime.found) == (WaitingReason.PAUSED, [])


async def test_run_held_by_its_guard_is_not_a_stall_and_needs_an_intervention(
    watched_runtime: MonitoredRuntime,
) -> None:
    watched_runtime.open(hold_seconds=600 * MINUTE)
    watched_runtime.tools = [Tool("look", "Look.", Nothing, lambda _: "the same")]
    watched_runtime.model.replies = [tool_reply("look")] * 99
    await watched_runtime.load(tools=("look",))
    await watched_runtime.begin()
    held_at = watched_runtime.time.now
    await watched_runtime.pass_time(50)

    worker, vitals = watched_runtime.health, watched_runtime.health.vitals
    wait = (describe_activity(vitals), vitals.waiting, vitals.waiting_since)
    assert FindingKind.STALL not in watched_runtime.found
    assert FindingKind.DOOM_LOOP in watched_runtime.found
    assert wait == (("held", "held by its guard: doom_loop"), WaitingReason.HELD, held_at)
    assert objections(worker, reasons(worker)) == []
    assert permit(ActionKind.NUDGE, Target.of(vitals), worker, stop_reason=None)

    watched_runtime.model.replies = [watched_runtime.hangs(600)]
    await watched_runtime.runtime.inject_input("work", "stop looking")
    await watched_runtime.time.settle()

    assert watched_runtime.health.vitals.waiting is None


async def test_rate_limit_backoff_is_a_wait_and_not_a_stall(watched_runtime: MonitoredRuntime) -> None:
    """B18: the reason is shown."""
    watched_runtime.model.replies = [TransientModelError("rate limit", retry_after=30 * MINUTE)]
    await watched_runtime.load()
    await watched_runtime.begin()
    await watched_runtime.pass_time(20)
    waiting = (watched_runtime.health.vitals.waiting, watched_runtime.found)
    await watched_runtime.pass_time(20)

    assert waiting == (WaitingReason.BACKOFF, [])
    assert watched_runtime.health.vitals.has_ended


async def test_model_call_hanging_before_the_first_step_is_found(watched_runtime: MonitoredRuntime) -> None:
    """B19, B25: exactly at the threshold."""
    watched_runtime.model.replies = [watched_runtime.hangs(600)]
    await watched_runtime.load()
    await watched_runtime.begin()
    await watched_runtime.pass_time(3.99)
    before = watched_runtime.found
    await watched_runtime.pass_time(0.01)

    assert before == []
    assert watched_runtime.found == [FindingKind.STALL]
    assert "in an LLM call" in watched_runtime.health.findings[0].evidence


async def test_fifteen_slow_calls_of_a_tool_in_one_step_are_activity(
    watched_runtime: MonitoredRuntime,
) -> None:
    """B20: each call is activity."""
    durations = iter(range(1, 16))

    async def dig(given: Nothing) -> str:
        await watched_runtime.time.sleep(next(durations) * 3 * MINUTE)
        return f"done at {watched_runtime.time.now}"

    watched_runtime.tools = [Tool("dig", "Dig.", Nothing, dig, timeout_seconds=50 * MINUTE)]
    watched_runtime.model.replies = [tool_reply(*["dig"] * 15)]
    await watched_runtime.load(tools=("dig",))
    await watched_runtime.begin()
    seen = []
    for _ in range(44):
        await watched_runtime.pass_time(1)
        seen += watched_runtime.found

    assert seen == []
    assert watched_runtime.health.vitals.tool_calls_total == 14


async def test_tool_may_use_its_declared_time_and_is_cancelled_after_it(
    watched_runtime: MonitoredRuntime,
) -> None:
    """B21: 30 of 40 minutes are not a stall; after 40 minutes the node continues without the tool."""
    watched_runtime.tools = [watched_runtime.slow_tool(100, timeout=40 * MINUTE)]
    watched_runtime.model.replies = [tool_reply("dig"), watched_runtime.hangs(600)]
    await watched_runtime.load(tools=("dig",))
    await watched_runtime.begin()
    await watched_runtime.pass_time(30)
    tool = watched_runtime.health.vitals.open_tool
    running = (tool and (tool.tool, tool.timeout), watched_runtime.found)
    await watched_runtime.pass_time(11)

    assert running == (("dig", 40 * MINUTE), [])
    assert (watched_runtime.health.vitals.tool, watched_runtime.health.vitals.error_count) == ("", 1)


async def test_process_frozen_in_a_tool_is_a_stall_after_the_declared_time(
    watched_runtime: MonitoredRuntime,
) -> None:
    """B21: at 41 of 40 minutes; nothing in that process can end the call."""
    watched_runtime.tools = [watched_runtime.slow_tool(100, timeout=40 * MINUTE)]
    watched_runtime.model.replies = [tool_reply("dig")]
    await watched_runtime.load(tools=("dig",))
    await watched_runtime.begin()
    watched_runtime.monitor.advance(watched_runtime.time.now + 39 * MINUTE)
    before = watched_runtime.found
    watched_runtime.monitor.advance(watched_runtime.time.now + 41 * MINUTE)

    # The process sends nothing, not even heartbeats.
    assert before == [FindingKind.HEARTBEAT_MISSING]
    assert FindingKind.STALL in watched_runtime.found


# -- restart ------------------------------------------------------------------------------------


async def test_loop_interrupted_by_a_restart_is_found_at_the_same_call(
    watched_runtime: MonitoredRuntime,
) -> None:
    """B33: by the monitor and the guard, between call two and three (killed: `test_runtime_workers`)."""
    watched_runtime.tools = [Tool("look", "Look.", Nothing, lambda _: "the same")]
    watched_runtime.model.replies = [tool_reply("look"), tool_reply("look"), watched_runtime.hangs(600)]
    await watched_runtime.load(tools=("look",))
    await watched_runtime.begin()
    session = watched_runtime.health.vitals.session_id
    before = watched_runtime.found
    await watched_runtime.runtime.stop()

    watched_runtime.time.now += 1
    watched_runtime.open()
    prompts: list[str] = []

    async def record_prompt() -> ModelReply:
        prompts.append("asked")
        await asyncio.sleep(0)
        return tool_reply("look")

    watched_runtime.model.replies = [record_prompt, watched_runtime.hangs(600)]
    await watched_runtime.load(tools=("look",))
    await watched_runtime.runtime.resume(session)
    await watched_runtime.time.settle()

    conversation = watched_runtime.path / "sessions" / session / "conversations" / "work" / "parts"
    text = [part.read_text("utf-8") for part in sorted(conversation.iterdir())]
    assert before == []
    assert prompts == ["asked"]
    assert FindingKind.DOOM_LOOP in watched_runtime.found
    assert "look" in text[-1]
    assert "3 times" in text[-1]
