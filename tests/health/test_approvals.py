"""Requests to stop a worker, on a real store: an approved request is checked again, and carried out once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection

from queenright.health.interventions.approval import (
    Approval,
    ApprovalStatus,
    approval_table,
    call_to_action,
    void_reason,
)
from queenright.health.interventions.approvals import ApprovalClosedError, ApprovalNotFoundError, Approvals
from queenright.health.interventions.intervention import Intervention, InterventionOutcome
from queenright.health.interventions.permit import ActionRefusedError
from queenright.health.settings import RetentionSettings
from queenright.health.store.retention import prune
from queenright.health.store.store import Store, StoreError
from queenright.runtime.events import EventType
from tests.health.acting import STALL, Acting

TIMEOUT = 1800.0


class Asking(Acting):
    """The monitor and the interventions, with an approver and without automatic actions."""

    def __init__(self, store: Store, **intervention: Any) -> None:
        super().__init__(store, **({"enabled": False} | intervention))

    def _make(self) -> None:
        super()._make()
        self.cut: Callable[[], Awaitable[Any]] | None = None
        self.approvals = Approvals(
            self.store,
            timeout=TIMEOUT,
            monitor=self.monitor,
            terminate=self._terminate,
            stop_reason=lambda: self.stop.reason,
            clock=self.time,
            publish=self.publish,
            ids=self.ids,
        )

    async def _terminate(self, *who: Any, **how: Any) -> Intervention:
        if self.cut is not None:
            await self.cut()
        return await self.service.terminate(*who, **how)

    async def restart(self) -> None:
        await self.approvals.close()
        await super().restart()
        await self.approvals.load()

    async def get_stuck(self) -> None:
        await self.start()
        await self.pass_time(STALL + 1)

    async def ask(self, reason: str = "It loops.") -> Approval:
        return await self.approvals.request(self.worker(), ticket_id="t1", reason=reason, by="queen")

    async def look(self, **how: Any) -> None:
        """Carry out everything that is due."""
        await self.approvals.advance(self.time.now, **how)
        await self.approvals.wait_until_idle()

    async def latest(self) -> Approval:
        [approval, *_] = await self.approvals.history(limit=1)
        return approval


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path / 'q.db'}")
    yield opened
    await opened.close()


@pytest.fixture
async def fleet(store: Store) -> Asking:
    asking = Asking(store)
    await asking.get_stuck()
    return asking


async def test_approved_termination_names_its_approver(fleet: Asking) -> None:
    request = await fleet.ask("It loops.")

    approval = await fleet.approvals.approve(request.approval_id, by="ada", reason="looked at it")

    assert (approval.status, approval.outcome, approval.is_open) == (
        ApprovalStatus.APPROVED,
        InterventionOutcome.DONE,
        False,
    )
    [ended] = fleet.of(EventType.AGENT_TERMINATED)
    assert ended.data["by"] == "ada"
    assert ended.data["intervention_id"] == approval.intervention_id
    assert all(part in ended.data["reason"] for part in ("It loops.", "ada", "looked at it"))
    assert len(fleet.hands.stopped) == 1
    assert await fleet.approvals.find(request.approval_id) == approval
    assert fleet.approvals.pending() == []


async def test_request_and_answer_are_logged_before_any_action(fleet: Asking) -> None:
    request = await fleet.ask()
    fleet.hands.last_words = lambda: order.append("stopped")
    order: list[str] = []
    await fleet.approvals.approve(request.approval_id, by="ada")

    [requested] = fleet.of(EventType.TERMINATION_REQUESTED)
    assert requested.data == {
        "approval_id": request.approval_id,
        "ticket_id": "t1",
        "reason": "It loops.",
        "by": "queen",
        "expires_at": request.created_at + TIMEOUT,
    }
    [decided] = fleet.of(EventType.TERMINATION_DECIDED)
    assert decided.data["status"] == "approved"
    assert fleet.said.index(decided) < fleet.said.index(fleet.of(EventType.AGENT_TERMINATED)[0])


async def progress(fleet: Asking) -> None:
    fleet.time.now += 1
    await fleet.accept()


async def wait_for_a_user(fleet: Asking) -> None:
    await fleet.tell(EventType.CLIENT_INPUT_REQUESTED)


async def end(fleet: Asking) -> None:
    await fleet.tell(EventType.EXECUTION_COMPLETED)


async def live_again(fleet: Asking) -> None:
    fleet.time.now += 1
    await fleet.start(incarnation="i2")
    await fleet.pass_time(2 * STALL)


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (progress, "made progress"),
        (wait_for_a_user, "waits"),
        (end, "has ended"),
        (live_again, "restarted in the meantime"),
    ],
)
async def test_obsolete_request_is_void_when_answered(
    fleet: Asking, happens: Callable[[Asking], Awaitable[None]], why: str
) -> None:
    """B69: the permit is checked for an approved action too. B67: another incarnation is not stopped."""
    request = await fleet.ask()
    await happens(fleet)

    with pytest.raises(ApprovalClosedError, match=why):
        await fleet.approvals.approve(request.approval_id, by="ada")

    assert fleet.hands.stopped == []
    assert (await fleet.latest()).status is ApprovalStatus.VOID
    assert fleet.of(EventType.TERMINATION_DECIDED)[-1].data["status"] == "void"


async def test_request_is_void_for_another_incarnation(fleet: Asking) -> None:
    """B67: only the incarnation differs: the worker runs, makes no progress and is in trouble as before."""
    request = await fleet.ask()
    assert void_reason(request, fleet.worker()) is None
    another = request.model_copy(update={"incarnation_id": "i0"})

    assert void_reason(another, fleet.worker()) == "the worker was restarted in the meantime"


async def test_request_about_an_earlier_incarnation_is_void(fleet: Asking) -> None:
    """B67: the request becomes void without an answer, because its worker has gone."""
    request = await fleet.ask()
    fleet.time.now += 1
    await fleet.start(incarnation="i2")
    await fleet.pass_time(STALL + 1)
    assert fleet.time.now < request.expires_at

    await fleet.look()

    assert fleet.approvals.pending() == []
    latest = await fleet.latest()
    assert (latest.status, latest.decision_reason) == (
        ApprovalStatus.VOID,
        "the worker was restarted in the meantime",
    )


async def test_person_who_ordered_a_termination_in_chat_may_approve_it(fleet: Asking) -> None:
    """The queen requested it and may not approve it. A person who may terminate workers may also approve."""
    request = await fleet.approvals.request(
        fleet.worker(), ticket_id="t1", reason="It loops.", by="queen", ordered_by="ada"
    )
    with pytest.raises(ActionRefusedError, match="somebody else must approve it"):
        await fleet.approvals.approve(request.approval_id, by="queen")

    approval = await fleet.approvals.approve(request.approval_id, by="ada")

    assert (approval.asked_by, approval.ordered_by, approval.decided_by) == ("queen", "ada", "ada")
    assert "ada" in call_to_action(request)
    assert "It loops." in call_to_action(request)
    [requested] = fleet.of(EventType.TERMINATION_REQUESTED)
    assert requested.data["by"] == "queen on behalf of ada"
    [ended] = fleet.of(EventType.AGENT_TERMINATED)
    assert all(part in ended.data["reason"] for part in ("It loops.", "queen", "ada"))


async def test_progress_voids_a_request(fleet: Asking) -> None:
    await fleet.ask()
    await progress(fleet)

    await fleet.approvals.observe(fleet.worker())

    assert fleet.approvals.pending() == []
    assert (await fleet.latest()).decision_reason == "it has made progress since"


async def test_progress_before_the_termination_begins_prevents_it(fleet: Asking) -> None:
    request = await fleet.ask()

    async def meanwhile() -> None:
        await progress(fleet)

    fleet.cut = meanwhile
    with pytest.raises(ApprovalClosedError, match="made progress"):
        await fleet.approvals.approve(request.approval_id, by="ada")

    assert fleet.hands.stopped == []
    assert (await fleet.latest()).status is ApprovalStatus.VOID


async def test_emergency_stop_refuses_approval_and_keeps_the_request(fleet: Asking) -> None:
    request = await fleet.ask()
    await fleet.stop.set(True, by="ada", reason="deploying")

    with pytest.raises(ActionRefusedError, match="emergency stop"):
        await fleet.approvals.approve(request.approval_id, by="ada")

    assert [approval.approval_id for approval in fleet.approvals.pending()] == [request.approval_id]
    await fleet.stop.set(False, by="ada", reason="done")
    assert (await fleet.approvals.approve(request.approval_id, by="ada")).outcome is InterventionOutcome.DONE


async def test_unanswered_request_expires(fleet: Asking) -> None:
    request = await fleet.ask()
    assert fleet.approvals.next_deadline() == request.expires_at

    fleet.time.now = request.expires_at
    await fleet.look(begin=False)

    assert (await fleet.latest()).status is ApprovalStatus.EXPIRED
    with pytest.raises(ApprovalClosedError, match="expired"):
        await fleet.approvals.approve(request.approval_id, by="ada")


async def test_late_answer_is_ignored_even_before_the_deadline_check(
    fleet: Asking,
) -> None:
    request = await fleet.ask()
    fleet.time.now = request.expires_at + 1

    with pytest.raises(ApprovalClosedError, match="no answer in time"):
        await fleet.approvals.approve(request.approval_id, by="ada")

    assert fleet.hands.stopped == []


async def test_second_request_for_an_incarnation_is_refused_with_a_reason(fleet: Asking) -> None:
    request = await fleet.ask()

    with pytest.raises(ActionRefusedError, match=f"approval {request.approval_id} is pending already"):
        await fleet.ask()

    assert len(fleet.approvals.pending()) == 1


async def test_new_incarnation_gets_a_new_request(fleet: Asking) -> None:
    first = await fleet.ask()
    await live_again(fleet)

    second = await fleet.ask()

    assert [approval.approval_id for approval in fleet.approvals.pending()] == [second.approval_id]
    old = await fleet.approvals.find(first.approval_id)
    assert old is not None
    assert old.status is ApprovalStatus.VOID


async def test_denial_holds_for_half_an_hour(fleet: Asking) -> None:
    request = await fleet.ask()
    await fleet.approvals.deny(request.approval_id, by="ada", reason="let it finish")

    with pytest.raises(ActionRefusedError, match="ada denied it: let it finish; ask again in 30 minutes"):
        await fleet.ask()
    fleet.time.now += TIMEOUT

    assert (await fleet.ask()).is_pending


@pytest.mark.parametrize("name", ["queen", " Queen "])
async def test_requester_cannot_approve(fleet: Asking, name: str) -> None:
    request = await fleet.ask()

    with pytest.raises(ActionRefusedError, match="somebody else must approve it"):
        await fleet.approvals.approve(request.approval_id, by=name)

    assert fleet.hands.stopped == []


async def test_unknown_approval_is_an_error(fleet: Asking) -> None:
    with pytest.raises(ApprovalNotFoundError, match="'nothing'"):
        await fleet.approvals.deny("nothing", by="ada")


async def test_concurrent_approvals_terminate_once(fleet: Asking) -> None:
    request = await fleet.ask()

    both = await asyncio.gather(
        fleet.approvals.approve(request.approval_id, by="ada"),
        fleet.approvals.approve(request.approval_id, by="bob"),
        return_exceptions=True,
    )

    assert sorted(type(result).__name__ for result in both) == ["Approval", "ApprovalClosedError"]
    assert len(fleet.hands.stopped) == 1


async def test_advance_does_not_begin_an_approval_in_progress(fleet: Asking) -> None:
    request = await fleet.ask()
    looks: list[asyncio.Task[None]] = []
    publish = fleet.approvals._publish

    def look_at_once(*events: Any) -> None:
        publish(*events)
        looks.append(asyncio.ensure_future(fleet.approvals.advance(fleet.time.now)))

    fleet.approvals._publish = look_at_once
    approval = await fleet.approvals.approve(request.approval_id, by="ada")
    await asyncio.gather(*looks)
    await fleet.approvals.wait_until_idle()

    assert len(fleet.hands.stopped) == 1
    assert (await fleet.latest()) == approval
    assert approval.outcome is InterventionOutcome.DONE


async def test_healthy_worker_gets_no_request(store: Store) -> None:
    fleet = Asking(store)
    await fleet.start()

    with pytest.raises(ActionRefusedError, match="it no longer has findings"):
        await fleet.ask()


async def test_provider_failure_gets_no_request(store: Store) -> None:
    fleet = Asking(store)
    await fleet.start()
    for _ in range(8):
        await fleet.tell(EventType.LLM_CALL_COMPLETED, error_type="RateLimitError", error="429")
        await fleet.pass_time(30)

    with pytest.raises(ActionRefusedError, match="provider"):
        await fleet.ask()


async def test_dismissing_a_ticket_voids_its_request(fleet: Asking) -> None:
    await fleet.ask()

    await fleet.approvals.void_for_closed_ticket("another", "its ticket is dismissed")
    assert len(fleet.approvals.pending()) == 1
    await fleet.approvals.void_for_closed_ticket("t1", "its ticket is dismissed")

    assert (await fleet.latest()).decision_reason == "its ticket is dismissed"


async def test_failed_termination_is_published_and_may_be_requested_again(fleet: Asking) -> None:
    fleet.hands.confirms = False
    request = await fleet.ask()

    approval = await fleet.approvals.approve(request.approval_id, by="ada")

    assert (approval.status, approval.outcome) == (ApprovalStatus.APPROVED, InterventionOutcome.UNCONFIRMED)
    assert (await fleet.ask()).is_pending


async def test_requests_and_answers_have_no_secrets(fleet: Asking) -> None:
    secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEF"
    request = await fleet.ask(f"It prints {secret} again and again.")

    denied = await fleet.approvals.deny(request.approval_id, by="ada", reason=f"rotate {secret}")

    events = denied.model_dump_json() + "".join(str(event.data) for event in fleet.said)
    assert secret not in events


async def test_request_has_deadline_and_command(fleet: Asking) -> None:
    request = await fleet.ask("It\nloops.")

    result = call_to_action(request)

    assert "It loops." in result
    assert f"queenright approvals approve {request.approval_id}" in result
    assert "\n" not in result


# -- restarts ---------------------------------------------------------------------------------------


async def test_pending_requests_survive_a_restart(fleet: Asking) -> None:
    request = await fleet.ask()

    await fleet.restart()

    assert [approval.approval_id for approval in fleet.approvals.pending()] == [request.approval_id]
    assert (await fleet.approvals.approve(request.approval_id, by="ada")).outcome is InterventionOutcome.DONE


async def test_unstarted_approval_runs_once_after_the_quiet_period(fleet: Asking) -> None:
    request = await fleet.ask()
    await _approve_and_die(fleet, request)

    await fleet.restart()
    await fleet.look(begin=False)
    assert fleet.hands.stopped == []
    await fleet.look()
    await fleet.look()

    assert len(fleet.hands.stopped) == 1
    assert (await fleet.latest()).outcome is InterventionOutcome.DONE


async def test_approval_from_before_a_restart_is_void_after_progress(fleet: Asking) -> None:
    request = await fleet.ask()
    await _approve_and_die(fleet, request)

    await fleet.restart()
    await progress(fleet)
    await fleet.look()

    assert fleet.hands.stopped == []
    after = await fleet.latest()
    assert (after.status, after.decided_by) == (ApprovalStatus.VOID, "ada")


async def test_approval_waits_during_the_emergency_stop(fleet: Asking) -> None:
    request = await fleet.ask()
    await _approve_and_die(fleet, request)
    await fleet.restart()
    await fleet.stop.set(True, by="ada", reason="deploying")

    for _ in range(3):
        fleet.time.now += 6
        await fleet.look()
    assert fleet.hands.stopped == []
    assert fleet.done() == []
    await fleet.stop.set(False, by="ada", reason="done")
    fleet.time.now += 6
    await fleet.look()

    assert (await fleet.latest()).outcome is InterventionOutcome.DONE


async def test_old_approval_is_void(fleet: Asking) -> None:
    request = await fleet.ask()
    await _approve_and_die(fleet, request)

    await fleet.restart()
    fleet.time.now += TIMEOUT
    await fleet.look()

    assert fleet.hands.stopped == []
    assert (await fleet.latest()).decision_reason == "the worker could not be terminated in time"


async def test_started_termination_is_not_repeated_after_a_restart(fleet: Asking) -> None:
    request = await fleet.ask()
    started = asyncio.Event()

    async def hangs() -> None:
        started.set()
        await asyncio.Event().wait()

    fleet.hands.waits = hangs
    approving = asyncio.ensure_future(fleet.approvals.approve(request.approval_id, by="ada"))
    await started.wait()

    await fleet.restart()
    fleet.hands.waits = None
    await fleet.look()

    assert len(fleet.hands.stopped) == 1
    assert (await fleet.latest()).outcome is InterventionOutcome.UNCONFIRMED
    with pytest.raises(asyncio.CancelledError):
        await approving


async def test_termination_is_retried_after_a_disk_failure(fleet: Asking) -> None:
    request = await fleet.ask()

    async def full() -> None:
        fleet.cut = None
        raise StoreError("the disk is full")

    fleet.cut = full
    with pytest.raises(StoreError):
        await fleet.approvals.approve(request.approval_id, by="ada")
    due = fleet.approvals.next_deadline()
    assert due is not None
    assert due > fleet.time.now
    fleet.time.now = due
    await fleet.look()

    assert len(fleet.hands.stopped) == 1
    assert (await fleet.latest()).outcome is InterventionOutcome.DONE


async def _approve_and_die(fleet: Asking, asked: Approval) -> None:
    """Kill the process after the answer is durable and before the termination begins."""
    reached = asyncio.Event()

    async def dies() -> None:
        reached.set()
        await asyncio.Event().wait()

    fleet.cut = dies
    approving = asyncio.ensure_future(fleet.approvals.approve(asked.approval_id, by="ada"))
    dying = asyncio.ensure_future(reached.wait())
    await asyncio.wait([approving, dying], return_when=asyncio.FIRST_COMPLETED)
    if not dying.done():  # refused: it had already ended
        fleet.cut = None
        dying.cancel()
        await approving
        return
    await fleet.approvals.close()
    with pytest.raises(asyncio.CancelledError):
        await approving


@pytest.mark.parametrize(
    ("where", "stops", "outcome"),
    [("before", 1, InterventionOutcome.DONE), ("during", 0, InterventionOutcome.UNCONFIRMED)],
)
async def test_kill_during_an_approved_termination_stops_once_or_reports_unconfirmed(
    tmp_path: Path, where: str, stops: int, outcome: InterventionOutcome
) -> None:
    url = f"sqlite:///{tmp_path / 'killed.db'}"
    dying = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.health.killed_approval", url, where
    )
    assert await dying.wait() == -signal.SIGKILL
    store = Store.open(url)
    fleet = Asking(store)
    await fleet.get_stuck()

    await fleet.service.load()
    await fleet.approvals.load()
    await fleet.look()

    assert len(fleet.hands.stopped) == stops
    assert (await fleet.latest()).outcome is outcome
    await store.close()


# -- any sequence of events
# -----------------------------------------------------------------------------------

_STEPS = st.lists(
    st.sampled_from(
        ["ask", "approve", "deny", "progress", "minute", "hour", "restart", "die", "look", "new life"]
    ),
    max_size=14,
)


@given(steps=_STEPS)
def test_every_termination_has_one_approval(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    async def live() -> None:
        store = Store.open(f"sqlite:///{tmp_path_factory.mktemp('p') / 'q.db'}")
        fleet = Asking(store)
        await fleet.get_stuck()
        for number, step in enumerate(steps):
            with contextlib.suppress(ApprovalClosedError, ApprovalNotFoundError, ActionRefusedError):
                await _take(fleet, step, number)
            history = await fleet.approvals.history(limit=100)
            allowed = [approval for approval in history if approval.intervention_id]
            assert len(fleet.hands.stopped) <= len(allowed)
            assert {approval.incarnation_id for approval in allowed} >= {
                t.incarnation_id for t in fleet.hands.stopped
            }
            assert sum(approval.is_open for approval in history) <= 1
        await fleet.approvals.close()
        await fleet.service.close()
        await store.close()

    asyncio.run(live())


async def _take(fleet: Asking, step: str, number: int) -> None:
    pending = [approval.approval_id for approval in fleet.approvals.pending()]
    which = pending[0] if pending else "none"
    match step:
        case "ask" if fleet.monitor.get("bee") is not None:  # the monitor drops it an hour after its end
            await fleet.ask()
        case "approve":
            await fleet.approvals.approve(which, by="ada")
        case "deny":
            await fleet.approvals.deny(which, by="ada")
        case "progress":
            await progress(fleet)
            await fleet.pass_time(STALL + 1)
        case "minute":
            await fleet.pass_time(60)
        case "hour":
            await fleet.pass_time(3600)
        case "restart":
            await fleet.restart()
        case "die":
            if pending:
                await _approve_and_die(fleet, fleet.approvals.pending()[0])
            await fleet.restart()
        case "look":
            await fleet.look()
        case "new life":
            fleet.time.now += 1
            await fleet.start(incarnation=f"i{number + 2}")
            await fleet.pass_time(2 * STALL)


# -- both databases ---------------------------------------------------------------------------------


async def test_each_database_keeps_at_most_one_open_request_per_session(
    database_url: str,
) -> None:
    store = Store.open(database_url)
    fleet = Asking(store)
    await fleet.get_stuck()
    request = await fleet.ask()

    def another(conn: Connection) -> None:
        approval_table.write(conn, request.model_copy(update={"approval_id": "another"}))

    with pytest.raises(StoreError):
        await store.transact(another)
    approval = await fleet.approvals.approve(request.approval_id, by="ada")
    fleet.time.now += 1
    await store.transact(another)

    assert [approval.approval_id for approval in await fleet.approvals.history(limit=10, only_open=True)] == [
        "another"
    ]
    assert await fleet.approvals.find(request.approval_id) == approval
    first = await fleet.approvals.history(limit=1)
    rest = await fleet.approvals.history(limit=10, before=(first[0].created_at, first[0].approval_id))
    assert len({approval.approval_id for approval in [*first, *rest]}) == 2
    await store.close()


async def test_old_closed_requests_are_pruned_and_open_ones_kept(fleet: Asking) -> None:
    first = await fleet.ask()
    await fleet.approvals.deny(first.approval_id, by="ada")
    fleet.time.now += TIMEOUT
    waiting = await fleet.ask()
    later = fleet.time.now + 31 * 86_400

    await fleet.store.transact(lambda conn: prune(conn, later, RetentionSettings()))

    assert [approval.approval_id for approval in await fleet.approvals.history(limit=10)] == [
        waiting.approval_id
    ]
