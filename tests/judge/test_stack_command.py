"""Output and exit codes of the job's command when a check is not as expected."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from queenright.cli.jobs.judge import TicketChanges, run_forever, run_once
from queenright.cli.options import JobOptions
from queenright.cli.output.text import format_local_time
from queenright.health.store.database import StoreError
from queenright.health.store.retention import Retention
from queenright.health.store.store import Store
from queenright.health.tickets.ticket_table import find_ticket
from queenright.judge.stack.http import InvalidQueryError, InvalidSelectorError
from queenright.judge.stack.stale_tickets import REPORT_AFTER_SECONDS, MissingWorker
from queenright.judge.stack_job import CheckResult, StackJudge
from queenright.server.ops.sockets import listen, make_socket_url, serve_app
from tests.alerting.parts import make_ticket
from tests.judge.stack_parts import serve_answers
from tests.judge.test_stack_job import SETTINGS, PrometheusStack, make_target_row
from tests.judge.test_stack_workers import make_row


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[PrometheusStack]:
    prometheus_stack = PrometheusStack(tmp_path)
    async with serve_answers(prometheus_stack.answer) as (_, prometheus_stack.url):
        yield prometheus_stack


@contextlib.asynccontextmanager
async def serve_alertmanager(alerts: list[Any]) -> AsyncIterator[str]:
    """Serve an API that accepts alerts like Alertmanager, and append them to ``alerts``."""

    async def receive_alerts(scope: Any, receive: Any, send: Any) -> None:
        body, has_more = b"", True
        while has_more:
            message = await receive()
            body, has_more = body + message.get("body", b""), message.get("more_body", False)
        alerts.extend(json.loads(body))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    sock = listen("127.0.0.1", 0, what="a stand-in", option="")
    with contextlib.closing(sock):
        async with serve_app(receive_alerts, sock):
            yield make_socket_url(sock)


@pytest.fixture
def model_without_key(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a model that fails at every call, because it has no key."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return "openai/gpt-5-mini"


async def run_check(stack: PrometheusStack, **changes: Any) -> int:
    allow_empty = changes.pop("allow_empty", False)
    options = JobOptions(**{"prometheus": stack.url, "state": stack.storage / "state", **changes})
    return await asyncio.to_thread(run_once, options, allow_empty=allow_empty)


async def test_non_numeric_samples_are_counted_and_the_check_continues(
    stack: PrometheusStack, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.show_stuck_worker()
    stack.rows["totals"] = [make_row("steps_total", float("nan")), make_row("custom", 1)]

    assert await run_check(stack) == 1
    assert "1 worker, 1 ticket, 0 dismissed, 2 samples skipped" in capsys.readouterr().out


async def test_ticket_of_a_missing_worker_shows_since_when_and_what_to_do(
    stack: PrometheusStack, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.show_stuck_worker()
    codes = [await run_check(stack)]
    stack.show_only(make_target_row(0))
    stack.rows["current"] = [make_row("last_activity_timestamp_seconds", stack.now, "somebody_else")]
    codes.append(await run_check(stack))
    first_output = capsys.readouterr().out
    stack.now += REPORT_AFTER_SECONDS
    stack.rows["current"] = [make_row("last_activity_timestamp_seconds", stack.now, "somebody_else")]
    codes += [await run_check(stack), await run_check(stack, as_json=True)]
    *ticket_lines, line = capsys.readouterr().out.splitlines()
    codes.append(await run_check(stack, gone=["workers/host:9464"]))

    assert codes == [1, 1, 1, 1, 0]
    assert "no metrics of its worker" not in first_output
    reason = "its target is down, and its last metrics are older than an hour"
    assert all(
        part in " ".join(ticket_lines)
        for part in (format_local_time(1_800_000_000.0), reason, "--gone workers/host:9464")
    )
    assert json.loads(line)["unseen"] == {"since": 1_800_000_000.0, "why": reason}


def test_unchanged_ticket_of_a_missing_worker_is_not_printed_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    open_ticket = make_ticket()
    missing_tickets = {open_ticket.ticket_id: MissingWorker(0.0, "its target is down")}
    check = CheckResult(
        at=2 * REPORT_AFTER_SECONDS,
        workers=(),
        tickets=(open_ticket,),
        closed_tickets=(),
        dismissed=0,
        unknown=0,
        missing=missing_tickets,
    )
    changes = TicketChanges(as_json=False)
    changes.print_check(check)
    capsys.readouterr()

    changes.print_tickets([open_ticket])
    changes.print_check(check)

    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("allow_empty", [False, True])
async def test_no_workers_with_an_open_ticket_is_unknown(
    stack: PrometheusStack, allow_empty: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.show_stuck_worker()
    await run_check(stack)
    stack.show_only()

    assert await run_check(stack, allow_empty=allow_empty) == 3
    output = capsys.readouterr()
    assert "1 ticket, 0 dismissed, 1 without metrics" in output.out
    assert "there are tickets, but no worker has metrics" in output.err


async def test_unexpected_error_is_unknown_and_its_output_contains_no_secret(
    stack: PrometheusStack,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(self: StackJudge) -> CheckResult:
        raise KeyError("password=hunter2hunter2")

    monkeypatch.setattr(StackJudge, "check", fail)

    assert await run_check(stack) == 3
    output = capsys.readouterr().err
    assert "KeyError" in output
    assert "in fail" in caplog.text
    assert "hunter2" not in output + caplog.text


@pytest.mark.parametrize("run_job", [run_once, lambda options: run_forever(options, 0.0)])
@pytest.mark.parametrize("state", ["/proc/nope", "{tmp}/file", "{tmp}/file/below"])
def test_unusable_state_folder_is_a_one_line_usage_error(
    tmp_path: Path, state: str, run_job: Callable[[JobOptions], int], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    folder = Path(state.format(tmp=tmp_path))

    assert run_job(JobOptions(prometheus="http://127.0.0.1:1", state=folder)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"queenright: the folder {folder} cannot be used: ")
    assert "--state" in line


def test_run_continues_after_any_error_or_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes: list[Exception | None] = [
        ZeroDivisionError("division by zero"),
        None,
        InvalidQueryError("http://prometheus", "422 too many samples"),
        RuntimeError("once more"),
    ]

    async def check(self: StackJudge) -> CheckResult:
        error = outcomes.pop(0)
        if not outcomes:
            os.kill(os.getpid(), signal.SIGTERM)
        if error is not None:
            raise error
        return CheckResult(at=0.0, workers=(), tickets=(), closed_tickets=(), dismissed=0, unknown=0)

    monkeypatch.setattr(StackJudge, "check", check)

    assert run_forever(JobOptions(prometheus="http://127.0.0.1:1", state=tmp_path), 0.0) == 0
    output = capsys.readouterr().err
    assert outcomes == []
    assert "ZeroDivisionError" in output
    assert "422 too many samples" in output
    assert "RuntimeError: once more" in output


@pytest.mark.parametrize(
    "selector", ["foo", "{job=", "{job=workers}", 'up{job="x"}', '{job="x" cluster="y"}', '{job="x}', "{job}"]
)
def test_invalid_selector_is_quoted_without_a_query(
    selector: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_once(JobOptions(prometheus="http://127.0.0.1:1", selector=selector)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "--selector" in line
    assert line.endswith(f"not {selector!r}")


@pytest.mark.parametrize(
    "selector",
    ["", "{}", " {a='b',} ", 'a="b", c!~`d,}`', '{"a.b"="c", __d_=~"e|\\"f"}', "{a!='{'}"],
)
async def test_selector_in_any_notation_is_queried(stack: PrometheusStack, selector: str) -> None:
    stack.show_stuck_worker()

    assert await run_check(stack, selector=selector) == 1


async def test_prometheus_error_about_the_selector_names_the_option(
    stack: PrometheusStack, capsys: pytest.CaptureFixture[str]
) -> None:
    def reject_selector(path: str, params: dict[str, str]) -> tuple[int, Any]:
        if params["query"] == "time()":
            return stack.answer(path, params)
        return 400, {"error": 'invalid parameter "query": 1:77: parse error: missing closing ): `(`'}

    options = JobOptions(selector='{job=~"("}')
    async with serve_answers(reject_selector) as (_, url):
        assert await asyncio.to_thread(run_once, replace(options, prometheus=url)) == 2
    output = capsys.readouterr().err
    assert """--selector '{job=~"("}'""" in output
    assert "parse error: missing closing ): `(`" in output
    assert "1:77" not in output


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"404 page not found"),
        (400, b"The plain HTTP request was sent to HTTPS port"),
        (422, b"many"),
        (200, b"<html>"),
    ],
)
async def test_other_server_is_rejected_as_prometheus(
    status: int, body: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serve_answers(lambda path, params: (status, body)) as (_, url):
        options = JobOptions(prometheus=url, selector='{job="x"}', state=tmp_path)
        assert await asyncio.to_thread(run_once, options) == 3
    output = capsys.readouterr().err
    assert url in output
    if status in (404, 200):
        assert "check the address" in output


def test_run_continues_after_a_rejected_first_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes: list[Exception | None] = [InvalidQueryError("http://prometheus", "422 too many samples"), None]

    async def check(self: StackJudge) -> CheckResult:
        error = outcomes.pop(0)
        if error is not None:
            raise error
        os.kill(os.getpid(), signal.SIGTERM)
        return CheckResult(at=0.0, workers=(), tickets=(), closed_tickets=(), dismissed=0, unknown=0)

    monkeypatch.setattr(StackJudge, "check", check)

    assert run_forever(JobOptions(prometheus="http://127.0.0.1:1", state=tmp_path), 0.0) == 0
    assert outcomes == []
    assert "422 too many samples" in capsys.readouterr().err


# -- notifications --------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [None, "kept"])
async def test_undecided_binding_ticket_is_notified_at_the_end_of_the_check(
    stack: PrometheusStack,
    state: str | None,
    tmp_path: Path,
    model_without_key: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stack.show_stuck_worker()
    alerts: list[Any] = []
    async with serve_alertmanager(alerts) as url:
        options = {"alertmanager": [url], "model": model_without_key, "state": state and tmp_path / state}
        codes = [await run_check(stack, **options)]
        stack.now += 300
        stack.show_stuck_worker()
        codes.append(await run_check(stack, **options))

    assert codes == [1, 1]
    assert [alert["labels"]["severity"] for alert in alerts] == ["critical"] * len(alerts)
    assert alerts, "no alert was sent"
    # DESIGN 36: without a state folder each run opens its own ticket, and yet there is only one alert.
    assert len({alert["labels"]["ticket_id"] for alert in alerts}) == 1
    output = capsys.readouterr().out
    assert output.count("critical intervening") == 2
    assert all("Untriaged: " in json.dumps(alert["annotations"]) for alert in alerts)


async def test_check_deletes_records_older_than_the_retention(
    stack: PrometheusStack, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.show_stuck_worker()
    await run_check(stack, as_json=True)
    ticket_id = json.loads(capsys.readouterr().out)["ticket_id"]
    stack.show_healthy_worker()
    # Longer than the hold, because the job adds the duration of its check to Prometheus' time.
    for seconds in (120, SETTINGS.tickets.hold_seconds + 60):
        stack.now += seconds
        await run_check(stack)
    kept_values = []
    for days in (29, 2):
        stack.now += days * 86_400
        await run_check(stack)
        store = Store.open(f"sqlite:///{stack.storage / 'state' / 'judge.db'}")
        kept_values.append(await store.read(lambda conn: find_ticket(conn, ticket_id)) is not None)
        await store.close()

    assert kept_values == [True, False]


async def test_failed_deletion_of_old_records_delays_no_notification(
    stack: PrometheusStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stack.show_stuck_worker()
    alerts: list[Any] = []
    failing_prune = AsyncMock(side_effect=StoreError("the disk is full"))
    monkeypatch.setattr(Retention, "prune", failing_prune)

    async with serve_alertmanager(alerts) as url:
        assert await run_check(stack, alertmanager=[url]) == 1

    assert len(alerts) == 1
    assert "Old records could not be deleted" in caplog.text


def test_run_can_be_stopped_while_it_deletes_old_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[type[BaseException]] = []

    async def check(self: StackJudge) -> CheckResult:
        return CheckResult(at=0.0, workers=(), tickets=(), closed_tickets=(), dismissed=0, unknown=0)

    async def prune(self: Retention) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 20)
        except BaseException as error:
            errors.append(type(error))
            raise

    monkeypatch.setattr(StackJudge, "check", check)
    monkeypatch.setattr(Retention, "prune", prune)

    assert run_forever(JobOptions(prometheus="http://127.0.0.1:1", state=tmp_path), 60.0) == 0
    assert errors == [asyncio.CancelledError]


async def test_check_without_an_alertmanager_sends_no_alert(
    stack: PrometheusStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A manual check with the service's settings prints the tickets and sends no page."""
    stack.show_stuck_worker()
    alerts: list[Any] = []
    async with serve_alertmanager(alerts) as url:
        config = tmp_path / "queenright.yaml"
        config.write_text(f"alerting: {{alertmanager_urls: ['{url}']}}\n")
        code = await run_check(stack, config=config)

    assert (code, alerts) == (1, [])
    assert "1 worker, 1 ticket" in capsys.readouterr().out


