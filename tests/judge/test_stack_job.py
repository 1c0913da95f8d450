"""Consecutive checks of the job, with a Prometheus whose answers the test sets."""

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
from tests.judge.stack_parts import make_vector, serve_answers
from tests.judge.test_stack_workers import Rows, get_query_name, make_row

SETTINGS = HealthSettings()
TARGET = {"job": "workers", "instance": "host:9464"}


def make_target_row(value: float, **labels: str) -> tuple[dict[str, str], float]:
    return {"__name__": "up", **TARGET, **labels}, value


class PrometheusStack:
    """A Prometheus with given rows per query, and a clock."""

    def __init__(self, storage: Path) -> None:
        self.now = 1_800_000_000.0
        self.storage = storage
        self.rows: dict[str, Rows] = {}
        self.url = ""

    def answer(self, path: str, params: dict[str, str]) -> tuple[int, Any]:
        if params["query"] == "time()":
            data = {"resultType": "scalar", "result": [self.now, str(self.now)]}
            return 200, {"status": "success", "data": data}
        name = get_query_name(params["query"])
        rows = self.rows.get(name, [])
        if name == "reporting":
            [instance_pattern] = re.findall(r'instance=~"([^"]*)"', params["query"])
            rows = [
                row
                for row in rows
                if re.fullmatch(instance_pattern.replace("\\\\", "\\"), row[0]["instance"])
            ]
        return 200, make_vector(*rows)

    def show_stuck_worker(self, **labels: str) -> None:
        rows = [
            make_row("last_activity_timestamp_seconds", self.now - 30, **labels),
            make_row("steps_since_accept", 25, **labels),
        ]
        self.rows = {
            "current": rows,
            "earlier": [make_row("last_activity_timestamp_seconds", self.now - 200, **labels)],
            "reporting": [*rows, make_target_row(1, **labels)],
        }

    def show_healthy_worker(self) -> None:
        self.show_stuck_worker()
        self.rows["current"][1] = make_row("steps_since_accept", 0)

    def show_only(self, *target_rows: tuple[dict[str, str], float]) -> None:
        """Return no rows for workers, and these rows for targets and outside the selector."""
        self.rows = {"reporting": list(target_rows)}

    def make_judge(self, **options: Any) -> StackJudge:
        arguments: dict[str, Any] = {
            "tempo": None, "settings": SETTINGS, "judge": JudgeSettings(), "storage": self.storage, **options,
        }  # fmt: skip
        prometheus = Prometheus(StackAddress.parse(self.url))
        return StackJudge(prometheus=prometheus, monotonic=lambda: self.now, **arguments)

    async def check(self, after: float = 120.0, **options: Any) -> CheckResult:
        """Run a check like ``queenright judge once``, without state in memory."""
        self.now += after
        judge = self.make_judge(**options)
        await judge.open()
        try:
            return await judge.check()
        finally:
            await judge.close()


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[PrometheusStack]:
    prometheus_stack = PrometheusStack(tmp_path)
    async with serve_answers(prometheus_stack.answer) as (_, prometheus_stack.url):
        yield prometheus_stack


async def test_empty_answer_closes_no_ticket(stack: PrometheusStack) -> None:
    stack.show_stuck_worker()
    [ticket] = (await stack.check(0)).tickets
    stack.show_only()
    empty_check = await stack.check()
    stack.show_stuck_worker()
    later_check = await stack.check()

    assert (ticket.severity, ticket.status) == (Severity.CRITICAL, TicketStatus.INTERVENING)
    assert empty_check.workers == ()
    assert empty_check.closed_tickets == ()
    assert [listed_ticket.ticket_id for listed_ticket in empty_check.tickets] == [ticket.ticket_id]
    assert list(empty_check.missing) == [ticket.ticket_id]
    assert [listed_ticket.ticket_id for listed_ticket in later_check.tickets] == [ticket.ticket_id]
    assert later_check.missing == {}


async def test_worker_with_a_ticket_is_not_new_after_a_gap_in_prometheus(stack: PrometheusStack) -> None:
    stack.show_stuck_worker()
    [ticket] = (await stack.check(0)).tickets
    stack.show_stuck_worker()
    del stack.rows["earlier"]
    after_gap = await stack.check()
    stack.show_stuck_worker()
    stack.rows["start_times"] = [(TARGET, stack.now + 110)]
    new_process = await stack.check()

    assert [
        (listed_ticket.ticket_id, listed_ticket.condition_cleared_at) for listed_ticket in after_gap.tickets
    ] == [(ticket.ticket_id, None)]
    assert [listed_ticket.condition_cleared_at for listed_ticket in new_process.tickets] == [stack.now]


