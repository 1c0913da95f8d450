"""Requests to stop a worker, on a real store: what is approved is looked at again, and done once."""

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

from queenright.health.interventions.approvals import ApprovalClosedError, ApprovalNotFoundError, Approvals
from queenright.health.interventions.approvals_record import (
    Approval,
    ApprovalStatus,
    call_to_action,
    void_reason,
    write_approval,
)
from queenright.health.interventions.permit import ActionRefusedError
from queenright.health.interventions.record import Intervention, Outcome
from queenright.health.retention import prune
from queenright.health.settings import RetentionSettings
from queenright.health.store import Store, StoreError
from queenright.runtime.events import EventType
from tests.health.acting import STALL, Acting

TIMEOUT = 1800.0


class Asking(Acting):
    """The parts, with an approver; nothing acts automatically."""

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
        """Do everything that is due."""
        await self.approvals.advance(self.time.now, **how)
        await self.approvals.wait_until_idle()

    async def latest(self) -> Approval:
        [one, *_] = await self.approvals.history(limit=1)
        return one


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path / 'q.db'}")
    yield opened
    await opened.close()


@pytest.fixture
async def hive(store: Store) -> Asking:
    asking = Asking(store)
    await asking.get_stuck()
    return asking


async def test_approved_termination_names_its_approver(hive: Asking) -> None:
    request = await hive.ask("It loops.")

    done = await hive.approvals.approve(request.approval_id, by="ada", reason="looked at it")

    assert (done.status, done.outcome, done.is_open) == (ApprovalStatus.APPROVED, Outcome.DONE, False)
    [ended] = hive.of(EventType.AGENT_TERMINATED)
    assert ended.data["by"] == "ada"
    assert ended.data["intervention_id"] == done.intervention_id
    assert all(part in ended.data["reason"] for part in ("It loops.", "ada", "looked at it"))
    assert len(hive.hands.stopped) == 1
    assert await hive.approvals.find(request.approval_id) == done
    assert hive.approvals.pending() == []


async def test_request_and_answer_are_logged_before_any_action(hive: Asking) -> None:
    request = await hive.ask()
    hive.hands.last_words = lambda: order.append("stopped")
    order: list[str] = []
    await hive.approvals.approve(request.approval_id, by="ada")

    [requested] = hive.of(EventType.TERMINATION_REQUESTED)
    assert requested.data == {
        "approval_id": request.approval_id,
        "ticket_id": "t1",
        "reason": "It loops.",
        "by": "queen",
        "expires_at": request.created_at + TIMEOUT,
    }
    [decided] = hive.of(EventType.TERMINATION_DECIDED)
    assert decided.data["status"] == "approved"
    assert hive.said.index(decided) < hive.said.index(hive.of(EventType.AGENT_TERMINATED)[0])


async def progress(hive: Asking) -> None:
    hive.time.now += 1
    await hive.accept()


async def wait_for_a_user(hive: Asking) -> None:
    await hive.tell(EventType.CLIENT_INPUT_REQUESTED)


async def end(hive: Asking) -> None:
    await hive.tell(EventType.EXECUTION_COMPLETED)


async def live_again(hive: Asking) -> None:
    hive.time.now += 1
    await hive.start(incarnation="i2")
    await hive.pass_time(2 * STALL)


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
    hive: Asking, happens: Callable[[Asking], Awaitable[None]], why: str
) -> None:
    """B69: an approval goes past the same guard. B67: nor is another incarnation stopped."""
    request = await hive.ask()
    await happens(hive)

    with pytest.raises(ApprovalClosedError, match=why):
        await hive.approvals.approve(request.approval_id, by="ada")

    assert hive.hands.stopped == []
    assert (await hive.latest()).status is ApprovalStatus.VOID
    assert hive.of(EventType.TERMINATION_DECIDED)[-1].data["status"] == "void"


async def test_request_is_void_for_another_incarnation(hive: Asking) -> None:
    """B67: it is told by its incarnation, though all else is as it was: at work, no progress, in trouble."""
    request = await hive.ask()
    assert void_reason(request, hive.worker()) is None
    another = request.model_copy(update={"incarnation_id": "i0"})

    assert void_reason(another, hive.worker()) == "the worker was restarted in the meantime"


