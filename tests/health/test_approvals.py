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
from tests.health.monitored_fleet import STALL, MonitoredFleet

TIMEOUT = 1800.0


class ApprovalFleet(MonitoredFleet):
    """The monitor and the interventions, with an approver and without automatic actions."""

    def __init__(self, store: Store, **intervention: Any) -> None:
        super().__init__(store, **({"enabled": False} | intervention))

    def _make(self) -> None:
        super()._make()
        self.before_termination: Callable[[], Awaitable[Any]] | None = None
        self.approvals = Approvals(
            self.store,
            timeout=TIMEOUT,
            monitor=self.monitor,
            terminate=self._terminate,
            stop_reason=lambda: self.stop.reason,
            clock=self.time,
            publish=self.publish,
            ids=self.make_id,
        )

    async def _terminate(self, *arguments: Any, **options: Any) -> Intervention:
        if self.before_termination is not None:
            await self.before_termination()
        return await self.service.terminate(*arguments, **options)

    async def restart(self) -> None:
        await self.approvals.close()
        await super().restart()
        await self.approvals.load()

    async def start_stuck_worker(self) -> None:
        await self.start_worker()
        await self.pass_time(STALL + 1)

    async def request_approval(self, reason: str = "It loops.") -> Approval:
        return await self.approvals.request(self.get_worker(), ticket_id="t1", reason=reason, by="queen")

    async def advance_approvals(self, **options: Any) -> None:
        """Carry out everything that is due."""
        await self.approvals.advance(self.time.now, **options)
        await self.approvals.wait_until_idle()

    async def get_latest_approval(self) -> Approval:
        [approval, *_] = await self.approvals.history(limit=1)
        return approval


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    new_store = Store.open(f"sqlite:///{tmp_path / 'q.db'}")
    yield new_store
    await new_store.close()


@pytest.fixture
async def fleet(store: Store) -> ApprovalFleet:
    fleet = ApprovalFleet(store)
    await fleet.start_stuck_worker()
    return fleet


async def test_approved_termination_names_its_approver(fleet: ApprovalFleet) -> None:
    request = await fleet.request_approval("It loops.")

    approval = await fleet.approvals.approve(request.approval_id, by="ada", reason="looked at it")

    assert (approval.status, approval.outcome, approval.is_open) == (
        ApprovalStatus.APPROVED,
        InterventionOutcome.DONE,
        False,
    )
    [termination_event] = fleet.list_events(EventType.AGENT_TERMINATED)
    assert termination_event.data["by"] == "ada"
    assert termination_event.data["intervention_id"] == approval.intervention_id
    assert all(part in termination_event.data["reason"] for part in ("It loops.", "ada", "looked at it"))
    assert len(fleet.control.stopped_targets) == 1
    assert await fleet.approvals.find(request.approval_id) == approval
    assert fleet.approvals.pending() == []


async def test_request_and_answer_are_logged_before_any_action(fleet: ApprovalFleet) -> None:
    request = await fleet.request_approval()
    types_before_stop: list[EventType] = []
    fleet.control.on_terminate = lambda: types_before_stop.extend(
        event.type for event in fleet.published_events
    )
    await fleet.approvals.approve(request.approval_id, by="ada")

    [request_event] = fleet.list_events(EventType.TERMINATION_REQUESTED)
    assert request_event.data == {
        "approval_id": request.approval_id,
        "ticket_id": "t1",
        "reason": "It loops.",
        "by": "queen",
        "expires_at": request.created_at + TIMEOUT,
    }
    [decision_event] = fleet.list_events(EventType.TERMINATION_DECIDED)
    assert decision_event.data["status"] == "approved"
    assert {EventType.TERMINATION_REQUESTED, EventType.TERMINATION_DECIDED} <= set(types_before_stop)
    assert EventType.AGENT_TERMINATED not in types_before_stop


async def make_progress(fleet: ApprovalFleet) -> None:
    fleet.time.now += 1
    await fleet.accept_step()


async def wait_for_a_user(fleet: ApprovalFleet) -> None:
    await fleet.publish_event(EventType.CLIENT_INPUT_REQUESTED)