async def test_ticket_of_a_worker_with_a_down_target_stays_open(stack: PrometheusStack) -> None:
    """A worker that became silent has not recovered."""
    stack.show_stuck_worker()
    [ticket] = (await stack.check(0)).tickets
    last_rows = [
        make_row("last_activity_timestamp_seconds", stack.now + 10),
        make_row("steps_since_accept", 0),
    ]
    stack.rows = {"last": last_rows, "up": [make_row("up", 0, "")]}
    checks = [await stack.check() for _ in range(8)]

    assert [[listed_ticket.ticket_id for listed_ticket in check.tickets] for check in checks] == [
        [ticket.ticket_id]
    ] * 8
    assert [list(check.missing) for check in checks] == [[ticket.ticket_id]] * 8
    assert {check.down for check in checks} == {1}


async def test_worker_without_series_on_an_up_target_has_ended(stack: PrometheusStack) -> None:
    stack.show_stuck_worker()
    [ticket] = (await stack.check(0)).tickets
    stack.show_only(make_target_row(1))
    check = await stack.check()

    assert [(listed_ticket.ticket_id, listed_ticket.status) for listed_ticket in check.closed_tickets] == [
        (ticket.ticket_id, TicketStatus.WORKER_GONE)
    ]
    assert check.missing == {}


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ((), "Prometheus has no target of this name"),
        ((make_target_row(0),), "its target is down"),
        ((make_target_row(1), make_row("steps_since_accept", 25)), "the selector excludes it"),
        ((make_target_row(1), make_row("last_activity_timestamp_seconds", 1)), "the selector excludes it"),
        ((make_target_row(1, region="us"), make_target_row(0, region="eu")), "its target is down"),
        ((make_target_row(1, cluster="us"),), "Prometheus has no target of this name"),
        ((make_target_row(float("nan")),), "Prometheus has no target of this name"),
    ],
)
async def test_ticket_of_a_missing_worker_stays_open_and_is_reported_after_ten_minutes(
    stack: PrometheusStack, rows: Any, reason: str
) -> None:
    stack.show_stuck_worker()
    [ticket] = (await stack.check(0)).tickets
    missing_since = stack.now + 120
    stack.show_only(*rows)
    first = await stack.check()
    second = await stack.check(REPORT_AFTER_SECONDS)

    for check in (first, second):
        assert [listed_ticket.ticket_id for listed_ticket in check.tickets] == [ticket.ticket_id]
        assert check.closed_tickets == ()
        worker = check.missing[ticket.ticket_id]
        assert worker.since == missing_since
        assert reason in worker.why
    assert not first.missing[ticket.ticket_id].is_overdue(first.at)
    assert second.missing[ticket.ticket_id].is_overdue(second.at)


async def test_one_target_that_is_up_is_enough(stack: PrometheusStack) -> None:
    stack.show_stuck_worker()
    await stack.check(0)
    stack.show_only(make_target_row(1, replica="b"), make_target_row(0, replica="a"))

    assert [ticket.status for ticket in (await stack.check()).closed_tickets] == [TicketStatus.WORKER_GONE]


async def test_operator_can_mark_a_target_as_removed(stack: PrometheusStack) -> None:
    stack.show_stuck_worker()
    [ticket] = (await stack.check(0)).tickets
    stack.show_only()
    unrelated_check = await stack.check(removed_targets=("workers/other:9464",))
    matching_check = await stack.check(removed_targets=("workers/host:9464",))

    assert [listed_ticket.ticket_id for listed_ticket in unrelated_check.tickets] == [ticket.ticket_id]
    assert [
        (listed_ticket.ticket_id, listed_ticket.status) for listed_ticket in matching_check.closed_tickets
    ] == [(ticket.ticket_id, TicketStatus.WORKER_GONE)]


async def test_recovery_counts_only_while_it_is_observed(stack: PrometheusStack) -> None:
    stack.show_stuck_worker()
    [ticket] = (await stack.check(0)).tickets
    stack.show_healthy_worker()
    cleared_check = await stack.check()
    stack.show_only()
    empty_check = await stack.check(SETTINGS.tickets.hold_seconds + 60)
    stack.show_healthy_worker()
    later_check = await stack.check()

    assert cleared_check.closed_tickets == ()
    assert [listed_ticket.ticket_id for listed_ticket in empty_check.tickets] == [ticket.ticket_id]
    assert empty_check.closed_tickets == ()
    assert [
        (listed_ticket.ticket_id, listed_ticket.status) for listed_ticket in later_check.closed_tickets
    ] == [(ticket.ticket_id, TicketStatus.RESOLVED)]


async def test_selector_distinguishes_workers_of_the_same_name(stack: PrometheusStack) -> None:
    queries = []

    def answer(path: str, params: dict[str, str]) -> tuple[int, Any]:
        queries.append(params["query"])
        return stack.answer(path, params)

    async with serve_answers(answer) as (_, stack.url):
        stack.show_stuck_worker(region="eu")
        await stack.check(0, selector='{region="eu",agent=~"re.*"}')
        stack.show_only(make_target_row(1, region="eu"))
        await stack.check(selector='{region="eu",agent=~"re.*"}')

    assert queries[-1].endswith('instance=~"host:9464",region=~"eu|",agent=~".*"}'), queries[-1]