async def test_request_about_an_earlier_incarnation_is_void(hive: Asking) -> None:
    """B67: not only on an answer; a request about a gone worker needs no decision."""
    request = await hive.ask()
    hive.time.now += 1
    await hive.start(incarnation="i2")
    await hive.pass_time(STALL + 1)
    assert hive.time.now < request.expires_at

    await hive.look()

    assert hive.approvals.pending() == []
    latest = await hive.latest()
    assert (latest.status, latest.decision_reason) == (
        ApprovalStatus.VOID,
        "the worker was restarted in the meantime",
    )


async def test_person_who_ordered_a_termination_in_chat_may_approve_it(hive: Asking) -> None:
    """The queen asks, so she may not; a person who could stop the worker anyway may say so twice."""
    request = await hive.approvals.request(
        hive.worker(), ticket_id="t1", reason="It loops.", by="queen", ordered_by="ada"
    )
    with pytest.raises(ActionRefusedError, match="somebody else must approve it"):
        await hive.approvals.approve(request.approval_id, by="queen")

    done = await hive.approvals.approve(request.approval_id, by="ada")

    assert (done.asked_by, done.ordered_by, done.decided_by) == ("queen", "ada", "ada")
    assert "ada" in call_to_action(request)
    assert "It loops." in call_to_action(request)
    [requested] = hive.of(EventType.TERMINATION_REQUESTED)
    assert requested.data["by"] == "queen, as ada ordered"
    [ended] = hive.of(EventType.AGENT_TERMINATED)
    assert all(part in ended.data["reason"] for part in ("It loops.", "queen", "ada"))


async def test_progress_voids_a_request(hive: Asking) -> None:
    await hive.ask()
    await progress(hive)

    await hive.approvals.observe(hive.worker())

    assert hive.approvals.pending() == []
    assert (await hive.latest()).decision_reason == "it has made progress since"


async def test_progress_before_the_termination_begins_prevents_it(hive: Asking) -> None:
    request = await hive.ask()

    async def meanwhile() -> None:
        await progress(hive)

    hive.cut = meanwhile
    with pytest.raises(ApprovalClosedError, match="made progress"):
        await hive.approvals.approve(request.approval_id, by="ada")

    assert hive.hands.stopped == []
    assert (await hive.latest()).status is ApprovalStatus.VOID


async def test_emergency_stop_refuses_approval_and_keeps_the_request(hive: Asking) -> None:
    request = await hive.ask()
    await hive.stop.set(True, by="ada", reason="deploying")

    with pytest.raises(ActionRefusedError, match="emergency stop"):
        await hive.approvals.approve(request.approval_id, by="ada")

    assert [one.approval_id for one in hive.approvals.pending()] == [request.approval_id]
    await hive.stop.set(False, by="ada", reason="done")
    assert (await hive.approvals.approve(request.approval_id, by="ada")).outcome is Outcome.DONE


async def test_unanswered_request_expires(hive: Asking) -> None:
    request = await hive.ask()
    assert hive.approvals.next_deadline() == request.expires_at

    hive.time.now = request.expires_at
    await hive.look(begin=False)

    assert (await hive.latest()).status is ApprovalStatus.EXPIRED
    with pytest.raises(ApprovalClosedError, match="expired"):
        await hive.approvals.approve(request.approval_id, by="ada")


async def test_late_answer_is_ignored_even_before_the_deadline_check(
    hive: Asking,
) -> None:
    request = await hive.ask()
    hive.time.now = request.expires_at + 1

    with pytest.raises(ApprovalClosedError, match="nobody answered in time"):
        await hive.approvals.approve(request.approval_id, by="ada")

    assert hive.hands.stopped == []


async def test_second_request_for_an_incarnation_is_refused_with_a_reason(hive: Asking) -> None:
    request = await hive.ask()

    with pytest.raises(ActionRefusedError, match=f"approval {request.approval_id} is pending already"):
        await hive.ask()

    assert len(hive.approvals.pending()) == 1


