"""The job's looks one after another, on a Prometheus that answers what a test says."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from queenright.health.findings import FindingKind, Severity
from queenright.health.settings import HealthSettings
from queenright.health.tickets.ticket import TicketStatus
from queenright.judge.settings import JudgeSettings
from queenright.judge.stack.http import StackAddress, StackUnavailableError
from queenright.judge.stack.prometheus import Prometheus
from queenright.judge.stack.stale_tickets import REPORT_AFTER_SECONDS
from queenright.judge.stack_job import CheckResult, StackJudge
from tests.judge.stack_parts import serving, vector
from tests.judge.test_stack_workers import Rows, row, which

SETTINGS = HealthSettings()
TARGET = {"job": "workers", "instance": "host:9464"}


def up(value: float, **labels: str) -> tuple[dict[str, str], float]:
    return {"__name__": "up", **TARGET, **labels}, value


class Stack:
    """A Prometheus: what it answers to each question, and what time it is."""

    def __init__(self, storage: Path) -> None:
        self.now = 1_800_000_000.0
        self.storage = storage
        self.told: dict[str, Rows] = {}
        self.url = ""

    def answer(self, path: str, params: dict[str, str]) -> tuple[int, Any]:
        if params["query"] == "time()":
            data = {"resultType": "scalar", "result": [self.now, str(self.now)]}
            return 200, {"status": "success", "data": data}
        question = which(params["query"])
        rows = self.told.get(question, [])
        if question == "still":
            [instances] = re.findall(r'instance=~"([^"]*)"', params["query"])
            rows = [one for one in rows if re.fullmatch(instances.replace("\\\\", "\\"), one[0]["instance"])]
        return 200, vector(*rows)

    def is_stuck(self, **labels: str) -> None:
        here = [
            row("last_activity_timestamp_seconds", self.now - 30, **labels),
            row("steps_since_accept", 25, **labels),
        ]
        self.told = {
            "here": here,
            "before": [row("last_activity_timestamp_seconds", self.now - 200, **labels)],
            "still": [*here, up(1, **labels)],
        }

    def is_well(self) -> None:
        self.is_stuck()
        self.told["here"][1] = row("steps_since_accept", 0)

    def says(self, *still: tuple[dict[str, str], float]) -> None:
        """Nothing of any worker; of targets, and outside the selector, only this."""
        self.told = {"still": list(still)}

    def judge(self, **more: Any) -> StackJudge:
        given: dict[str, Any] = {
            "tempo": None, "settings": SETTINGS, "judge": JudgeSettings(), "storage": self.storage, **more,
        }  # fmt: skip
        prometheus = Prometheus(StackAddress.parse(self.url))
        return StackJudge(prometheus=prometheus, monotonic=lambda: self.now, **given)

    async def look(self, after: float = 120.0, **more: Any) -> CheckResult:
        """CheckResult as ``once`` does: with nothing in memory."""
        self.now += after
        judge = self.judge(**more)
        await judge.open()
        try:
            return await judge.check()
        finally:
            await judge.close()


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    made = Stack(tmp_path)
    async with serving(made.answer) as (_, made.url):
        yield made


async def test_empty_answer_closes_no_ticket(stack: Stack) -> None:
    stack.is_stuck()
    [ticket] = (await stack.look(0)).tickets
    stack.says()
    empty = await stack.look()
    stack.is_stuck()
    back = await stack.look()

    assert (ticket.severity, ticket.status) == (Severity.CRITICAL, TicketStatus.INTERVENING)
    assert empty.workers == ()
    assert empty.closed_tickets == ()
    assert [t.ticket_id for t in empty.tickets] == [ticket.ticket_id]
    assert list(empty.missing) == [ticket.ticket_id]
    assert [t.ticket_id for t in back.tickets] == [ticket.ticket_id]
    assert back.missing == {}


async def test_worker_with_a_ticket_is_not_new_after_a_prometheus_gap(stack: Stack) -> None:
    stack.is_stuck()
    [ticket] = (await stack.look(0)).tickets
    stack.is_stuck()
    del stack.told["before"]
    after_gap = await stack.look()
    stack.is_stuck()
    stack.told["started"] = [(TARGET, stack.now + 110)]
    new_process = await stack.look()

    assert [(t.ticket_id, t.condition_cleared_at) for t in after_gap.tickets] == [(ticket.ticket_id, None)]
    assert [t.condition_cleared_at for t in new_process.tickets] == [stack.now]


async def test_ticket_of_a_worker_with_a_down_target_stays(stack: Stack) -> None:
    """That it is silent since is no recovery."""
    stack.is_stuck()
    [ticket] = (await stack.look(0)).tickets
    gone = [row("last_activity_timestamp_seconds", stack.now + 10), row("steps_since_accept", 0)]
    stack.told = {"gone": gone, "up": [row("up", 0, "")]}
    looks = [await stack.look() for _ in range(8)]

    assert [[t.ticket_id for t in look.tickets] for look in looks] == [[ticket.ticket_id]] * 8
    assert [list(look.missing) for look in looks] == [[ticket.ticket_id]] * 8
    assert {look.down for look in looks} == {1}


async def test_worker_without_series_on_an_up_target_has_ended(stack: Stack) -> None:
    stack.is_stuck()
    [ticket] = (await stack.look(0)).tickets
    stack.says(up(1))
    ended = await stack.look()

    assert [(t.ticket_id, t.status) for t in ended.closed_tickets] == [
        (ticket.ticket_id, TicketStatus.WORKER_GONE)
    ]
    assert ended.missing == {}


@pytest.mark.parametrize(
    ("still", "why"),
    [
        ((), "Prometheus has no target of this name"),
        ((up(0),), "its target is down"),
        ((up(1), row("steps_since_accept", 25)), "the selector excludes it"),
        ((up(1), row("last_activity_timestamp_seconds", 1)), "the selector excludes it"),
        ((up(1, region="us"), up(0, region="eu")), "its target is down"),
        ((up(1, cluster="us"),), "Prometheus has no target of this name"),
        ((up(float("nan")),), "Prometheus has no target of this name"),
    ],
)
async def test_unconfirmed_recovery_keeps_the_ticket_and_is_reported_after_ten_minutes(
    stack: Stack, still: Any, why: str
) -> None:
    stack.is_stuck()
    [ticket] = (await stack.look(0)).tickets
    since = stack.now + 120
    stack.says(*still)
    first = await stack.look()
    later = await stack.look(REPORT_AFTER_SECONDS)

    for check in (first, later):
        assert [t.ticket_id for t in check.tickets] == [ticket.ticket_id]
        assert check.closed_tickets == ()
        unseen = check.missing[ticket.ticket_id]
        assert unseen.since == since
        assert why in unseen.why
    assert not first.missing[ticket.ticket_id].is_overdue(first.at)
    assert later.missing[ticket.ticket_id].is_overdue(later.at)


async def test_one_scraping_replica_is_enough(stack: Stack) -> None:
    stack.is_stuck()
    await stack.look(0)
    stack.says(up(1, replica="b"), up(0, replica="a"))

    assert [t.status for t in (await stack.look()).closed_tickets] == [TicketStatus.WORKER_GONE]


async def test_operator_can_mark_a_target_as_removed(stack: Stack) -> None:
    stack.is_stuck()
    [ticket] = (await stack.look(0)).tickets
    stack.says()
    other = await stack.look(removed_targets=("workers/other:9464",))
    result = await stack.look(removed_targets=("workers/host:9464",))

    assert [t.ticket_id for t in other.tickets] == [ticket.ticket_id]
    assert [(t.ticket_id, t.status) for t in result.closed_tickets] == [
        (ticket.ticket_id, TicketStatus.WORKER_GONE)
    ]


async def test_recovery_holds_only_while_observed(stack: Stack) -> None:
    stack.is_stuck()
    [ticket] = (await stack.look(0)).tickets
    stack.is_well()
    cleared = await stack.look()
    stack.says()
    empty = await stack.look(SETTINGS.tickets.hold_seconds + 60)
    stack.is_well()
    back = await stack.look()

    assert cleared.closed_tickets == ()
    assert [t.ticket_id for t in empty.tickets] == [ticket.ticket_id]
    assert empty.closed_tickets == ()
    assert [(t.ticket_id, t.status) for t in back.closed_tickets] == [
        (ticket.ticket_id, TicketStatus.RESOLVED)
    ]


async def test_selector_chooses_among_equal_names(stack: Stack) -> None:
    queries = []

    def answer(path: str, params: dict[str, str]) -> tuple[int, Any]:
        queries.append(params["query"])
        return stack.answer(path, params)

    async with serving(answer) as (_, stack.url):
        stack.is_stuck(region="eu")
        await stack.look(0, selector='{region="eu",agent=~"re.*"}')
        stack.says(up(1, region="eu"))
        await stack.look(selector='{region="eu",agent=~"re.*"}')

    assert queries[-1].endswith('instance=~"host:9464",region=~"eu|",agent=~".*"}'), queries[-1]


# -- answers that are not as they should be -------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e300])
async def test_non_numeric_sample_is_skipped_counted_and_logged_once(
    stack: Stack, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    stack.is_stuck()
    stack.told |= {
        "totals": [row("steps_total", value, verdict="RETRY"), row("tool_calls_total", value, tool="x")],
        "calls": [row("tool_calls_total", value, tool="x", outcome="ok")],
        "started": [(TARGET, value)],
    }
    stack.told["here"].append(row("last_progress_timestamp_seconds", value))
    judge = stack.judge()
    await judge.open()
    first, second = await judge.check(), await judge.check()
    await judge.close()

    assert [t.kind for t in second.tickets] == [FindingKind.RETRY_STORM]
    assert (first.skipped_samples, second.skipped_samples) == (5, 5)
    assert len([r for r in caplog.records if "skipping samples" in r.message]) == 4, "one for each metric"


async def test_unknown_metric_is_skipped(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    stack.is_stuck()
    stack.told["totals"] = [row("custom", 3.0), ({"agent": "researcher"}, 1.0)]
    stack.told["here"].append(row("custom", 3.0))
    with caplog.at_level(logging.WARNING):
        check = await stack.look(0)

    assert [t.kind for t in check.tickets] == [FindingKind.RETRY_STORM]
    assert check.skipped_samples == 3
    assert "queenright_worker_custom" in caplog.text


async def test_nan_closes_no_ticket(stack: Stack) -> None:
    stack.is_stuck()
    [ticket] = (await stack.look(0)).tickets
    stack.is_stuck()
    stack.told["here"][1] = row("steps_since_accept", float("nan"))
    doubtful = await stack.look()

    assert [(t.ticket_id, t.condition_cleared_at) for t in doubtful.tickets] == [(ticket.ticket_id, None)]
    assert "is not a number" in doubtful.missing[ticket.ticket_id].why


@pytest.mark.parametrize("time", ["NaN", "+Inf", "1e400"])
async def test_invalid_time_is_an_invalid_answer(stack: Stack, time: str) -> None:
    data = {"resultType": "scalar", "result": [1, time]}
    async with serving(lambda path, params: (200, {"status": "success", "data": data})) as (_, stack.url):
        with pytest.raises(StackUnavailableError, match="its time"):
            await stack.look()


@pytest.mark.parametrize(
    "result", [["x"], [{"metric": {"a": 1}, "value": [1, 10**400]}], [{"metric": [], "value": [1, "1"]}], {}]
)
@pytest.mark.parametrize("kind", ["vector", "matrix", "scalar"])
async def test_answer_of_another_shape_is_invalid(stack: Stack, kind: str, result: Any) -> None:
    data = {"resultType": kind, "result": result}
    async with serving(lambda path, params: (200, {"status": "success", "data": data})) as (_, stack.url):
        with pytest.raises(StackUnavailableError):
            await stack.look()


async def test_partial_answer_is_invalid(stack: Stack) -> None:
    stack.is_stuck()

    def partial(path: str, params: dict[str, str]) -> tuple[int, Any]:
        status, answer = stack.answer(path, params)
        return status, answer | {"isPartial": params["query"].startswith("{")}

    async with serving(partial) as (_, stack.url):
        with pytest.raises(StackUnavailableError, match="partial"):
            await stack.look()


# -- who is new -----------------------------------------------------------------------------------


async def test_known_worker_without_a_start_time_has_no_grace(stack: Stack) -> None:
    stack.is_stuck()
    stack.told["here"][0] = row("last_activity_timestamp_seconds", stack.now - 5)

    [ticket] = (await stack.look(0)).tickets

    assert ticket.kind is FindingKind.RETRY_STORM


async def test_fifteen_minutes_of_calls_without_progress_are_zero_progress_without_a_start_time(
    stack: Stack,
) -> None:
    activity = row("last_activity_timestamp_seconds", stack.now - 5)
    stack.told = {
        "here": [activity],
        "before": [activity],
        "long_before": [activity],
        "calls": [row("tool_calls_total", 20, tool="search", outcome="ok")],
    }
    check = await stack.look(0)
    del stack.told["long_before"]
    shorter = await stack.look(0, storage=stack.storage / "other")

    assert [t.kind for t in check.tickets] == [FindingKind.ZERO_PROGRESS]
    assert shorter.tickets == ()
