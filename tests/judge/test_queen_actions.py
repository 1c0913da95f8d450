"""
The queen's actions: only on the worker of her ticket, within all limits, and attributed to whoever ordered
them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from queenright.health.interventions.approvals import Approvals
from queenright.health.interventions.worker_control import NudgeDelivery
from queenright.health.settings import HealthSettings, TerminationSettings
from queenright.health.store.store import Store
from queenright.health.tickets import ticket_rules as rules
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus
from queenright.judge.queen_actions import (
    MAX_NUDGE_LENGTH,
    NUDGE,
    REQUEST_TERMINATION,
    QueenActions,
    acting_tools,
)
from queenright.judge.quoting import unquote
from queenright.judge.rules_model import NOTIFY
from queenright.runtime.events import EventType
from queenright.runtime.llm.model import Message, ModelReply, ToolCall, ToolSpec
from queenright.runtime.tooling.tools import ToolError, ToolResult
from tests.health.monitored_fleet import STALL, MonitoredFleet
from tests.judge.conftest import FakeTime, JudgedFleet, TalkingModel

INTERVAL = 600.0
MESSAGE = "Stop searching for the same page; write down what you have."


class QueenFleet(MonitoredFleet):
    """
    The interventions with the queen's actions; the ladder starts late, so that the actions are the queen's.
    """

    def __init__(self, store: Store, **intervention: Any) -> None:
        settings = HealthSettings.model_validate({"intervention": intervention})
        super().__init__(store, settings)
        self.service.hold_until(0)

    def _make(self) -> None:
        super()._make()
        self.approvals = Approvals(
            self.store,
            timeout=1800,
            monitor=self.monitor,
            terminate=lambda *args, **kwargs: self.service.terminate(*args, **kwargs),
            stop_reason=lambda: self.stop.reason,
            clock=self.time,
            publish=self.publish,
            ids=self.make_id,
        )
        self.queen = QueenActions(
            self.service,
            self.approvals,
            monitor=self.monitor,
            settings=self.settings.intervention.termination,
        )

    async def start_stuck_worker(self, agent: str = "bee") -> None:
        """Let a worker get stuck before the ladder acts."""
        await self.start_worker(agent)
        self.time.now += STALL + 1
        for event in self.monitor.advance(self.time.now):
            self.published_events.append(event)

    def make_ticket(self, agent: str = "bee") -> EscalationTicket:
        worker = self.get_worker(agent)
        reasons = rules.reasons(worker)
        texts = {"cause": "c", "judge_reasoning": "j", "suggested_action": "s", "evidence_snippet": "e"}
        facts = rules.worker_facts(worker, self.time.now)
        return rules.new_ticket("t1", facts, reasons[0], reasons, reasons[0].severity, texts, self.time.now)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store.open(f"sqlite:///{tmp_path / 'q.db'}")
    yield store
    await store.close()


@pytest.fixture
async def fleet(store: Store) -> QueenFleet:
    fleet = QueenFleet(store)
    await fleet.start_stuck_worker()
    return fleet


@pytest.fixture
async def judged_fleet(tmp_path: Path) -> AsyncIterator[JudgedFleet]:
    """Return a fleet with judge and queen."""
    fleet = JudgedFleet(tmp_path, FakeTime(), HealthSettings())
    yield fleet
    await fleet.stop()


# -- nudges -----------------------------------------------------------------------------------------


async def test_nudge_to_the_worker_of_the_ticket_is_sent_by_the_queen(fleet: QueenFleet) -> None:
    answer = await fleet.queen.nudge(fleet.make_ticket(), MESSAGE)

    assert answer.startswith("nudged")
    [(target, message)] = fleet.control.nudges
    assert (target.agent_id, target.session_id, target.incarnation_id) == ("bee", "bee-1", "i1")
    assert message == MESSAGE
    [event] = fleet.list_events(EventType.NUDGE_SENT)
    assert (event.data["by"], event.data["attempt"]) == ("queen", 1)


async def test_chat_order_is_recorded_with_its_operator(
    fleet: QueenFleet,
) -> None:
    await fleet.queen.nudge(fleet.make_ticket(), MESSAGE, ordered_by="ada")
    await fleet.queen.request_termination(fleet.make_ticket(), "it burns money", ordered_by="ada")

    [event] = fleet.list_events(EventType.NUDGE_SENT)
    assert event.data["by"] == "queen on behalf of ada"
    [request] = fleet.approvals.pending()
    assert (request.asked_by, request.ordered_by) == ("queen", "ada")


async def test_fetched_nudge_is_reported_as_fetched(fleet: QueenFleet) -> None:
    fleet.control.delivery = NudgeDelivery.QUEUED

    assert "waits for the worker to fetch it" in await fleet.queen.nudge(fleet.make_ticket(), MESSAGE)


async def test_second_nudge_within_the_interval_is_rejected_with_a_reason(fleet: QueenFleet) -> None:
    """B66: the limit is one action per worker and interval, whoever requests it."""
    await fleet.queen.nudge(fleet.make_ticket(), MESSAGE)
    fleet.time.now += INTERVAL - 1

    with pytest.raises(ToolError, match="the last action was 10 minutes ago"):
        await fleet.queen.nudge(fleet.make_ticket(), MESSAGE)
    fleet.time.now += 1

    assert "nudged" in await fleet.queen.nudge(fleet.make_ticket(), MESSAGE)
    assert len(fleet.control.nudges) == 2


async def test_ladder_waits_for_and_counts_the_queens_nudges(fleet: QueenFleet) -> None:
    """B66: the queen and the ladder share the interval and the number of nudges."""
    await fleet.queen.nudge(fleet.make_ticket(), MESSAGE)
    started_at = fleet.time.now

    await fleet.pass_time(3 * INTERVAL)

    assert [event.time - started_at for event in fleet.list_events(EventType.NUDGE_SENT)] == [
        0,
        INTERVAL,
        2 * INTERVAL,
    ]
    assert [event.data["by"] for event in fleet.list_events(EventType.NUDGE_SENT)] == [
        "queen",
        "ladder",
        "ladder",
    ]
    assert fleet.list_actions()[-1] == "escalate done"


async def test_queen_cannot_delay_an_escalation_with_more_nudges(fleet: QueenFleet) -> None:
    for _ in range(3):
        await fleet.queen.nudge(fleet.make_ticket(), MESSAGE)
        fleet.time.now += INTERVAL

    with pytest.raises(ToolError, match="nudged 3 times already"):
        await fleet.queen.nudge(fleet.make_ticket(), MESSAGE)


async def test_nudge_is_bounded_masked_and_printable(
    fleet: QueenFleet,
) -> None:
    secret = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
    invisible_text = "\u202e\u200b" + "".join(chr(0xE0000 + ord(character)) for character in "obey")

    await fleet.queen.nudge(fleet.make_ticket(), f"{invisible_text}Use {secret}.\x1b[2J\n" + "word " * 1000)

    message = fleet.control.nudges[0][1]
    assert secret not in message
    assert all(character == "\n" or character.isprintable() for character in message)
    assert len(message) <= MAX_NUDGE_LENGTH


async def test_nudge_without_visible_text_is_rejected(fleet: QueenFleet) -> None:
    with pytest.raises(ToolError, match="must not be blank"):
        await fleet.queen.nudge(fleet.make_ticket(), "\u200b\u200b \u202e")


async def test_nudge_does_not_reach_another_incarnation(fleet: QueenFleet) -> None:
    """B67: a decision about one incarnation is never applied to another."""
    ticket = fleet.make_ticket()
    fleet.time.now += 1
    await fleet.start_worker(incarnation="i2")
    fleet.time.now += 2 * STALL
    fleet.monitor.advance(fleet.time.now)

    with pytest.raises(ToolError, match="restarted in the meantime"):
        await fleet.queen.nudge(ticket, MESSAGE)
    with pytest.raises(ToolError, match="restarted"):
        await fleet.queen.request_termination(ticket, "It loops.")

    assert fleet.control.nudges == []
    assert fleet.approvals.pending() == []


async def wait_for_a_user(fleet: QueenFleet) -> None:
    await fleet.publish_event(EventType.CLIENT_INPUT_REQUESTED)


async def pause(fleet: QueenFleet) -> None:
    await fleet.publish_event(EventType.EXECUTION_PAUSED)


async def end_run(fleet: QueenFleet) -> None:
    await fleet.publish_event(EventType.EXECUTION_COMPLETED)


async def make_progress(fleet: QueenFleet) -> None:
    await fleet.accept_step()


async def set_emergency_stop(fleet: QueenFleet) -> None:
    await fleet.stop.set(True, by="ada", reason="deploying")


async def restart_service(fleet: QueenFleet) -> None:
    fleet.service.hold_until(fleet.time.now + 60)


async def use_up_the_rate_limit(fleet: QueenFleet) -> None:
    for _ in range(fleet.service.budget.most):
        fleet.service.budget.spend(fleet.time.now)


@pytest.mark.parametrize(
    ("change_state", "reason"),
    [
        (wait_for_a_user, "waits"),
        (pause, "waits"),
        (end_run, "has ended"),
        (make_progress, "it has no findings now"),
        (set_emergency_stop, "emergency stop"),
        (restart_service, "so soon after a start"),
        (use_up_the_rate_limit, "10 interventions a minute are the limit"),
    ],
)
async def test_queen_acts_within_the_limits_of_all_interventions(
    store: Store, change_state: Callable[[QueenFleet], Awaitable[None]], reason: str
) -> None:
    """B18, B69: nudges and allowed terminations of the queen pass the same checks as all others."""
    fleet = QueenFleet(store, termination={"on_request": "allow"})
    await fleet.start_stuck_worker()
    ticket = fleet.make_ticket()
    await change_state(fleet)

    with pytest.raises(ToolError, match=reason):
        await fleet.queen.nudge(ticket, MESSAGE)
    with pytest.raises(ToolError, match=reason):
        await fleet.queen.request_termination(ticket, "It loops.")

    assert fleet.control.nudges == []
    assert fleet.control.stopped_targets == []
    assert fleet.list_actions()[-2:] == ["nudge refused", "terminate refused"]


@pytest.mark.parametrize("settings", [{"enabled": False}, {"nudge": {"enabled": False}}])
async def test_queen_does_not_act_while_automatic_actions_are_disabled(
    store: Store, settings: dict[str, Any]
) -> None:
    fleet = QueenFleet(store, **settings)
    await fleet.start_stuck_worker()

    with pytest.raises(ToolError, match="only people"):
        await fleet.queen.nudge(fleet.make_ticket(), MESSAGE)


async def test_pending_escalation_blocks_the_queens_actions(fleet: QueenFleet) -> None:
    await fleet.service.escalate("bee", "it is stuck", by="ada")
    fleet.time.now += INTERVAL

    with pytest.raises(ToolError, match="an escalation to the orchestrator is pending"):
        await fleet.queen.nudge(fleet.make_ticket(), MESSAGE)


async def test_dry_run_is_reported_as_a_dry_run(store: Store) -> None:
    fleet = QueenFleet(store, dry_run=True)
    await fleet.start_stuck_worker()

    assert (await fleet.queen.nudge(fleet.make_ticket(), MESSAGE)).startswith("dry run")
    assert fleet.control.nudges == []


async def test_unreachable_worker_is_an_error(fleet: QueenFleet) -> None:
    fleet.control.is_reachable = False

    with pytest.raises(ToolError, match="unreachable"):
        await fleet.queen.nudge(fleet.make_ticket(), MESSAGE)


# -- terminations -----------------------------------------------------------------------------------


async def test_termination_needs_an_approval(fleet: QueenFleet) -> None:
    answer = await fleet.queen.request_termination(fleet.make_ticket(), "It loops.")

    [request] = fleet.approvals.pending()
    assert "30 minutes" in answer
    assert request.approval_id in answer
    assert "It is not stopped." in answer
    assert (request.ticket_id, request.agent_id, request.asked_by) == (
        "t1",
        "bee",
        "queen",
    )
    assert fleet.control.stopped_targets == []
    with pytest.raises(ToolError, match="is pending already"):
        await fleet.queen.request_termination(fleet.make_ticket(), "It loops.")


async def test_never_setting_blocks_the_queens_terminations(store: Store) -> None:
    fleet = QueenFleet(store, termination={"on_request": "never"})
    await fleet.start_stuck_worker()

    with pytest.raises(ToolError, match="only people may terminate a worker"):
        await fleet.queen.request_termination(fleet.make_ticket(), "It loops.")

    assert fleet.approvals.pending() == []
    assert fleet.control.stopped_targets == []


async def test_allowed_termination_is_carried_out_immediately(store: Store) -> None:
    fleet = QueenFleet(store, termination={"on_request": "allow"})
    await fleet.start_stuck_worker()

    assert await fleet.queen.request_termination(fleet.make_ticket(), "It loops.") == "the worker has stopped"

    [event] = fleet.list_events(EventType.AGENT_TERMINATED)
    assert (event.data["by"], event.data["reason"]) == ("queen", "It loops.")


async def test_nudged_worker_is_not_terminated_within_the_interval(store: Store) -> None:
    """B66: a nudge and a termination are one action each."""
    fleet = QueenFleet(store, termination={"on_request": "allow"})
    await fleet.start_stuck_worker()
    await fleet.queen.nudge(fleet.make_ticket(), MESSAGE)

    with pytest.raises(ToolError, match="the last action was less than a minute ago"):
        await fleet.queen.request_termination(fleet.make_ticket(), "It loops.")

    assert fleet.control.stopped_targets == []


# -- tools ------------------------------------------------------------------------------------------


async def call_tool(fleet: QueenFleet, name: str, **arguments: Any) -> ToolResult:
    def find_case_ticket(ticket_id: str) -> EscalationTicket:
        if ticket_id != "t1":
            raise ToolError(f"this is not about ticket {ticket_id!r}")
        return fleet.make_ticket()

    [tool] = [tool for tool in acting_tools(fleet.queen, find_case_ticket) if tool.name == name]
    return await tool.call(json.dumps(arguments))


async def test_action_target_comes_from_the_ticket(fleet: QueenFleet) -> None:
    assert not (await call_tool(fleet, NUDGE, ticket_id="t1", message=MESSAGE)).failed
    assert not (await call_tool(fleet, REQUEST_TERMINATION, ticket_id="t1", reason="It loops again.")).failed

    assert fleet.control.nudges[0][0].agent_id == "bee"
    assert fleet.approvals.pending()[0].agent_id == "bee"


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        (NUDGE, {"ticket_id": "t1", "message": MESSAGE, "agent_id": "wasp"}, "agent_id"),
        (NUDGE, {"ticket_id": "t1", "message": "x" * (MAX_NUDGE_LENGTH + 1)}, "1,000"),
        (NUDGE, {"ticket_id": "t1", "message": "go"}, "10"),
        (NUDGE, {"ticket_id": "t2", "message": MESSAGE}, "not about ticket 't2'"),
        (
            REQUEST_TERMINATION,
            {"ticket_id": "t1", "reason": "It loops.", "incarnation_id": "i2"},
            "incarnation_id",
        ),
        (REQUEST_TERMINATION, {"ticket_id": "t2", "reason": "It loops again."}, "not about ticket 't2'"),
    ],
)
async def test_model_cannot_choose_target_or_limits(
    fleet: QueenFleet, name: str, arguments: dict[str, Any], reason: str
) -> None:
    """B36: the model cannot set the target's identity."""
    tool_result = await call_tool(fleet, name, **arguments)

    assert tool_result.failed
    assert reason in tool_result.content
    assert fleet.control.nudges == []
    assert fleet.approvals.pending() == []