async def test_new_incarnation_gets_a_new_request(hive: Asking) -> None:
    first = await hive.ask()
    await live_again(hive)

    second = await hive.ask()

    assert [one.approval_id for one in hive.approvals.pending()] == [second.approval_id]
    old = await hive.approvals.find(first.approval_id)
    assert old is not None
    assert old.status is ApprovalStatus.VOID


async def test_a_no_holds_for_a_while(hive: Asking) -> None:
    request = await hive.ask()
    await hive.approvals.deny(request.approval_id, by="ada", reason="let it finish")

    with pytest.raises(ActionRefusedError, match="ada denied it: let it finish; ask again in 30 minutes"):
        await hive.ask()
    hive.time.now += TIMEOUT

    assert (await hive.ask()).is_pending


@pytest.mark.parametrize("name", ["queen", " Queen "])
async def test_requester_cannot_approve(hive: Asking, name: str) -> None:
    request = await hive.ask()

    with pytest.raises(ActionRefusedError, match="somebody else must approve it"):
        await hive.approvals.approve(request.approval_id, by=name)

    assert hive.hands.stopped == []


async def test_unknown_approval_is_an_error(hive: Asking) -> None:
    with pytest.raises(ApprovalNotFoundError, match="'nothing'"):
        await hive.approvals.deny("nothing", by="ada")


async def test_concurrent_approvals_terminate_once(hive: Asking) -> None:
    request = await hive.ask()

    both = await asyncio.gather(
        hive.approvals.approve(request.approval_id, by="ada"),
        hive.approvals.approve(request.approval_id, by="bob"),
        return_exceptions=True,
    )

    assert sorted(type(one).__name__ for one in both) == ["Approval", "ApprovalClosedError"]
    assert len(hive.hands.stopped) == 1


async def test_advance_does_not_begin_an_approval_in_progress(hive: Asking) -> None:
    request = await hive.ask()
    looks: list[asyncio.Task[None]] = []
    publish = hive.approvals._publish

    def look_at_once(*events: Any) -> None:
        publish(*events)
        looks.append(asyncio.ensure_future(hive.approvals.advance(hive.time.now)))

    hive.approvals._publish = look_at_once
    done = await hive.approvals.approve(request.approval_id, by="ada")
    await asyncio.gather(*looks)
    await hive.approvals.wait_until_idle()

    assert len(hive.hands.stopped) == 1
    assert (await hive.latest()) == done
    assert done.outcome is Outcome.DONE


async def test_healthy_worker_gets_no_request(store: Store) -> None:
    hive = Asking(store)
    await hive.start()

    with pytest.raises(ActionRefusedError, match="it has no findings any more"):
        await hive.ask()


async def test_provider_failure_gets_no_request(store: Store) -> None:
    hive = Asking(store)
    await hive.start()
    for _ in range(8):
        await hive.tell(EventType.LLM_CALL_COMPLETED, error_type="RateLimitError", error="429")
        await hive.pass_time(30)

    with pytest.raises(ActionRefusedError, match="provider"):
        await hive.ask()


async def test_dismissing_a_ticket_voids_its_request(hive: Asking) -> None:
    await hive.ask()

    await hive.approvals.void_for_closed_ticket("another", "its ticket is dismissed")
    assert len(hive.approvals.pending()) == 1
    await hive.approvals.void_for_closed_ticket("t1", "its ticket is dismissed")

    assert (await hive.latest()).decision_reason == "its ticket is dismissed"


async def test_failed_termination_is_published_and_may_be_requested_again(hive: Asking) -> None:
    hive.hands.confirms = False
    request = await hive.ask()

    done = await hive.approvals.approve(request.approval_id, by="ada")

    assert (done.status, done.outcome) == (ApprovalStatus.APPROVED, Outcome.UNCONFIRMED)
    assert (await hive.ask()).is_pending


async def test_requests_and_answers_have_no_secrets(hive: Asking) -> None:
    secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEF"
    request = await hive.ask(f"It prints {secret} again and again.")

    denied = await hive.approvals.deny(request.approval_id, by="ada", reason=f"rotate {secret}")

    events = denied.model_dump_json() + "".join(str(event.data) for event in hive.said)
    assert secret not in events


