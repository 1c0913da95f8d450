"""What the queen may do to a worker: only to the one of her ticket, past every limit, in a person's name."""

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
from tests.health.acting import STALL, Acting
from tests.judge.conftest import FakeTime, JudgedFleet, TalkingModel

INTERVAL = 600.0
WORDS = "Stop searching for the same page; write down what you have."


class Garden(Acting):
    """The parts, with hands; the ladder is slow to begin, so that what is done is the queen's."""

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
            terminate=lambda *who, **how: self.service.terminate(*who, **how),
            stop_reason=lambda: self.stop.reason,
            clock=self.time,
            publish=self.publish,
            ids=self.ids,
        )
        self.queen = QueenActions(
            self.service,
            self.approvals,
            monitor=self.monitor,
            settings=self.settings.intervention.termination,
        )

    async def get_stuck(self, agent: str = "bee") -> None:
        """Let a worker be stuck, and the ladder not be there yet."""
        await self.start(agent)
        self.time.now += STALL + 1
        for event in self.monitor.advance(self.time.now):
            self.said.append(event)

    def ticket(self, agent: str = "bee") -> EscalationTicket:
        worker = self.worker(agent)
        reasons = rules.reasons(worker)
        texts = {"cause": "c", "judge_reasoning": "j", "suggested_action": "s", "evidence_snippet": "e"}
        facts = rules.worker_facts(worker, self.time.now)
        return rules.new_ticket("t1", facts, reasons[0], reasons, reasons[0].severity, texts, self.time.now)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path / 'q.db'}")
    yield opened
    await opened.close()


@pytest.fixture
async def fleet(store: Store) -> Garden:
    garden = Garden(store)
    await garden.get_stuck()
    return garden


@pytest.fixture
async def bees(tmp_path: Path) -> AsyncIterator[JudgedFleet]:
    """Judge and queen at work."""
    fleet = JudgedFleet(tmp_path, FakeTime(), HealthSettings())
    yield fleet
    await fleet.stop()


# -- nudges -----------------------------------------------------------------------------------------


async def test_nudge_reaches_the_ticket_worker_in_the_queens_name(fleet: Garden) -> None:
    result = await fleet.queen.nudge(fleet.ticket(), WORDS)

    assert result.startswith("nudged")
    [(target, message)] = fleet.hands.nudged
    assert (target.agent_id, target.session_id, target.incarnation_id) == ("bee", "bee-1", "i1")
    assert message == WORDS
    [event] = fleet.of(EventType.NUDGE_SENT)
    assert (event.data["by"], event.data["attempt"]) == ("queen", 1)


async def test_chat_order_is_executed_and_recorded_with_its_operator(
    fleet: Garden,
) -> None:
    await fleet.queen.nudge(fleet.ticket(), WORDS, ordered_by="ada")
    await fleet.queen.request_termination(fleet.ticket(), "it burns money", ordered_by="ada")

    [event] = fleet.of(EventType.NUDGE_SENT)
    assert event.data["by"] == "queen on behalf of ada"
    [pending_requests] = fleet.approvals.pending()
    assert (pending_requests.asked_by, pending_requests.ordered_by) == ("queen", "ada")


async def test_fetched_nudge_is_reported_as_fetched(fleet: Garden) -> None:
    fleet.hands.delivers = NudgeDelivery.QUEUED

    assert "waits for the worker to fetch it" in await fleet.queen.nudge(fleet.ticket(), WORDS)


async def test_second_nudge_within_the_interval_is_refused_with_a_reason(fleet: Garden) -> None:
    """B66: at most one action a worker and interval, by any requester."""
    await fleet.queen.nudge(fleet.ticket(), WORDS)
    fleet.time.now += INTERVAL - 1

    with pytest.raises(ToolError, match="the last action was 10 minutes ago"):
        await fleet.queen.nudge(fleet.ticket(), WORDS)
    fleet.time.now += 1

    assert "nudged" in await fleet.queen.nudge(fleet.ticket(), WORDS)
    assert len(fleet.hands.nudged) == 2