async def test_batch_worker_that_has_ended_causes_no_page(
    stack: PrometheusStack, capsys: pytest.CaptureFixture[str]
) -> None:
    """The target has been down for 50 min, but the worker was healthy when it was last seen."""
    activity_row = make_row("last_activity_timestamp_seconds", stack.now - 3000)
    stack.rows = {"last": [activity_row, make_row("steps_since_accept", 0)], "up": [make_row("up", 0, "")]}
    alerts: list[Any] = []
    async with serve_alertmanager(alerts) as url:
        code = await run_check(stack, alertmanager=[url])

    assert (code, alerts) == (0, [])
    assert all(part in capsys.readouterr().out for part in ("1 worker, 0 tickets",))


async def test_undelivered_tickets_are_reported(
    stack: PrometheusStack, model_without_key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.show_stuck_worker()

    assert await run_check(stack, model=model_without_key, alertmanager=["http://127.0.0.1:1"]) == 3
    assert "all notifications failed: http://127.0.0.1:1: " in capsys.readouterr().err


async def test_undecided_medium_ticket_is_reported_but_not_notified(
    stack: PrometheusStack, model_without_key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "queenright.yaml"
    config.write_text(json.dumps({"judging": {"queen": {"model": model_without_key}}}))
    activity_row = make_row("last_activity_timestamp_seconds", stack.now - 5)
    calls = [make_row("tool_calls_total", 5, tool="search", outcome="ok")]
    stack.rows = {
        "current": [activity_row],
        "earlier": [activity_row],
        "much_earlier": [activity_row],
        "calls": calls,
    }
    alerts: list[Any] = []
    async with serve_alertmanager(alerts) as url:
        code = await run_check(stack, config=config, alertmanager=[url], as_json=True)

    output = capsys.readouterr()
    ticket = json.loads(output.out)
    assert (code, alerts, ticket["severity"]) == (3, [], "medium")
    message = f"not notified, because triage has not decided: {ticket['ticket_id']} (medium)"
    assert f"queenright: {message}" in output.err.splitlines()


UNSAFE_NAME = "re\x1b]0;owned\x07se\nar\u202echer\x9b31m"


async def test_names_are_escaped_in_every_output(
    stack: PrometheusStack, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    alerts: list[Any] = []
    stack.show_stuck_worker(agent=UNSAFE_NAME)
    stack.rows["last"] = []
    stack.rows["current"].append(make_row("errors_total\x1b[2J", 1, agent=UNSAFE_NAME))
    stack.rows["calls"] = [make_row("tool_calls_total", 9, agent=UNSAFE_NAME, tool="t\x1b[2J", outcome="ok")]
    async with (
        serve_alertmanager(alerts) as url,
        serve_answers(lambda path, params: (500, b"\x1b[2J")) as (_, tempo),
    ):
        codes = [
            await run_check(stack, alertmanager=[url], tempo=tempo, as_json=as_json)
            for as_json in (False, True)
        ]

    assert codes == [1, 1]
    output = capsys.readouterr()
    output_text = output.out + output.err + caplog.text + json.dumps(alerts, ensure_ascii=False)
    assert not set(output_text) - {"\n"} & {chr(n) for n in (*range(32), *range(127, 160), 0x202E)}
    assert {alert["labels"]["agent"] for alert in alerts} == {"rese ar cher"}


async def test_missing_worker_with_an_unsafe_name_is_recognised(stack: PrometheusStack) -> None:
    stack.show_stuck_worker(agent=UNSAFE_NAME)
    codes = [await run_check(stack)]
    series = stack.rows["current"]
    stack.now += 300
    stack.rows = {
        "current": [make_row("last_activity_timestamp_seconds", stack.now, "other")],
        "reporting": [*series, make_target_row(1)],
    }
    codes.append(await run_check(stack))

    assert codes == [1, 1], "the worker exists, though the selector excludes it"


def test_run_ends_at_once_for_an_invalid_selector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(self: StackJudge) -> CheckResult:
        raise InvalidSelectorError("""'{job=~"("}'""", "parse error")

    monkeypatch.setattr(StackJudge, "check", fail)

    assert run_forever(JobOptions(prometheus="http://127.0.0.1:1", state=tmp_path), 0.0) == 2
    assert "parse error" in capsys.readouterr().err