async def test_request_has_deadline_and_command(hive: Asking) -> None:
    request = await hive.ask("It\nloops.")

    result = call_to_action(request)

    assert "It loops." in result
    assert f"queenright approvals approve {request.approval_id}" in result
    assert "\n" not in result


# -- restarts ---------------------------------------------------------------------------------------


async def test_pending_requests_survive_a_restart(hive: Asking) -> None:
    request = await hive.ask()

    await hive.restart()

    assert [one.approval_id for one in hive.approvals.pending()] == [request.approval_id]
    assert (await hive.approvals.approve(request.approval_id, by="ada")).outcome is Outcome.DONE


async def test_unstarted_approval_runs_once_after_the_quiet_period(hive: Asking) -> None:
    request = await hive.ask()
    await _approve_and_die(hive, request)

    await hive.restart()
    await hive.look(begin=False)
    assert hive.hands.stopped == []
    await hive.look()
    await hive.look()

    assert len(hive.hands.stopped) == 1
    assert (await hive.latest()).outcome is Outcome.DONE


async def test_approval_from_before_a_restart_is_void_after_progress(hive: Asking) -> None:
    request = await hive.ask()
    await _approve_and_die(hive, request)

    await hive.restart()
    await progress(hive)
    await hive.look()

    assert hive.hands.stopped == []
    after = await hive.latest()
    assert (after.status, after.decided_by) == (ApprovalStatus.VOID, "ada")


async def test_approval_waits_during_the_emergency_stop(hive: Asking) -> None:
    request = await hive.ask()
    await _approve_and_die(hive, request)
    await hive.restart()
    await hive.stop.set(True, by="ada", reason="deploying")

    for _ in range(3):
        hive.time.now += 6
        await hive.look()
    assert hive.hands.stopped == []
    assert hive.done() == []
    await hive.stop.set(False, by="ada", reason="done")
    hive.time.now += 6
    await hive.look()

    assert (await hive.latest()).outcome is Outcome.DONE


async def test_old_approval_is_void(hive: Asking) -> None:
    request = await hive.ask()
    await _approve_and_die(hive, request)

    await hive.restart()
    hive.time.now += TIMEOUT
    await hive.look()

    assert hive.hands.stopped == []
    assert (await hive.latest()).decision_reason == "the worker could not be terminated in time"


async def test_started_termination_is_not_repeated_after_a_restart(hive: Asking) -> None:
    request = await hive.ask()
    started = asyncio.Event()

    async def hangs() -> None:
        started.set()
        await asyncio.Event().wait()

    hive.hands.waits = hangs
    approving = asyncio.ensure_future(hive.approvals.approve(request.approval_id, by="ada"))
    await started.wait()

    await hive.restart()
    hive.hands.waits = None
    await hive.look()

    assert len(hive.hands.stopped) == 1
    assert (await hive.latest()).outcome is Outcome.UNCONFIRMED
    with pytest.raises(asyncio.CancelledError):
        await approving


async def test_termination_is_retried_after_a_disk_failure(hive: Asking) -> None:
    request = await hive.ask()

    async def full() -> None:
        hive.cut = None
        raise StoreError("the disk is full")

    hive.cut = full
    with pytest.raises(StoreError):
        await hive.approvals.approve(request.approval_id, by="ada")
    due = hive.approvals.next_deadline()
    assert due is not None
    assert due > hive.time.now
    hive.time.now = due
    await hive.look()

    assert len(hive.hands.stopped) == 1
    assert (await hive.latest()).outcome is Outcome.DONE


async def _approve_and_die(hive: Asking, asked: Approval) -> None:
    """Let the process end after the answer is on the disk and before anything is done."""
    reached = asyncio.Event()

    async def dies() -> None:
        reached.set()
        await asyncio.Event().wait()

    hive.cut = dies
    approving = asyncio.ensure_future(hive.approvals.approve(asked.approval_id, by="ada"))
    dying = asyncio.ensure_future(reached.wait())
    await asyncio.wait([approving, dying], return_when=asyncio.FIRST_COMPLETED)
    if not dying.done():  # refused: it was over already
        hive.cut = None
        dying.cancel()
        await approving
        return
    await hive.approvals.close()
    with pytest.raises(asyncio.CancelledError):
        await approving


