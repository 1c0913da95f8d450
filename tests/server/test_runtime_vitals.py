"""The vital signs that events of the runtime's own workers give. The test sets the time."""

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
    """
    A model that responds from a list. A function in the list is awaited; at the end of the list it reports
    completion.
    """

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


class NoArguments(BaseModel):
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
        """Start another incarnation of the process, on the same folder."""
        self.bus = EventBus()
        self.bus.on_publish(self._apply_events)
        self.runtime = AgentRuntime(
            bus=self.bus,
            storage=self.path,
            clock=self.time,
            monotonic=self.time,
            sleep=self.time.sleep,
            disk=self.time.disk,
            guards=make_health_guard(self.settings, hold_seconds=hold_seconds),
        )

    def _apply_events(self, events: Sequence[AgentEvent]) -> None:
        for event in events:
            self.monitor.apply(event, self.time.now)

    async def load(self, **node: Any) -> None:
        fields: dict[str, Any] = {"system_prompt": "work", "model_timeout_seconds": 10_000} | node
        spec = NodeSpec(id="work", **fields)
        graph = GraphSpec(id="hive", nodes=(spec,), entry_points=(EntryPointSpec(id="e", node_id="work"),))
        self.runtime.add_graph(graph, model=self.model, tools=self.tools, agent_id=AGENT, primary=True)
        await self.runtime.start()

    async def begin_run(self, **input_data: Any) -> str:
        execution_id = await self.runtime.trigger("e", {"message": "go"}, **input_data)
        await self.time.settle()
        return execution_id

    async def run(self) -> ExecutionResult:
        return await self.runtime.wait(await self.begin_run())

    async def pass_time(self, minutes: float) -> None:
        await self.time.advance(minutes * MINUTE)
        self.monitor.advance(self.time.now)

    def make_hang(self, minutes: float) -> Callable[[], Awaitable[ModelReply]]:
        async def hang() -> ModelReply:
            await self.time.sleep(minutes * MINUTE)
            return ModelReply(text="at last")

        return hang

    def make_slow_tool(self, minutes: float, timeout: float | None = None) -> Tool:
        async def run(arguments: NoArguments) -> str:
            await self.time.sleep(minutes * MINUTE)
            return f"done at {self.time.now}"

        return Tool("dig", "Dig.", NoArguments, run, timeout_seconds=timeout)

    @property
    def health(self) -> WorkerHealth:
        health = self.monitor.get(AGENT)
        assert health is not None
        return health

    @property
    def finding_kinds(self) -> list[FindingKind]:
        return [finding.kind for finding in self.health.findings]


@pytest.fixture
async def watched_runtime(tmp_path: Path) -> AsyncIterator[MonitoredRuntime]:
    watched_runtime = MonitoredRuntime(tmp_path, FakeTime())
    yield watched_runtime
    await watched_runtime.runtime.stop()


def make_tool_reply(*tools: str) -> ModelReply:
    return ModelReply(tool_calls=tuple(ToolCall(f"c{n}", tool, "{}") for n, tool in enumerate(tools)))


# -- sessions and incarnations ------------------------------------------------------------------


async def test_finding_in_the_start_grace_opens_a_ticket_only_after_it(
    watched_runtime: MonitoredRuntime,
) -> None:
    """B1: findings within the start grace open no ticket."""
    watched_runtime.tools = [Tool("look", "Look.", NoArguments, lambda _: "the same")]
    watched_runtime.model.replies = [make_tool_reply("look")] * 4 + [watched_runtime.make_hang(60)]
    await watched_runtime.load(tools=("look",))
    await watched_runtime.begin_run()
    in_grace = {finding.kind: finding.ticket for finding in watched_runtime.health.findings}

    await watched_runtime.pass_time(2)

    assert in_grace[FindingKind.DOOM_LOOP] is False
    assert {finding.kind: finding.ticket for finding in watched_runtime.health.findings}[
        FindingKind.DOOM_LOOP
    ] is True