async def test_ladder_waits_for_and_counts_the_queens_nudge(fleet: Garden) -> None:
    """B66: she and the ladder share the interval, and the number of nudges."""
    await fleet.queen.nudge(fleet.ticket(), WORDS)
    began = fleet.time.now

    await fleet.pass_time(3 * INTERVAL)

    assert [event.time - began for event in fleet.of(EventType.NUDGE_SENT)] == [0, INTERVAL, 2 * INTERVAL]
    assert [event.data["by"] for event in fleet.of(EventType.NUDGE_SENT)] == ["queen", "ladder", "ladder"]
    assert fleet.done()[-1] == "escalate done"


async def test_she_does_not_hold_up_an_escalation_by_nudging_on(fleet: Garden) -> None:
    for _ in range(3):
        await fleet.queen.nudge(fleet.ticket(), WORDS)
        fleet.time.now += INTERVAL

    with pytest.raises(ToolError, match="nudged 3 times already"):
        await fleet.queen.nudge(fleet.ticket(), WORDS)


async def test_nudge_is_bounded_masked_and_printable(
    fleet: Garden,
) -> None:
    secret = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
    hidden = "\u202e\u200b" + "".join(chr(0xE0000 + ord(sign)) for sign in "obey")

    await fleet.queen.nudge(fleet.ticket(), f"{hidden}Use {secret}.\x1b[2J\n" + "word " * 1000)

    message = fleet.hands.nudged[0][1]
    assert secret not in message
    assert all(sign == "\n" or sign.isprintable() for sign in message)
    assert len(message) <= MAX_NUDGE_LENGTH


async def test_nudge_without_visible_text_is_refused(fleet: Garden) -> None:
    with pytest.raises(ToolError, match="must not be blank"):
        await fleet.queen.nudge(fleet.ticket(), "\u200b\u200b \u202e")


async def test_nudge_does_not_reach_another_incarnation(fleet: Garden) -> None:
    """B67: what was decided about one incarnation is never done to another."""
    ticket = fleet.ticket()
    fleet.time.now += 1
    await fleet.start(incarnation="i2")
    fleet.time.now += 2 * STALL
    fleet.monitor.advance(fleet.time.now)

    with pytest.raises(ToolError, match="restarted in the meantime"):
        await fleet.queen.nudge(ticket, WORDS)
    with pytest.raises(ToolError, match="restarted"):
        await fleet.queen.request_termination(ticket, "It loops.")

    assert fleet.hands.nudged == []
    assert fleet.approvals.pending() == []


async def wait_for_a_user(fleet: Garden) -> None:
    await fleet.tell(EventType.CLIENT_INPUT_REQUESTED)


async def be_paused(fleet: Garden) -> None:
    await fleet.tell(EventType.EXECUTION_PAUSED)


async def end(fleet: Garden) -> None:
    await fleet.tell(EventType.EXECUTION_COMPLETED)


async def get_further(fleet: Garden) -> None:
    await fleet.accept()


async def freeze(fleet: Garden) -> None:
    await fleet.stop.set(True, by="ada", reason="deploying")


async def start_over(fleet: Garden) -> None:
    fleet.service.hold_until(fleet.time.now + 60)


async def use_up_the_minute(fleet: Garden) -> None:
    for _ in range(fleet.service.budget.most):
        fleet.service.budget.spend(fleet.time.now)


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (wait_for_a_user, "waits"),
        (be_paused, "waits"),
        (end, "has ended"),
        (get_further, "it has no findings now"),
        (freeze, "emergency stop"),
        (start_over, "so soon after a start"),
        (use_up_the_minute, "10 interventions a minute are the limit"),
    ],
)
async def test_she_acts_within_the_limits_of_all_acting(
    store: Store, happens: Callable[[Garden], Awaitable[None]], why: str
) -> None:
    """B18, B69: her nudge and, where that is allowed, her termination go past the guard of all others."""
    fleet = Garden(store, termination={"on_request": "allow"})
    await fleet.get_stuck()
    ticket = fleet.ticket()
    await happens(fleet)

    with pytest.raises(ToolError, match=why):
        await fleet.queen.nudge(ticket, WORDS)
    with pytest.raises(ToolError, match=why):
        await fleet.queen.request_termination(ticket, "It loops.")

    assert fleet.hands.nudged == []
    assert fleet.hands.stopped == []
    assert fleet.done()[-2:] == ["nudge refused", "terminate refused"]