@pytest.mark.parametrize(
    ("where", "stops", "outcome"),
    [("before", 1, Outcome.DONE), ("during", 0, Outcome.UNCONFIRMED)],
)
async def test_kill_during_an_approved_termination_stops_once_or_reports_unconfirmed(
    tmp_path: Path, where: str, stops: int, outcome: Outcome
) -> None:
    url = f"sqlite:///{tmp_path / 'killed.db'}"
    dying = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.health.killed_approval", url, where
    )
    assert await dying.wait() == -signal.SIGKILL
    store = Store.open(url)
    hive = Asking(store)
    await hive.get_stuck()

    await hive.service.load()
    await hive.approvals.load()
    await hive.look()

    assert len(hive.hands.stopped) == stops
    assert (await hive.latest()).outcome is outcome
    await store.close()


# -- whatever happens -------------------------------------------------------------------------------

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
        hive = Asking(store)
        await hive.get_stuck()
        for number, step in enumerate(steps):
            with contextlib.suppress(ApprovalClosedError, ApprovalNotFoundError, ActionRefusedError):
                await _take(hive, step, number)
            found = await hive.approvals.history(limit=100)
            allowed = [one for one in found if one.intervention_id]
            assert len(hive.hands.stopped) <= len(allowed)
            assert {one.incarnation_id for one in allowed} >= {t.incarnation_id for t in hive.hands.stopped}
            assert sum(one.is_open for one in found) <= 1
        await hive.approvals.close()
        await hive.service.close()
        await store.close()

    asyncio.run(live())


async def _take(hive: Asking, step: str, number: int) -> None:
    pending = [one.approval_id for one in hive.approvals.pending()]
    which = pending[0] if pending else "none"
    match step:
        case "ask" if hive.monitor.get("bee") is not None:  # it is forgotten an hour after its end
            await hive.ask()
        case "approve":
            await hive.approvals.approve(which, by="ada")
        case "deny":
            await hive.approvals.deny(which, by="ada")
        case "progress":
            await progress(hive)
            await hive.pass_time(STALL + 1)
        case "minute":
            await hive.pass_time(60)
        case "hour":
            await hive.pass_time(3600)
        case "restart":
            await hive.restart()
        case "die":
            if pending:
                await _approve_and_die(hive, hive.approvals.pending()[0])
            await hive.restart()
        case "look":
            await hive.look()
        case "new life":
            hive.time.now += 1
            await hive.start(incarnation=f"i{number + 2}")
            await hive.pass_time(2 * STALL)


# -- both databases ---------------------------------------------------------------------------------


async def test_each_database_keeps_at_most_one_open_request_per_session(
    database_url: str,
) -> None:
    store = Store.open(database_url)
    hive = Asking(store)
    await hive.get_stuck()
    request = await hive.ask()

    def another(conn: Connection) -> None:
        write_approval(conn, request.model_copy(update={"approval_id": "another"}))

    with pytest.raises(StoreError):
        await store.transact(another)
    done = await hive.approvals.approve(request.approval_id, by="ada")
    hive.time.now += 1
    await store.transact(another)

    assert [one.approval_id for one in await hive.approvals.history(limit=10, only_open=True)] == ["another"]
    assert await hive.approvals.find(request.approval_id) == done
    first = await hive.approvals.history(limit=1)
    rest = await hive.approvals.history(limit=10, before=(first[0].created_at, first[0].approval_id))
    assert len({one.approval_id for one in [*first, *rest]}) == 2
    await store.close()


async def test_old_closed_requests_are_pruned_and_open_ones_kept(hive: Asking) -> None:
    first = await hive.ask()
    await hive.approvals.deny(first.approval_id, by="ada")
    hive.time.now += TIMEOUT
    waiting = await hive.ask()
    later = hive.time.now + 31 * 86_400

    await hive.store.transact(lambda conn: prune(conn, later, RetentionSettings()))

    assert [one.approval_id for one in await hive.approvals.history(limit=10)] == [waiting.approval_id]