async def test_stall_is_measured_from_events_of_the_new_incarnation(
    watched_runtime: MonitoredRuntime,
) -> None:
    """B1: a day between two incarnations of a session is not a stall."""
    watched_runtime.model.replies = [watched_runtime.make_hang(600)]
    await watched_runtime.load()
    await watched_runtime.begin_run()
    session = watched_runtime.health.vitals.session_id
    await watched_runtime.runtime.stop()
    await watched_runtime.pass_time(24 * 60)

    watched_runtime.open()
    watched_runtime.model.replies = [watched_runtime.make_hang(600)]
    await watched_runtime.load()
    await watched_runtime.runtime.resume(session)
    await watched_runtime.time.settle()
    await watched_runtime.pass_time(3)
    kinds_after_restart = watched_runtime.finding_kinds
    await watched_runtime.pass_time(2)

    assert kinds_after_restart == []
    assert watched_runtime.finding_kinds == [FindingKind.STALL]
    assert watched_runtime.health.vitals.session_id == session


async def test_agent_is_unknown_before_its_first_run(watched_runtime: MonitoredRuntime) -> None:
    """B2: a graph that is loaded but idle is not a worker yet."""
    await watched_runtime.load()
    await watched_runtime.pass_time(60)

    assert watched_runtime.monitor.get(AGENT) is None


async def test_active_session_is_shown_instead_of_an_ended_one(watched_runtime: MonitoredRuntime) -> None:
    """B3: this holds even if the other session started and ended later. Both are monitored."""
    watched_runtime.model.replies = [watched_runtime.make_hang(60)]
    await watched_runtime.load(max_turns=5)
    await watched_runtime.begin_run()
    running = watched_runtime.health.vitals.session_id
    await watched_runtime.pass_time(1)
    # The entry point runs one execution at a time. Another session ends while this one hangs.
    other_runtime = AgentRuntime(
        bus=watched_runtime.bus, storage=watched_runtime.path / "other", clock=watched_runtime.time
    )
    graph = watched_runtime.runtime.get_graph()
    other_runtime.add_graph(graph, model=ListModel(), agent_id=AGENT)
    await other_runtime.start()
    ended_run = await other_runtime.wait(await other_runtime.trigger("e", {"message": "go"}))
    await other_runtime.stop()

    assert watched_runtime.health.vitals.session_id == running
    ended_session = watched_runtime.monitor.get(AGENT, ended_run.session_id)
    assert ended_session is not None
    assert ended_session.vitals.has_ended


async def test_session_status_follows_its_run(watched_runtime: MonitoredRuntime) -> None:
    """B4: the states are active, paused, completed, failed and cancelled."""
    await watched_runtime.load()

    def status() -> str:
        return str(summarise(watched_runtime.health, watched_runtime.time.now)["status"])

    await watched_runtime.run()
    result = [status()]
    watched_runtime.model.replies = [watched_runtime.make_hang(600)] * 3
    execution = await watched_runtime.begin_run()
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


async def test_failed_run_is_failed_but_not_failing(watched_runtime: MonitoredRuntime) -> None:
    """B4: the health of a run that has ended is not failing."""
    watched_runtime.model.replies = [RuntimeError("the model is broken")]
    await watched_runtime.load(model_attempts=1)

    result = await watched_runtime.run()

    assert not result.succeeded
    assert summarise(watched_runtime.health, watched_runtime.time.now)["status"] == "failed"
    assert watched_runtime.health.state is HealthState.HEALTHY


async def test_new_run_is_a_new_session_and_starts_a_new_trend(watched_runtime: MonitoredRuntime) -> None:
    """B5: the lower step count of the new run is not a stall."""
    watched_runtime.tools = [Tool("look", "Look.", NoArguments, lambda _: f"at {watched_runtime.time.now}")]
    watched_runtime.model.replies = [make_tool_reply("look")] * 5
    await watched_runtime.load(tools=("look",))
    await watched_runtime.run()
    first_vitals = watched_runtime.health.vitals
    watched_runtime.time.now += 1
    watched_runtime.model.replies = [watched_runtime.make_hang(1)]
    await watched_runtime.begin_run()
    second_vitals = watched_runtime.health.vitals

    assert (first_vitals.steps_total, second_vitals.steps_total) == (6, 0)
    assert first_vitals.session_id != second_vitals.session_id
    assert watched_runtime.finding_kinds == []


async def test_session_id_that_leaves_its_folder_is_rejected(watched_runtime: MonitoredRuntime) -> None:
    """B8: nothing runs, so there is no worker."""
    await watched_runtime.load()
    result = await watched_runtime.runtime.wait(
        await watched_runtime.runtime.trigger("e", session_id="../../etc")
    )

    assert result.error_type == InvalidSessionIdError.__name__
    assert "use 1 to 200 printable characters without '/'" in result.error
    assert watched_runtime.monitor.get(AGENT) is None


# -- waits and stalls ---------------------------------------------------------------------------