# -- invalid answers ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e300])
async def test_non_numeric_sample_is_skipped_counted_and_logged_once(
    stack: PrometheusStack, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    stack.show_stuck_worker()
    stack.rows |= {
        "totals": [
            make_row("steps_total", value, verdict="RETRY"),
            make_row("tool_calls_total", value, tool="x"),
        ],
        "calls": [make_row("tool_calls_total", value, tool="x", outcome="ok")],
        "start_times": [(TARGET, value)],
    }
    stack.rows["current"].append(make_row("last_progress_timestamp_seconds", value))
    judge = stack.make_judge()
    await judge.open()
    first, second = await judge.check(), await judge.check()
    await judge.close()

    assert [ticket.kind for ticket in second.tickets] == [FindingKind.RETRY_STORM]
    assert (first.skipped_samples, second.skipped_samples) == (5, 5)
    assert len([record for record in caplog.records if "skipping samples" in record.message]) == 4, (
        "one per metric"
    )


async def test_unknown_metric_is_skipped(stack: PrometheusStack, caplog: pytest.LogCaptureFixture) -> None:
    stack.show_stuck_worker()
    stack.rows["totals"] = [make_row("custom", 3.0), ({"agent": "researcher"}, 1.0)]
    stack.rows["current"].append(make_row("custom", 3.0))
    with caplog.at_level(logging.WARNING):
        check = await stack.check(0)

    assert [ticket.kind for ticket in check.tickets] == [FindingKind.RETRY_STORM]
    assert check.skipped_samples == 3
    assert "queenright_worker_custom" in caplog.text


async def test_nan_closes_no_ticket(stack: PrometheusStack) -> None:
    stack.show_stuck_worker()
    [ticket] = (await stack.check(0)).tickets
    stack.show_stuck_worker()
    stack.rows["current"][1] = make_row("steps_since_accept", float("nan"))
    check = await stack.check()

    assert [
        (listed_ticket.ticket_id, listed_ticket.condition_cleared_at) for listed_ticket in check.tickets
    ] == [(ticket.ticket_id, None)]
    assert "is not a number" in check.missing[ticket.ticket_id].why


@pytest.mark.parametrize("time", ["NaN", "+Inf", "1e400"])
async def test_invalid_time_is_an_invalid_answer(stack: PrometheusStack, time: str) -> None:
    data = {"resultType": "scalar", "result": [1, time]}
    async with serve_answers(lambda path, params: (200, {"status": "success", "data": data})) as (
        _,
        stack.url,
    ):
        with pytest.raises(StackUnavailableError, match="its time"):
            await stack.check()


@pytest.mark.parametrize(
    "result", [["x"], [{"metric": {"a": 1}, "value": [1, 10**400]}], [{"metric": [], "value": [1, "1"]}], {}]
)
@pytest.mark.parametrize("kind", ["vector", "matrix", "scalar"])
async def test_answer_of_another_type_is_invalid(stack: PrometheusStack, kind: str, result: Any) -> None:
    data = {"resultType": kind, "result": result}
    async with serve_answers(lambda path, params: (200, {"status": "success", "data": data})) as (
        _,
        stack.url,
    ):
        with pytest.raises(StackUnavailableError):
            await stack.check()


async def test_partial_answer_is_invalid(stack: PrometheusStack) -> None:
    stack.show_stuck_worker()

    def answer_partially(path: str, params: dict[str, str]) -> tuple[int, Any]:
        status, answer = stack.answer(path, params)
        return status, answer | {"isPartial": params["query"].startswith("{")}

    async with serve_answers(answer_partially) as (_, stack.url):
        with pytest.raises(StackUnavailableError, match="partial"):
            await stack.check()


# -- new workers ----------------------------------------------------------------------------------


async def test_known_worker_without_a_start_time_has_no_grace(stack: PrometheusStack) -> None:
    stack.show_stuck_worker()
    stack.rows["current"][0] = make_row("last_activity_timestamp_seconds", stack.now - 5)

    [ticket] = (await stack.check(0)).tickets

    assert ticket.kind is FindingKind.RETRY_STORM


async def test_fifteen_minutes_of_calls_without_progress_are_zero_progress_without_a_start_time(
    stack: PrometheusStack,
) -> None:
    activity_row = make_row("last_activity_timestamp_seconds", stack.now - 5)
    stack.rows = {
        "current": [activity_row],
        "earlier": [activity_row],
        "much_earlier": [activity_row],
        "calls": [make_row("tool_calls_total", 20, tool="search", outcome="ok")],
    }
    check = await stack.check(0)
    del stack.rows["much_earlier"]
    check_without_history = await stack.check(0, storage=stack.storage / "other")

    assert [ticket.kind for ticket in check.tickets] == [FindingKind.ZERO_PROGRESS]
    assert check_without_history.tickets == ()
