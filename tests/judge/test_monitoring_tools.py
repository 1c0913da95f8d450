"""The monitoring tools in a runtime without a service: what they know is what the sessions' logs say."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from queenright.health.settings import HealthSettings
from queenright.health.store import Store
from queenright.health.ticket_service import TicketService
from queenright.health.tickets import TicketStatus
from queenright.instrumentation import Worker
from queenright.instrumentation.telemetry import Telemetry
from queenright.judge.logged_workers import LoggedWorkers
from queenright.judge.monitoring_tools import register_worker_monitoring_tools
from queenright.judge.quoting import unquote
from queenright.judge.rules_model import EMIT, NOTIFY, SUMMARY
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.graphs.graph import EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.llm.model import ModelReply, ToolCall
from queenright.runtime.storage.session_store import (
    ExecutionState,
    SessionState,
    SessionStatus,
    SessionStore,
    execution_key,
)
from queenright.runtime.tooling.tools import ToolRegistry, ToolResult
from tests.runtime.conftest import FakeTime, ScriptedModel

MINUTE = 60.0
SETTINGS = HealthSettings()


class Watch:
    """A watcher's tools over a folder of sessions, and workers that write there."""

    def __init__(self, path: Path, time: FakeTime) -> None:
        self.path, self.time = path, time
        self.sessions = SessionStore(path, clock=time)
        self.store = Store.open(f"sqlite:///{path / 'tickets.db'}")
        self.bus = EventBus()
        self.events: list[AgentEvent] = []
        self.bus.subscribe(self.events.append, name="test")
        self.tickets = TicketService(self.store, settings=SETTINGS, clock=time, publish=self.bus.fan_out)
        self.workers = LoggedWorkers(self.sessions, settings=SETTINGS, clock=time, disk=time.disk)
        self.registry = ToolRegistry()
        register_worker_monitoring_tools(
            self.registry, workers=self.workers, tickets=self.tickets, clock=time, graph_id="watch"
        )

    # -- what workers do ------------------------------------------------------------------------

    def begin(self, session_id: str, agent: str = "scribe") -> None:
        session = self.sessions.create(
            graph_id="writing", entry_point="start", agent_id=agent, session_id=session_id
        )

        def change(state: SessionState) -> None:
            state.executions[execution_key("writing", "start")] = ExecutionState(
                execution_id="run-1",
                graph_id="writing",
                entry_point="start",
                status=SessionStatus.ACTIVE,
                incarnation_id="life-1",
                started_at=self.time.now,
                updated_at=self.time.now,
            )

        self.sessions.update(session, change)

    def change(self, session_id: str, **fields: Any) -> None:
        def change(state: SessionState) -> None:
            [run] = state.executions.values()
            for name, value in fields.items():
                setattr(run, name, value)
            run.updated_at = self.time.now

        self.sessions.update(self.sessions.open(session_id), change)

    def steps(self, session_id: str, *verdicts: str, life: str = "life-1", text: str = "same error") -> None:
        """Write the step log as the runtime's own workers do, a second a step."""
        worker = Worker(
            "scribe",
            session_id=session_id,
            incarnation_id=life,
            graph_id="writing",
            telemetry=Telemetry.muted(),
            registry=CollectorRegistry(),
            storage=self.path,
            clock=self.time,
        )
        worker.start()
        for verdict in verdicts:
            self.time.now += 1
            with worker.step("write") as step:
                step.verdict(verdict, text)
        worker.close()

    # -- what the watcher does ------------------------------------------------------------------

    async def call(self, tool: str, **arguments: Any) -> ToolResult:
        return await self.registry.call(ToolCall("c", tool, json.dumps(arguments)))

    async def summary(self, **arguments: Any) -> dict[str, Any]:
        result = await self.call(SUMMARY, **arguments)
        found = unquote("worker", result.content)
        assert found is not None, result.content
        return found

    async def published(self, event_type: EventType) -> list[AgentEvent]:
        await self.bus.drain()
        return [event for event in self.events if event.type is event_type]


@pytest.fixture
async def watch(tmp_path: Path) -> AsyncIterator[Watch]:
    watch = Watch(tmp_path, FakeTime())
    yield watch
    await watch.bus.close()
    await watch.store.close()