async def end_run(fleet: ApprovalFleet) -> None:
    await fleet.publish_event(EventType.EXECUTION_COMPLETED)


async def restart_worker(fleet: ApprovalFleet) -> None:
    fleet.time.now += 1
    await fleet.start_worker(incarnation="i2")
    await fleet.pass_time(2 * STALL)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (make_progress, "made progress"),
        (wait_for_a_user, "waits"),
        (end_run, "has ended"),
        (restart_worker, "restarted in the meantime"),
    ],
)
async def test_obsolete_request_is_void_when_answered(
    fleet: ApprovalFleet, change: Callable[[ApprovalFleet], Awaitable[None]], reason: str
) -> None:
    """B69: the permit is also checked for an approved action. B67: another incarnation is not stopped."""
    request = await fleet.request_approval()
    await change(fleet)

    with pytest.raises(ApprovalClosedError, match=reason):
        await fleet.approvals.approve(request.approval_id, by="ada")

    assert fleet.control.stopped_targets == []
    assert (await fleet.get_latest_approval()).status is ApprovalStatus.VOID
    assert fleet.list_events(EventType.TERMINATION_DECIDED)[-1].data["status"] == "void"


async def test_request_is_void_for_another_incarnation(fleet: ApprovalFleet) -> None:
    """B67: only the incarnation differs: the worker runs, makes no progress and is in trouble as before."""
    request = await fleet.request_approval()
    assert void_reason(request, fleet.get_worker()) is None
    other_request = request.model_copy(update={"incarnation_id": "i0"})

    assert void_reason(other_request, fleet.get_worker()) == "the worker was restarted in the meantime"


async def test_request_about_an_earlier_incarnation_is_void(fleet: ApprovalFleet) -> None:
    """B67: the request becomes void without an answer, because its worker has gone."""
    request = await fleet.request_approval()
    fleet.time.now += 1
    await fleet.start_worker(incarnation="i2")
    await fleet.pass_time(STALL + 1)
    assert fleet.time.now < request.expires_at

    await fleet.advance_approvals()

    assert fleet.approvals.pending() == []
    approval = await fleet.get_latest_approval()
    assert (approval.status, approval.decision_reason) == (
        ApprovalStatus.VOID,
        "the worker was restarted in the meantime",
    )


async def test_person_who_ordered_a_termination_in_chat_may_approve_it(fleet: ApprovalFleet) -> None:
    """The queen requested the termination and may not approve it. A person who may terminate workers may."""
    request = await fleet.approvals.request(
        fleet.get_worker(), ticket_id="t1", reason="It loops.", by="queen", ordered_by="ada"
    )
    with pytest.raises(ActionRefusedError, match="somebody else must approve it"):
        await fleet.approvals.approve(request.approval_id, by="queen")

    approval = await fleet.approvals.approve(request.approval_id, by="ada")

    assert (approval.asked_by, approval.ordered_by, approval.decided_by) == ("queen", "ada", "ada")
    assert "ada" in call_to_action(request)
    assert "It loops." in call_to_action(request)
    [request_event] = fleet.list_events(EventType.TERMINATION_REQUESTED)
    assert request_event.data["by"] == "queen on behalf of ada"
    [termination_event] = fleet.list_events(EventType.AGENT_TERMINATED)
    assert all(part in termination_event.data["reason"] for part in ("It loops.", "queen", "ada"))


async def test_progress_voids_a_request(fleet: ApprovalFleet) -> None:
    await fleet.request_approval()
    await make_progress(fleet)

    await fleet.approvals.observe(fleet.get_worker())

    assert fleet.approvals.pending() == []
    assert (await fleet.get_latest_approval()).decision_reason == "it has made progress since"


async def test_progress_before_the_termination_begins_prevents_it(fleet: ApprovalFleet) -> None:
    request = await fleet.request_approval()

    async def report_progress() -> None:
        await make_progress(fleet)

    fleet.before_termination = report_progress
    with pytest.raises(ApprovalClosedError, match="made progress"):
        await fleet.approvals.approve(request.approval_id, by="ada")

    assert fleet.control.stopped_targets == []
    assert (await fleet.get_latest_approval()).status is ApprovalStatus.VOID