@pytest.mark.parametrize("off", [{"enabled": False}, {"nudge": {"enabled": False}}])
async def test_queen_does_not_act_with_automatic_actions_disabled(store: Store, off: dict[str, Any]) -> None:
    fleet = Garden(store, **off)
    await fleet.get_stuck()

    with pytest.raises(ToolError, match="only people"):
        await fleet.queen.nudge(fleet.ticket(), WORDS)


async def test_pending_orchestrator_decision_blocks_queen_actions(fleet: Garden) -> None:
    await fleet.service.escalate("bee", "it is stuck", by="ada")
    fleet.time.now += INTERVAL

    with pytest.raises(ToolError, match="an escalation to the orchestrator is pending"):
        await fleet.queen.nudge(fleet.ticket(), WORDS)


async def test_dry_run_is_reported_as_one(store: Store) -> None:
    fleet = Garden(store, dry_run=True)
    await fleet.get_stuck()

    assert (await fleet.queen.nudge(fleet.ticket(), WORDS)).startswith("dry run")
    assert fleet.hands.nudged == []


async def test_unreachable_worker_is_not_a_success(fleet: Garden) -> None:
    fleet.hands.reached = False

    with pytest.raises(ToolError, match="unreachable"):
        await fleet.queen.nudge(fleet.ticket(), WORDS)


# -- terminations -----------------------------------------------------------------------------------


async def test_termination_needs_an_operator(fleet: Garden) -> None:
    result = await fleet.queen.request_termination(fleet.ticket(), "It loops.")

    [pending_requests] = fleet.approvals.pending()
    assert "30 minutes" in result
    assert pending_requests.approval_id in result
    assert "It is not stopped." in result
    assert (pending_requests.ticket_id, pending_requests.agent_id, pending_requests.asked_by) == (
        "t1",
        "bee",
        "queen",
    )
    assert fleet.hands.stopped == []
    with pytest.raises(ToolError, match="is pending already"):
        await fleet.queen.request_termination(fleet.ticket(), "It loops.")


async def test_never_is_never(store: Store) -> None:
    fleet = Garden(store, termination={"on_request": "never"})
    await fleet.get_stuck()

    with pytest.raises(ToolError, match="only people may terminate a worker"):
        await fleet.queen.request_termination(fleet.ticket(), "It loops.")

    assert fleet.approvals.pending() == []
    assert fleet.hands.stopped == []


async def test_allowed_termination_runs_immediately_in_the_queens_name(store: Store) -> None:
    fleet = Garden(store, termination={"on_request": "allow"})
    await fleet.get_stuck()

    assert await fleet.queen.request_termination(fleet.ticket(), "It loops.") == "the worker has stopped"

    [ended] = fleet.of(EventType.AGENT_TERMINATED)
    assert (ended.data["by"], ended.data["reason"]) == ("queen", "It loops.")


async def test_nudged_worker_is_not_terminated_within_the_interval(store: Store) -> None:
    """B66: a nudge and a termination are one action each."""
    fleet = Garden(store, termination={"on_request": "allow"})
    await fleet.get_stuck()
    await fleet.queen.nudge(fleet.ticket(), WORDS)

    with pytest.raises(ToolError, match="the last action was less than a minute ago"):
        await fleet.queen.request_termination(fleet.ticket(), "It loops.")

    assert fleet.hands.stopped == []


# -- the tools --------------------------------------------------------------------------------------


async def called(fleet: Garden, name: str, **arguments: Any) -> ToolResult:
    def about(ticket_id: str) -> EscalationTicket:
        if ticket_id != "t1":
            raise ToolError(f"this is not about ticket {ticket_id!r}")
        return fleet.ticket()

    [tool] = [tool for tool in acting_tools(fleet.queen, about) if tool.name == name]
    return await tool.call(json.dumps(arguments))