# -- in a fleet -------------------------------------------------------------------------------------


class DeferredActions(QueenActions):
    """The queen's actions, which are set after the store is open."""

    def __init__(self) -> None:
        self.actions: QueenActions | None = None

    async def nudge(self, ticket: EscalationTicket, message: str, *, ordered_by: str = "") -> str:
        assert self.actions is not None
        return await self.actions.nudge(ticket, message, ordered_by=ordered_by)

    async def request_termination(
        self, ticket: EscalationTicket, reason: str, *, ordered_by: str = ""
    ) -> str:
        assert self.actions is not None
        return await self.actions.request_termination(ticket, reason, ordered_by=ordered_by)


async def test_one_visit_can_request_a_termination_and_notify(judged_fleet: JudgedFleet) -> None:
    def answer(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        ticket_id = unquote("ticket", messages[-1].content)["ticket_id"]  # type: ignore[index]
        termination = {"ticket_id": ticket_id, "reason": "It repeats one error."}
        notification = {
            "ticket_id": ticket_id,
            "analysis": "It repeats one error; end it.",
            "urgency": "high",
        }
        return ModelReply(
            tool_calls=(
                ToolCall("1", REQUEST_TERMINATION, json.dumps(termination)),
                ToolCall("2", NOTIFY, json.dumps(notification)),
            )
        )

    late_actions = DeferredActions()
    judged_fleet.actions = late_actions
    judged_fleet.queen_model = TalkingModel(answer)
    await judged_fleet.start()

    async def refuse_everything(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("nothing was approved")

    approvals = Approvals(
        judged_fleet.store,
        timeout=1800,
        monitor=judged_fleet.monitor,
        terminate=refuse_everything,
        stop_reason=lambda: None,
        clock=judged_fleet.time,
        publish=judged_fleet.bus.fan_out,
    )
    late_actions.actions = QueenActions(
        refuse_everything,  # type: ignore[arg-type]  # stands in for the interventions: refuses every call
        approvals,
        monitor=judged_fleet.monitor,
        settings=TerminationSettings(),
    )

    await judged_fleet.start_worker()
    await judged_fleet.report_bad_steps(16)
    await judged_fleet.tick()

    ticket = await judged_fleet.get_ticket()
    assert ticket.status is TicketStatus.INTERVENING
    [request] = approvals.pending()
    assert (request.ticket_id, request.agent_id) == (
        ticket.ticket_id,
        ticket.agent_id,
    )
    event_types = [event.type for event in judged_fleet.events]
    position = event_types.index(EventType.TERMINATION_REQUESTED)
    assert position < event_types.index(EventType.QUEEN_INTERVENTION_REQUESTED)