def ticket(**fields: Any) -> str:
    draft = {
        "severity": "high",
        "cause": "scribe repeats itself",
        "judge_reasoning": "16 bad steps and nothing new",
        "suggested_action": "look at the error",
        "evidence_snippet": "same error",
    }
    return json.dumps(draft | fields)


# -- which session ------------------------------------------------------------------------------


async def test_summary_without_a_session_is_an_error(watch: Watch) -> None:
    """B2: no sessions at all."""
    assert await watch.summary() == {"status": "no_active_session"}
    assert (await watch.call(EMIT, ticket_json=ticket())).failed


async def test_ended_sessions_are_not_selected(watch: Watch) -> None:
    """B2: ten looks at finished ones open nothing."""
    watch.begin("old")
    watch.steps("old", *["RETRY"] * 25)
    watch.change("old", status=SessionStatus.COMPLETED)

    for _ in range(10):
        assert await watch.summary() == {"status": "no_active_session"}
        assert (await watch.call(EMIT, ticket_json=ticket())).failed
    assert await watch.tickets.history() == []


async def test_active_session_precedes_a_newer_ended_one(watch: Watch) -> None:
    """B3: whatever the folders' times are."""
    watch.begin("at-work")
    watch.steps("at-work", "ACCEPT")
    watch.time.now += MINUTE
    watch.begin("over")
    watch.steps("over", "ACCEPT")
    watch.change("over", status=SessionStatus.COMPLETED)

    assert (await watch.summary())["session_id"] == "at-work"


async def test_newest_event_selects_among_active_sessions_and_both_are_readable(watch: Watch) -> None:
    """B3: not the newest session, and not the newest folder."""
    watch.begin("first")
    watch.time.now += MINUTE
    watch.begin("second")
    watch.steps("second", "ACCEPT")
    watch.steps("first", "RETRY", "RETRY")
    (watch.path / "sessions" / "second" / "touched").write_text("a file's time is no sign of life")

    assert (await watch.summary())["session_id"] == "first"
    assert (await watch.summary(session_id="second"))["total_steps"] == 1


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (SessionStatus.ACTIVE, "active"),
        (SessionStatus.PAUSED, "paused"),
        (SessionStatus.COMPLETED, "completed"),
        (SessionStatus.FAILED, "failed"),
        (SessionStatus.CANCELLED, "cancelled"),
    ],
)
async def test_session_summary_shows_the_current_state(
    watch: Watch, status: SessionStatus, expected: str
) -> None:
    """B4: active, paused, completed, failed, cancelled."""
    watch.begin("one")
    watch.steps("one", "ACCEPT")
    watch.change("one", status=status)

    assert (await watch.summary(session_id="one"))["status"] == expected


async def test_unknown_status_of_another_version_has_no_stall(watch: Watch) -> None:
    """B4: neither healthy nor critical."""
    watch.begin("one")
    watch.steps("one", "ACCEPT")
    file = watch.path / "sessions" / "one" / "state.json"
    file.write_text(file.read_text("utf-8").replace('"active"', '"hibernating"'), "utf-8")
    watch.time.now += 60 * MINUTE

    summary = await watch.summary()

    assert (summary["status"], summary["stall_minutes"], summary["findings"]) == ("unknown", None, [])


async def test_different_session_has_its_own_trend(watch: Watch) -> None:
    """B5: a step count that went down is no stall."""
    watch.begin("first")
    watch.steps("first", *["RETRY"] * 12)
    before = await watch.summary()
    watch.change("first", status=SessionStatus.COMPLETED)
    watch.begin("second")
    watch.steps("second", "CONTINUE")

    after = await watch.summary()

    assert (before["total_steps"], before["steps_since_last_accept"]) == (12, 12)
    assert (after["session_id"], after["total_steps"], after["steps_since_last_accept"]) == ("second", 1, 0)
    assert after["findings"] == []


async def test_resumed_session_is_active_again(watch: Watch) -> None:
    watch.begin("one")
    watch.steps("one", "RETRY")
    watch.change("one", status=SessionStatus.FAILED)
    over = await watch.summary(session_id="one")
    watch.time.now += MINUTE
    watch.change("one", status=SessionStatus.ACTIVE, incarnation_id="life-2")
    watch.steps("one", "RETRY", life="life-2")

    summary = await watch.summary()

    assert (over["status"], summary["status"]) == ("failed", "active")
    assert (summary["incarnation_id"], summary["total_steps"], summary["steps_since_last_accept"]) == (
        "life-2",
        2,
        1,
    )