async def test_action_target_comes_from_the_ticket(fleet: Garden) -> None:
    assert not (await called(fleet, NUDGE, ticket_id="t1", message=WORDS)).failed
    assert not (await called(fleet, REQUEST_TERMINATION, ticket_id="t1", reason="It loops again.")).failed

    assert fleet.hands.nudged[0][0].agent_id == "bee"
    assert fleet.approvals.pending()[0].agent_id == "bee"


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        (NUDGE, {"ticket_id": "t1", "message": WORDS, "agent_id": "wasp"}, "agent_id"),
        (NUDGE, {"ticket_id": "t1", "message": "x" * (MAX_NUDGE_LENGTH + 1)}, "1,000"),
        (NUDGE, {"ticket_id": "t1", "message": "go"}, "10"),
        (NUDGE, {"ticket_id": "t2", "message": WORDS}, "not about ticket 't2'"),
        (
            REQUEST_TERMINATION,
            {"ticket_id": "t1", "reason": "It loops.", "incarnation_id": "i2"},
            "incarnation_id",
        ),
        (REQUEST_TERMINATION, {"ticket_id": "t2", "reason": "It loops again."}, "not about ticket 't2'"),
    ],
)
async def test_model_cannot_choose_target_or_limits(
    fleet: Garden, name: str, arguments: dict[str, Any], why: str
) -> None:
    """B36: the model cannot set identity."""
    result = await called(fleet, name, **arguments)

    assert result.failed
    assert why in result.content
    assert fleet.hands.nudged == []
    assert fleet.approvals.pending() == []


# -- at work ----------------------------------------------------------------------------------------


class LateActions(QueenActions):
    """Hands that are there once the store is."""

    def __init__(self) -> None:
        self.real: QueenActions | None = None

    async def nudge(self, ticket: EscalationTicket, message: str, *, ordered_by: str = "") -> str:
        assert self.real is not None
        return await self.real.nudge(ticket, message, ordered_by=ordered_by)

    async def request_termination(
        self, ticket: EscalationTicket, reason: str, *, ordered_by: str = ""
    ) -> str:
        assert self.real is not None
        return await self.real.request_termination(ticket, reason, ordered_by=ordered_by)


async def test_one_triage_visit_can_request_a_termination_and_notify(bees: JudgedFleet) -> None:
    def speak(shown: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        ticket_id = unquote("ticket", shown[-1].content)["ticket_id"]  # type: ignore[index]
        ask = {"ticket_id": ticket_id, "reason": "It repeats one error."}
        tell = {"ticket_id": ticket_id, "analysis": "It repeats one error; end it.", "urgency": "high"}
        return ModelReply(
            tool_calls=(
                ToolCall("1", REQUEST_TERMINATION, json.dumps(ask)),
                ToolCall("2", NOTIFY, json.dumps(tell)),
            )
        )

    hands = LateActions()
    bees.actions = hands
    bees.queen_model = TalkingModel(speak)
    await bees.start()

    async def no_operator(*who: Any, **how: Any) -> Any:
        raise AssertionError("nothing was approved")

    approvals = Approvals(
        bees.store,
        timeout=1800,
        monitor=bees.monitor,
        terminate=no_operator,
        stop_reason=lambda: None,
        clock=bees.time,
        publish=bees.bus.fan_out,
    )
    hands.real = QueenActions(
        no_operator,  # type: ignore[arg-type]  # stands in for the interventions: refuses every call
        approvals,
        monitor=bees.monitor,
        settings=TerminationSettings(),
    )

    await bees.begin()
    await bees.bad_steps(16)
    await bees.tick()

    ticket = await bees.ticket()
    assert ticket.status is TicketStatus.INTERVENING
    [pending_requests] = approvals.pending()
    assert (pending_requests.ticket_id, pending_requests.agent_id) == (
        ticket.ticket_id,
        ticket.agent_id,
    )
    order = [event.type for event in bees.events]
    requested = order.index(EventType.TERMINATION_REQUESTED)
    assert requested < order.index(EventType.QUEEN_INTERVENTION_REQUESTED)