async def test_waiting_for_a_user_is_not_a_stall_and_silence_starts_at_the_reply(
    watched_runtime: MonitoredRuntime,
) -> None:
    """B17: in this test, the wait takes three hours."""
    watched_runtime.model.replies = [ModelReply(text="What would you like?"), watched_runtime.make_hang(600)]
    await watched_runtime.load(client_facing=True)
    await watched_runtime.begin_run()
    await watched_runtime.pass_time(180)
    wait_state = (watched_runtime.health.vitals.waiting, watched_runtime.finding_kinds)

    assert await watched_runtime.runtime.inject_input("work", "honey")
    await watched_runtime.time.settle()
    reply_time = watched_runtime.time.now
    await watched_runtime.pass_time(3.9)
    kinds_before = watched_runtime.finding_kinds
    await watched_runtime.pass_time(0.1)

    assert wait_state == (WaitingReason.USER_INPUT, [])
    assert kinds_before == []
    [finding] = watched_runtime.health.findings
    assert (finding.kind, finding.since) == (FindingKind.STALL, reply_time)


async def test_paused_run_does_not_stall(watched_runtime: MonitoredRuntime) -> None:
    """B18: the run was paused by the service, or stopped by its user."""
    watched_runtime.model.replies = [watched_runtime.make_hang(600)]
    await watched_runtime.load()
    await watched_runtime.runtime.pause_execution(await watched_runtime.begin_run())
    await watched_runtime.pass_time(180)

    assert (watched_runtime.health.vitals.waiting, watched_runtime.finding_kinds) == (
        WaitingReason.PAUSED,
        [],
    )


async def test_run_held_by_its_guard_is_not_a_stall_but_needs_an_intervention(
    watched_runtime: MonitoredRuntime,
) -> None:
    watched_runtime.open(hold_seconds=600 * MINUTE)
    watched_runtime.tools = [Tool("look", "Look.", NoArguments, lambda _: "the same")]
    watched_runtime.model.replies = [make_tool_reply("look")] * 99
    await watched_runtime.load(tools=("look",))
    await watched_runtime.begin_run()
    held_at = watched_runtime.time.now
    await watched_runtime.pass_time(50)

    worker, vitals = watched_runtime.health, watched_runtime.health.vitals
    wait = (describe_activity(vitals), vitals.waiting, vitals.waiting_since)
    assert FindingKind.STALL not in watched_runtime.finding_kinds
    assert FindingKind.DOOM_LOOP in watched_runtime.finding_kinds
    assert wait == (("held", "held by its guard: doom_loop"), WaitingReason.HELD, held_at)
    assert objections(worker, reasons(worker)) == []
    assert permit(ActionKind.NUDGE, Target.of(vitals), worker, stop_reason=None)

    watched_runtime.model.replies = [watched_runtime.make_hang(600)]
    await watched_runtime.runtime.inject_input("work", "stop looking")
    await watched_runtime.time.settle()

    assert watched_runtime.health.vitals.waiting is None


async def test_rate_limit_backoff_is_a_wait_and_not_a_stall(watched_runtime: MonitoredRuntime) -> None:
    """B18: the reason for the wait is shown."""
    watched_runtime.model.replies = [TransientModelError("rate limit", retry_after=30 * MINUTE)]
    await watched_runtime.load()
    await watched_runtime.begin_run()
    await watched_runtime.pass_time(20)
    wait_state = (watched_runtime.health.vitals.waiting, watched_runtime.finding_kinds)
    await watched_runtime.pass_time(20)

    assert wait_state == (WaitingReason.BACKOFF, [])
    assert watched_runtime.health.vitals.has_ended


async def test_model_call_that_hangs_before_the_first_step_is_found(
    watched_runtime: MonitoredRuntime,
) -> None:
    """B19, B25: it is found exactly at the threshold."""
    watched_runtime.model.replies = [watched_runtime.make_hang(600)]
    await watched_runtime.load()
    await watched_runtime.begin_run()
    await watched_runtime.pass_time(3.99)
    kinds_before = watched_runtime.finding_kinds
    await watched_runtime.pass_time(0.01)

    assert kinds_before == []
    assert watched_runtime.finding_kinds == [FindingKind.STALL]
    assert "in an LLM call" in watched_runtime.health.findings[0].evidence