@pytest.mark.parametrize("session_id", ["../../etc", "..", "a/b", "a\\b"])
async def test_a_session_outside_its_folder_is_refused(watch: Watch, session_id: str) -> None:
    """B8: with words that a model can act on."""
    result = await watch.call(SUMMARY, session_id=session_id)

    assert result.failed
    assert "a session id must not contain a path separator or '..'" in result.content


async def test_corrupt_state_or_misplaced_folder_hides_no_other_session(watch: Watch) -> None:
    """B6: what cannot be read is skipped."""
    watch.begin("torn")
    (watch.path / "sessions" / "torn" / "state.json").write_bytes(b'{"session_id": "to')
    watch.begin("strange")
    (watch.path / "sessions" / "strange" / "logs" / "tool_logs.jsonl").mkdir(parents=True)
    watch.begin("good")
    watch.steps("good", "ACCEPT")

    assert (await watch.summary())["session_id"] == "good"
    assert await watch.summary(session_id="torn") == {"status": "no_active_session"}


# -- what is seen in it -------------------------------------------------------------------------


async def test_second_check_reads_only_new_entries(watch: Watch) -> None:
    """B7: what was read before is not read again, however much it is."""
    watch.begin("one")
    watch.steps("one", *["RETRY"] * 50)
    await watch.summary()
    log = watch.path / "sessions" / "one" / "logs" / "tool_logs.jsonl"
    content = log.read_bytes()
    head = content.index(b"\n") + 1
    log.write_bytes(content[:head] + b"x" * (len(content) - head - 1) + b"\n")
    watch.steps("one", "RETRY")

    summary = await watch.summary()

    assert (summary["total_steps"], summary["steps_since_last_accept"]) == (51, 51)


async def test_no_stall_ticket_in_the_start_grace_and_one_after_it(watch: Watch) -> None:
    """B1: counted from the life's own events, not from those of the one before."""
    watch.begin("one")
    watch.steps("one", "ACCEPT")
    watch.time.now += 24 * 60 * MINUTE
    watch.change("one", incarnation_id="life-2")

    fresh = await watch.summary()
    refused = await watch.call(EMIT, ticket_json=ticket(severity="critical"))
    watch.time.now += 16 * MINUTE
    later = await watch.summary()

    assert (fresh["stall_minutes"], fresh["findings"]) == (0.0, [])
    assert refused.failed
    assert [(f["kind"], f["ticket"]) for f in later["findings"]] == [("stall", True)]
    assert later["stall_minutes"] == 16.0


async def test_worker_hanging_before_its_first_step_is_found(watch: Watch) -> None:
    """B19: there is no log yet."""
    watch.begin("one")
    watch.time.now += 16 * MINUTE

    summary = await watch.summary()

    assert (summary["total_steps"], summary["stall_minutes"]) == (0, 16.0)
    assert [f["kind"] for f in summary["findings"]] == ["stall"]


async def test_looking_moves_no_clock(watch: Watch) -> None:
    """B24."""
    watch.begin("one")
    watch.steps("one", "ACCEPT")
    for _ in range(11):
        watch.time.now += MINUTE
        summary = await watch.summary()

    assert summary["stall_minutes"] == 11.0


async def test_runtime_node_waiting_for_its_user_is_reported_as_waiting(tmp_path: Path) -> None:
    """B17: three hours, then the reply, then a model that hangs: the stall counts from the reply."""
    time = FakeTime()
    hangs = NodeSpec(id="chat", system_prompt="chat", client_facing=True, model_timeout_seconds=10_000)
    graph = GraphSpec(id="talk", nodes=(hangs,), entry_points=(EntryPointSpec(id="e", node_id="chat"),))
    model = ScriptedModel([ModelReply(text="What would you like?")])

    class Hanging(ScriptedModel):
        async def complete(self, messages: Any, tools: Any, on_text: Any = None) -> ModelReply:
            if not model.replies:
                await time.sleep(9_000)
            return await model.complete(messages, tools, on_text)

    runtime = AgentRuntime(
        bus=EventBus(), storage=tmp_path, clock=time, monotonic=time, sleep=time.sleep, disk=time.disk
    )
    runtime.add_graph(graph, model=Hanging(), agent_id="talker", primary=True)
    workers = LoggedWorkers(runtime.session_store(), settings=SETTINGS, clock=time, disk=time.disk)
    await runtime.start()
    await runtime.trigger("e", {"message": "hello"})
    await time.advance(180 * MINUTE)
    waiting = await workers.find("talker", "")
    assert waiting is not None
    state = (waiting.vitals.waiting, waiting.findings)

    assert await runtime.inject_input("chat", "honey")
    await time.advance(16 * MINUTE)
    hanging = await workers.find("talker", "")
    await runtime.stop()

    assert state == ("user_input", ())
    assert hanging is not None
    assert hanging.vitals.waiting is None
    [finding] = hanging.findings
    assert (finding.kind, finding.since) == ("stall", time.now - 16 * MINUTE)