async def test_emergency_stop_refuses_approval_and_keeps_the_request(fleet: ApprovalFleet) -> None:
    request = await fleet.request_approval()
    await fleet.stop.set(True, by="ada", reason="deploying")

    with pytest.raises(ActionRefusedError, match="emergency stop"):
        await fleet.approvals.approve(request.approval_id, by="ada")

    assert [approval.approval_id for approval in fleet.approvals.pending()] == [request.approval_id]
    await fleet.stop.set(False, by="ada", reason="done")
    assert (await fleet.approvals.approve(request.approval_id, by="ada")).outcome is InterventionOutcome.DONE


async def test_unanswered_request_expires(fleet: ApprovalFleet) -> None:
    request = await fleet.request_approval()
    assert fleet.approvals.next_deadline() == request.expires_at

    fleet.time.now = request.expires_at
    await fleet.advance_approvals(begin=False)

    assert (await fleet.get_latest_approval()).status is ApprovalStatus.EXPIRED
    with pytest.raises(ApprovalClosedError, match="expired"):
        await fleet.approvals.approve(request.approval_id, by="ada")


async def test_late_answer_is_ignored_even_before_the_deadline_check(
    fleet: ApprovalFleet,
) -> None:
    request = await fleet.request_approval()
    fleet.time.now = request.expires_at + 1

    with pytest.raises(ApprovalClosedError, match="no answer in time"):
        await fleet.approvals.approve(request.approval_id, by="ada")

    assert fleet.control.stopped_targets == []


async def test_second_request_for_an_incarnation_is_refused_with_a_reason(fleet: ApprovalFleet) -> None:
    request = await fleet.request_approval()

    with pytest.raises(ActionRefusedError, match=f"approval {request.approval_id} is pending already"):
        await fleet.request_approval()

    assert len(fleet.approvals.pending()) == 1


async def test_new_incarnation_gets_a_new_request(fleet: ApprovalFleet) -> None:
    first = await fleet.request_approval()
    await restart_worker(fleet)

    second = await fleet.request_approval()

    assert [approval.approval_id for approval in fleet.approvals.pending()] == [second.approval_id]
    voided_request = await fleet.approvals.find(first.approval_id)
    assert voided_request is not None
    assert voided_request.status is ApprovalStatus.VOID


async def test_denial_holds_for_half_an_hour(fleet: ApprovalFleet) -> None:
    request = await fleet.request_approval()
    await fleet.approvals.deny(request.approval_id, by="ada", reason="let it finish")

    with pytest.raises(ActionRefusedError, match="ada denied it: let it finish; ask again in 30 minutes"):
        await fleet.request_approval()
    fleet.time.now += TIMEOUT

    assert (await fleet.request_approval()).is_pending


@pytest.mark.parametrize("name", ["queen", " Queen "])
async def test_requester_cannot_approve(fleet: ApprovalFleet, name: str) -> None:
    request = await fleet.request_approval()

    with pytest.raises(ActionRefusedError, match="somebody else must approve it"):
        await fleet.approvals.approve(request.approval_id, by=name)

    assert fleet.control.stopped_targets == []


async def test_unknown_approval_is_an_error(fleet: ApprovalFleet) -> None:
    with pytest.raises(ApprovalNotFoundError, match="'nothing'"):
        await fleet.approvals.deny("nothing", by="ada")


async def test_concurrent_approvals_terminate_once(fleet: ApprovalFleet) -> None:
    request = await fleet.request_approval()

    results = await asyncio.gather(
        fleet.approvals.approve(request.approval_id, by="ada"),
        fleet.approvals.approve(request.approval_id, by="bob"),
        return_exceptions=True,
    )

    assert sorted(type(result).__name__ for result in results) == ["Approval", "ApprovalClosedError"]
    assert len(fleet.control.stopped_targets) == 1