async def test_fifteen_slow_calls_of_a_tool_in_one_step_are_no_stall(
    watched_runtime: MonitoredRuntime,
) -> None:
    """B20: each call is activity."""
    durations = iter(range(1, 16))

    async def dig(arguments: NoArguments) -> str:
        await watched_runtime.time.sleep(next(durations) * 3 * MINUTE)
        return f"done at {watched_runtime.time.now}"

    watched_runtime.tools = [Tool("dig", "Dig.", NoArguments, dig, timeout_seconds=50 * MINUTE)]
    watched_runtime.model.replies = [make_tool_reply(*["dig"] * 15)]
    await watched_runtime.load(tools=("dig",))
    await watched_runtime.begin_run()
    seen_kinds = []
    for _ in range(44):
        await watched_runtime.pass_time(1)
        seen_kinds += watched_runtime.finding_kinds

    assert seen_kinds == []
    assert watched_runtime.health.vitals.tool_calls_total == 14


async def test_tool_may_use_its_declared_time_and_is_cancelled_after_it(
    watched_runtime: MonitoredRuntime,
) -> None:
    """
    B21: 30 of 40 declared minutes are not a stall. After 40 minutes, the node continues without the tool.
    """
    watched_runtime.tools = [watched_runtime.make_slow_tool(100, timeout=40 * MINUTE)]
    watched_runtime.model.replies = [make_tool_reply("dig"), watched_runtime.make_hang(600)]
    await watched_runtime.load(tools=("dig",))
    await watched_runtime.begin_run()
    await watched_runtime.pass_time(30)
    tool = watched_runtime.health.vitals.open_tool
    run_task = (tool and (tool.tool, tool.timeout), watched_runtime.finding_kinds)
    await watched_runtime.pass_time(11)

    assert run_task == (("dig", 40 * MINUTE), [])
    assert (watched_runtime.health.vitals.tool, watched_runtime.health.vitals.error_count) == ("", 1)


async def test_process_frozen_in_a_tool_is_a_stall_after_the_declared_time(
    watched_runtime: MonitoredRuntime,
) -> None:
    """B21: it is found after 41 of 40 minutes. Nothing in that process can end the call."""
    watched_runtime.tools = [watched_runtime.make_slow_tool(100, timeout=40 * MINUTE)]
    watched_runtime.model.replies = [make_tool_reply("dig")]
    await watched_runtime.load(tools=("dig",))
    await watched_runtime.begin_run()
    watched_runtime.monitor.advance(watched_runtime.time.now + 39 * MINUTE)
    kinds_before = watched_runtime.finding_kinds
    watched_runtime.monitor.advance(watched_runtime.time.now + 41 * MINUTE)

    # The process sends nothing, not even heartbeats.
    assert kinds_before == [FindingKind.HEARTBEAT_MISSING]
    assert FindingKind.STALL in watched_runtime.finding_kinds


# -- restart ------------------------------------------------------------------------------------


async def test_loop_interrupted_by_a_restart_is_found_at_the_third_call(
    watched_runtime: MonitoredRuntime,
) -> None:
    """
    B33: both the monitor and the guard find it, although the restart is between calls two and three.
    (`test_runtime_workers` covers a kill.)
    """
    watched_runtime.tools = [Tool("look", "Look.", NoArguments, lambda _: "the same")]
    watched_runtime.model.replies = [
        make_tool_reply("look"),
        make_tool_reply("look"),
        watched_runtime.make_hang(600),
    ]
    await watched_runtime.load(tools=("look",))
    await watched_runtime.begin_run()
    session = watched_runtime.health.vitals.session_id
    kinds_before = watched_runtime.finding_kinds
    await watched_runtime.runtime.stop()

    watched_runtime.time.now += 1
    watched_runtime.open()
    prompts: list[str] = []

    async def record_prompt() -> ModelReply:
        prompts.append("asked")
        await asyncio.sleep(0)
        return make_tool_reply("look")

    watched_runtime.model.replies = [record_prompt, watched_runtime.make_hang(600)]
    await watched_runtime.load(tools=("look",))
    await watched_runtime.runtime.resume(session)
    await watched_runtime.time.settle()

    conversation = watched_runtime.path / "sessions" / session / "conversations" / "work" / "parts"
    texts = [part_file.read_text("utf-8") for part_file in sorted(conversation.iterdir())]
    assert kinds_before == []
    assert prompts == ["asked"]
    assert FindingKind.DOOM_LOOP in watched_runtime.finding_kinds
    assert "look" in texts[-1]
    assert "3 times" in texts[-1]