# -- tickets ------------------------------------------------------------------------------------


async def stuck(watch: Watch) -> None:
    watch.begin("one")
    watch.time.now += SETTINGS.judge.start_grace_seconds
    watch.steps("one", *["RETRY"] * 16)


async def test_ticket_names_the_found_worker_and_its_graph(watch: Watch) -> None:
    """B36, B63: who it is about is not the model's to say."""
    await stuck(watch)

    answer = json.loads((await watch.call(EMIT, ticket_json=ticket())).content)

    [event] = await watch.published(EventType.WORKER_ESCALATION_TICKET)
    assert (answer["change"], answer["severity"]) == ("opened", "high")
    assert (event.agent_id, event.session_id, event.graph_id) == ("scribe", "one", "writing")
    assert event.data["ticket"]["steps_since_last_accept"] == 16


async def test_the_same_condition_again_is_counted(watch: Watch) -> None:
    """B37: one ticket."""
    await stuck(watch)

    for _ in range(3):
        await watch.call(EMIT, ticket_json=ticket())

    [tickets] = await watch.tickets.history()
    assert tickets.occurrences == 3
    assert len(await watch.published(EventType.WORKER_ESCALATION_TICKET)) == 1


async def test_ticket_names_the_checked_worker(watch: Watch) -> None:
    await stuck(watch)
    watch.begin("newer")
    watch.steps("newer", "ACCEPT")

    await watch.summary(session_id="one")
    await watch.call(EMIT, ticket_json=ticket())

    [tickets] = await watch.tickets.history()
    assert tickets.session_id == "one"


async def test_invalid_ticket_is_refused_by_field_and_not_published(watch: Watch) -> None:
    """B35."""
    await stuck(watch)

    refused = await watch.call(EMIT, ticket_json='{"severity": "extreme"}')

    assert refused.failed
    assert all(part in refused.content for part in ("severity", "low, medium, high, critical"))
    assert "cause: is required" in refused.content
    assert await watch.published(EventType.WORKER_ESCALATION_TICKET) == []


async def test_operator_is_notified_once_at_least_at_ticket_severity(watch: Watch) -> None:
    """B49: a second time, or about nothing, is an error."""
    await stuck(watch)
    ticket_id = json.loads((await watch.call(EMIT, ticket_json=ticket())).content)["ticket_id"]
    arguments = {"ticket_id": ticket_id, "analysis": "scribe repeats one error.", "urgency": "low"}

    first = await watch.call(NOTIFY, **arguments)
    second = await watch.call(NOTIFY, **arguments)
    unknown = await watch.call(NOTIFY, **(arguments | {"ticket_id": "t-404"}))

    [event] = await watch.published(EventType.QUEEN_INTERVENTION_REQUESTED)
    assert (first.failed, second.failed, unknown.failed) == (False, True, True)
    assert "is intervening already" in second.content
    assert "'t-404'" in unknown.content
    assert (event.data["urgency"], event.data["queen_graph_id"]) == ("high", "watch")
    [tickets] = await watch.tickets.history()
    assert tickets.status is TicketStatus.INTERVENING


async def test_the_tools_are_registered_once(watch: Watch) -> None:
    assert set(watch.registry.names) == {SUMMARY, EMIT, NOTIFY}
    with pytest.raises(ValueError, match="registered twice"):
        register_worker_monitoring_tools(
            watch.registry, workers=watch.workers, tickets=watch.tickets, clock=watch.time
        )