async def test_advance_does_not_begin_an_approval_in_progress(fleet: ApprovalFleet) -> None:
    request = await fleet.request_approval()
    advance_tasks: list[asyncio.Task[None]] = []
    publish = fleet.approvals._publish

    def advance_at_once(*events: Any) -> None:
        publish(*events)
        advance_tasks.append(asyncio.ensure_future(fleet.approvals.advance(fleet.time.now)))

    fleet.approvals._publish = advance_at_once
    approval = await fleet.approvals.approve(request.approval_id, by="ada")
    await asyncio.gather(*advance_tasks)
    await fleet.approvals.wait_until_idle()

    assert len(fleet.control.stopped_targets) == 1
    assert (await fleet.get_latest_approval()) == approval
    assert approval.outcome is InterventionOutcome.DONE


async def test_healthy_worker_gets_no_request(store: Store) -> None:
    fleet = ApprovalFleet(store)
    await fleet.start_worker()

    with pytest.raises(ActionRefusedError, match="it no longer has findings"):
        await fleet.request_approval()


async def test_provider_failure_gets_no_request(store: Store) -> None:
    fleet = ApprovalFleet(store)
    await fleet.start_worker()
    for _ in range(8):
        await fleet.publish_event(EventType.LLM_CALL_COMPLETED, error_type="RateLimitError", error="429")
        await fleet.pass_time(30)

    with pytest.raises(ActionRefusedError, match="provider"):
        await fleet.request_approval()


async def test_dismissing_a_ticket_voids_its_request(fleet: ApprovalFleet) -> None:
    await fleet.request_approval()

    await fleet.approvals.void_for_closed_ticket("another", "its ticket is dismissed")
    assert len(fleet.approvals.pending()) == 1
    await fleet.approvals.void_for_closed_ticket("t1", "its ticket is dismissed")

    assert (await fleet.get_latest_approval()).decision_reason == "its ticket is dismissed"


async def test_failed_termination_is_published_and_may_be_requested_again(fleet: ApprovalFleet) -> None:
    fleet.control.confirms_stop = False
    request = await fleet.request_approval()

    approval = await fleet.approvals.approve(request.approval_id, by="ada")

    assert (approval.status, approval.outcome) == (ApprovalStatus.APPROVED, InterventionOutcome.UNCONFIRMED)
    assert (await fleet.request_approval()).is_pending


async def test_requests_and_answers_have_no_secrets(fleet: ApprovalFleet) -> None:
    secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEF"
    request = await fleet.request_approval(f"It prints {secret} again and again.")

    denied = await fleet.approvals.deny(request.approval_id, by="ada", reason=f"rotate {secret}")

    events = denied.model_dump_json() + "".join(str(event.data) for event in fleet.published_events)
    assert secret not in events


async def test_request_has_deadline_and_command(fleet: ApprovalFleet) -> None:
    request = await fleet.request_approval("It\nloops.")

    call_text = call_to_action(request)

    assert "It loops." in call_text
    assert f"queenright approvals approve {request.approval_id}" in call_text
    assert "\n" not in call_text


# -- restarts ---------------------------------------------------------------------------------------


async def test_pending_requests_survive_a_restart(fleet: ApprovalFleet) -> None:
    request = await fleet.request_approval()

    await fleet.restart()

    assert [approval.approval_id for approval in fleet.approvals.pending()] == [request.approval_id]
    assert (await fleet.approvals.approve(request.approval_id, by="ada")).outcome is InterventionOutcome.DONE


async def test_unstarted_approval_runs_once_after_the_quiet_period(fleet: ApprovalFleet) -> None:
    request = await fleet.request_approval()
    await _approve_and_die(fleet, request)

    await fleet.restart()
    await fleet.advance_approvals(begin=False)
    assert fleet.control.stopped_targets == []
    await fleet.advance_approvals()
    await fleet.advance_approvals()

    assert len(fleet.control.stopped_targets) == 1
    assert (await fleet.get_latest_approval()).outcome is InterventionOutcome.DONE


async def test_approval_from_before_a_restart_is_void_after_progress(fleet: ApprovalFleet) -> None:
    request = await fleet.request_approval()
    await _approve_and_die(fleet, request)

    await fleet.restart()
    await make_progress(fleet)
    await fleet.advance_approvals()

    assert fleet.control.stopped_targets == []
    approval = await fleet.get_latest_approval()
    assert (approval.status, approval.decided_by) == (ApprovalStatus.VOID, "ada")


async def test_approval_waits_during_the_emergency_stop(fleet: ApprovalFleet) -> None:
    request = await fleet.request_approval()
    await _approve_and_die(fleet, request)
    await fleet.restart()
    await fleet.stop.set(True, by="ada", reason="deploying")

    for _ in range(3):
        fleet.time.now += 6
        await fleet.advance_approvals()
    assert fleet.control.stopped_targets == []
    assert fleet.list_actions() == []
    await fleet.stop.set(False, by="ada", reason="done")
    fleet.time.now += 6
    await fleet.advance_approvals()

    assert (await fleet.get_latest_approval()).outcome is InterventionOutcome.DONE


async def test_old_approval_is_void(fleet: ApprovalFleet) -> None:
    request = await fleet.request_approval()
    await _approve_and_die(fleet, request)

    await fleet.restart()
    fleet.time.now += TIMEOUT
    await fleet.advance_approvals()

    assert fleet.control.stopped_targets == []
    assert (await fleet.get_latest_approval()).decision_reason == "the worker could not be terminated in time"


async def test_started_termination_is_not_repeated_after_a_restart(fleet: ApprovalFleet) -> None:
    request = await fleet.request_approval()
    termination_started = asyncio.Event()

    async def hang() -> None:
        termination_started.set()
        await asyncio.Event().wait()

    fleet.control.before_terminate = hang
    approval_task = asyncio.ensure_future(fleet.approvals.approve(request.approval_id, by="ada"))
    await termination_started.wait()

    await fleet.restart()
    fleet.control.before_terminate = None
    await fleet.advance_approvals()

    assert len(fleet.control.stopped_targets) == 1
    assert (await fleet.get_latest_approval()).outcome is InterventionOutcome.UNCONFIRMED
    with pytest.raises(asyncio.CancelledError):
        await approval_task


async def test_termination_is_retried_after_a_disk_failure(fleet: ApprovalFleet) -> None:
    request = await fleet.request_approval()

    async def raise_disk_full() -> None:
        fleet.before_termination = None
        raise StoreError("the disk is full")

    fleet.before_termination = raise_disk_full
    with pytest.raises(StoreError):
        await fleet.approvals.approve(request.approval_id, by="ada")
    deadline = fleet.approvals.next_deadline()
    assert deadline is not None
    assert deadline > fleet.time.now
    fleet.time.now = deadline
    await fleet.advance_approvals()

    assert len(fleet.control.stopped_targets) == 1
    assert (await fleet.get_latest_approval()).outcome is InterventionOutcome.DONE


async def _approve_and_die(fleet: ApprovalFleet, request: Approval) -> None:
    """Kill the process after the answer is durable and before the termination begins."""
    termination_reached = asyncio.Event()

    async def block_termination() -> None:
        termination_reached.set()
        await asyncio.Event().wait()

    fleet.before_termination = block_termination
    approval_task = asyncio.ensure_future(fleet.approvals.approve(request.approval_id, by="ada"))
    termination_task = asyncio.ensure_future(termination_reached.wait())
    await asyncio.wait([approval_task, termination_task], return_when=asyncio.FIRST_COMPLETED)
    if not termination_task.done():  # refused because the worker had already ended
        fleet.before_termination = None
        termination_task.cancel()
        await approval_task
        return
    await fleet.approvals.close()
    with pytest.raises(asyncio.CancelledError):
        await approval_task


@pytest.mark.parametrize(
    ("moment", "stop_count", "outcome"),
    [("before", 1, InterventionOutcome.DONE), ("during", 0, InterventionOutcome.UNCONFIRMED)],
)
async def test_kill_during_an_approved_termination_stops_once_or_reports_unconfirmed(
    tmp_path: Path, moment: str, stop_count: int, outcome: InterventionOutcome
) -> None:
    url = f"sqlite:///{tmp_path / 'killed.db'}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.health.killed_approval", url, moment
    )
    assert await process.wait() == -signal.SIGKILL
    store = Store.open(url)
    fleet = ApprovalFleet(store)
    await fleet.start_stuck_worker()

    await fleet.service.load()
    await fleet.approvals.load()
    await fleet.advance_approvals()

    assert len(fleet.control.stopped_targets) == stop_count
    assert (await fleet.get_latest_approval()).outcome is outcome
    await store.close()


# -- any sequence of events -------------------------------------------------------------------------

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
    async def run_steps() -> None:
        store = Store.open(f"sqlite:///{tmp_path_factory.mktemp('p') / 'q.db'}")
        fleet = ApprovalFleet(store)
        await fleet.start_stuck_worker()
        for number, step in enumerate(steps):
            with contextlib.suppress(ApprovalClosedError, ApprovalNotFoundError, ActionRefusedError):
                await _take_step(fleet, step, number)
            history = await fleet.approvals.history(limit=100)
            approved_requests = [approval for approval in history if approval.intervention_id]
            assert len(fleet.control.stopped_targets) <= len(approved_requests)
            assert {approval.incarnation_id for approval in approved_requests} >= {
                target.incarnation_id for target in fleet.control.stopped_targets
            }
            assert sum(approval.is_open for approval in history) <= 1
        await fleet.approvals.close()
        await fleet.service.close()
        await store.close()

    asyncio.run(run_steps())


async def _take_step(fleet: ApprovalFleet, step: str, number: int) -> None:
    pending_ids = [approval.approval_id for approval in fleet.approvals.pending()]
    approval_id = pending_ids[0] if pending_ids else "none"
    match step:
        # The monitor forgets the worker an hour after its end.
        case "ask" if fleet.monitor.get("bee") is not None:
            await fleet.request_approval()
        case "approve":
            await fleet.approvals.approve(approval_id, by="ada")
        case "deny":
            await fleet.approvals.deny(approval_id, by="ada")
        case "progress":
            await make_progress(fleet)
            await fleet.pass_time(STALL + 1)
        case "minute":
            await fleet.pass_time(60)
        case "hour":
            await fleet.pass_time(3600)
        case "restart":
            await fleet.restart()
        case "die":
            if pending_ids:
                await _approve_and_die(fleet, fleet.approvals.pending()[0])
            await fleet.restart()
        case "look":
            await fleet.advance_approvals()
        case "new life":
            fleet.time.now += 1
            await fleet.start_worker(incarnation=f"i{number + 2}")
            await fleet.pass_time(2 * STALL)


# -- both databases ---------------------------------------------------------------------------------


async def test_each_database_keeps_at_most_one_open_request_per_session(
    database_url: str,
) -> None:
    store = Store.open(database_url)
    fleet = ApprovalFleet(store)
    await fleet.start_stuck_worker()
    request = await fleet.request_approval()

    def insert_another_request(conn: Connection) -> None:
        approval_table.write(conn, request.model_copy(update={"approval_id": "another"}))

    with pytest.raises(StoreError):
        await store.transact(insert_another_request)
    approval = await fleet.approvals.approve(request.approval_id, by="ada")
    fleet.time.now += 1
    await store.transact(insert_another_request)

    assert [approval.approval_id for approval in await fleet.approvals.history(limit=10, only_open=True)] == [
        "another"
    ]
    assert await fleet.approvals.find(request.approval_id) == approval
    first = await fleet.approvals.history(limit=1)
    older_requests = await fleet.approvals.history(
        limit=10, before=(first[0].created_at, first[0].approval_id)
    )
    assert len({approval.approval_id for approval in [*first, *older_requests]}) == 2
    await store.close()


async def test_old_closed_requests_are_pruned_and_open_ones_kept(fleet: ApprovalFleet) -> None:
    first = await fleet.request_approval()
    await fleet.approvals.deny(first.approval_id, by="ada")
    fleet.time.now += TIMEOUT
    open_request = await fleet.request_approval()
    prune_time = fleet.time.now + 31 * 86_400

    await fleet.store.transact(lambda conn: prune(conn, prune_time, RetentionSettings()))

    assert [approval.approval_id for approval in await fleet.approvals.history(limit=10)] == [
        open_request.approval_id
    ]
