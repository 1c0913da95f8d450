"""`queenright judge once` and `run`: check workers by their metrics, and print the tickets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import tempfile
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import typer
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from queenright.alerting.alertmanager import AlertmanagerClient
from queenright.alerting.outbox import Outbox, enqueue
from queenright.alerting.settings import AlertingSettings
from queenright.cli.options import JobOptions
from queenright.cli.output.text import format_local_time
from queenright.cli.terminal.signals import STOP_SIGNALS
from queenright.health.store.retention import Retention
from queenright.health.tickets.ticket import EscalationTicket
from queenright.instrumentation.counts import format_count
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.redaction import redact
from queenright.judge.models import ModelUnavailableError
from queenright.judge.settings import JudgeSettings, ModelSettings
from queenright.judge.stack.http import InvalidSelectorError, StackAddress, StackUnavailableError
from queenright.judge.stack.prometheus import Prometheus
from queenright.judge.stack.stale_tickets import MissingWorker
from queenright.judge.stack.targets import is_selector
from queenright.judge.stack.tempo import Tempo
from queenright.judge.stack_job import CheckResult, StackJudge, is_undecided
from queenright.runtime.events import EventType
from queenright.server.ops.folders import prepare_folder
from queenright.server.ops.secret_files import read_stack_tokens
from queenright.server.settings import Settings, load_settings

NO_TICKETS: Final = 0
TICKETS: Final = 1
WRONG_USAGE: Final = 2
CHECK_FAILED: Final = 3

_log = logging.getLogger(__name__)

_TRACEBACK_LIMIT: Final = 4_000
_LINE_LIMIT: Final = 4_000
_LIFETIME_WITHOUT_STATE_SECONDS: Final = 3_600.0
"""Seconds until an alert expires that no job repeats; without state, no later job can resolve it."""


@dataclass(slots=True)
class _Job:
    """A judge, the outbox for its tickets, and the retention of its records."""

    judge: StackJudge
    outbox: Outbox | None
    retention: Retention

    async def check(self) -> CheckResult:
        result = await self.judge.check()
        await self.deliver()
        return result

    async def delete_old_records(self) -> None:
        """Delete records older than the retention. A backlog takes minutes. Failures are logged."""
        try:
            await self.retention.prune()
        except Exception:
            _log.exception("Old records could not be deleted; retrying at the next check")

    async def deliver(self) -> None:
        if self.outbox is not None:
            await self.outbox.deliver_due(self.judge.clock())

    def describe_failed_deliveries(self) -> str:
        """Return which Alertmanagers failed, and why; empty if all notifications were delivered."""
        if self.outbox is None:
            return ""
        status = self.outbox.status()
        failing = {peer.peer: peer.error for peer in status.peers if not peer.ok}
        failing |= {alert.peer: alert.error for alert in status.refused}
        share = "all" if len(failing) == len(status.peers) else "some"
        errors = "; ".join(f"{peer}: {error}" for peer, error in failing.items())
        return f"{share} notifications failed: {errors}" if failing else ""


def run_once(options: JobOptions, *, allow_empty: bool = False) -> int:
    """
    Check once; return the exit code. Only Alertmanagers of the command line are notified.

    Args:
        options: Options of the command line.
        allow_empty: Whether a check that finds no workers succeeds.
    """
    # A manual check must not page anyone through the Alertmanagers of the settings.
    settings = partial(_load_settings, options, only_named_alertmanagers=True)
    return _run(options, settings, partial(_check_once, options, allow_empty=allow_empty))


def run_forever(options: JobOptions, interval: float) -> int:
    """Check every ``interval`` seconds until SIGINT or SIGTERM; return the exit code."""
    return _run(
        options, partial(_load_settings, options), partial(_check_forever, options, interval=interval)
    )


def _run(
    options: JobOptions,
    load: Callable[[], Settings],
    check: Callable[[Settings], Coroutine[Any, Any, int]],
) -> int:
    """Return the exit code: ``CHECK_FAILED`` after any error, because 1 means that there are tickets."""
    try:
        try:
            settings = load()
            if options.state is not None and (reason := prepare_folder(options.state)):
                raise ValueError(
                    f"the folder {options.state} cannot be used: {reason}; pass another with --state"
                )
        except (ValueError, QueenrightError) as error:
            return _print_error(error, WRONG_USAGE)
        _log_to_stderr()
        return asyncio.run(check(settings))
    except InvalidSelectorError as error:
        return _print_error(
            f"--selector {options.selector!r} is refused by Prometheus: {error.reason}", WRONG_USAGE
        )
    except ModelUnavailableError as error:
        return _print_error(error, WRONG_USAGE)
    except StackUnavailableError as error:
        return _print_error(f"{error}; {_CHECK_ADDRESS}", CHECK_FAILED)
    except QueenrightError as error:
        return _print_error(error, CHECK_FAILED)
    except OSError as error:
        return _print_error(error, CHECK_FAILED)
    except Exception as error:
        return _report_unexpected_error(error)


async def _check_once(options: JobOptions, settings: Settings, *, allow_empty: bool) -> int:
    async with _open_job(options, settings, once=True) as job:
        code = _print_once(await job.check(), job, as_json=options.as_json, allow_empty=allow_empty)
        await job.delete_old_records()
        return code


async def _check_forever(options: JobOptions, settings: Settings, *, interval: float) -> int:
    stop, wake = asyncio.Event(), asyncio.Event()

    def request_stop() -> None:
        stop.set()
        wake.set()

    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, request_stop)
    async with _open_job(options, settings) as job:
        job.judge.bus.subscribe(
            lambda _: wake.set(), name="judge-job", types={EventType.QUEEN_INTERVENTION_REQUESTED}
        )
        changes = TicketChanges(options.as_json)
        has_checked = False
        while not stop.is_set():
            try:
                result = await job.check()
            except QueenrightError as error:
                if isinstance(error, InvalidSelectorError) and not has_checked:
                    raise  # after a successful check it is a problem of Prometheus
                _print_error(f"the check failed: {error}", CHECK_FAILED)
            except Exception as error:
                _report_unexpected_error(error)
            else:
                has_checked = True
                changes.print_check(result)
            if errors := job.describe_failed_deliveries():
                _print_error(f"{errors}; retrying", CHECK_FAILED)
            deletion = asyncio.create_task(job.delete_old_records())
            try:
                await _pause(job, changes, stop, wake, interval)
            finally:
                deletion.cancel()
                await asyncio.wait({deletion})
    return 0


async def _pause(
    job: _Job, changes: TicketChanges, stop: asyncio.Event, wake: asyncio.Event, interval: float
) -> None:
    """Wait for the next check. Tickets decided in the meantime are delivered and printed at once."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + interval
    while not stop.is_set():
        try:
            await asyncio.wait_for(wake.wait(), max(deadline - clock(), 0.0))
        except TimeoutError:
            return
        wake.clear()
        try:
            await job.deliver()
        except QueenrightError as error:
            _print_error(f"{error}; retrying at the next check", CHECK_FAILED)
        changes.print_tickets(job.judge.tickets.open_tickets())


def _report_unexpected_error(error: Exception) -> int:
    """Log the traceback of an unexpected error, and ask for a report."""
    _log.error("%s", redact(traceback.format_exc(), _TRACEBACK_LIMIT))
    return _print_error(
        f"the check failed unexpectedly: {type(error).__name__}: {redact(str(error))}; please report it",
        CHECK_FAILED,
    )


# -- wiring ---------------------------------------------------------------------------------------


def _load_settings(options: JobOptions, *, only_named_alertmanagers: bool = False) -> Settings:
    """
    Return the settings, with the options of the command line applied.

    Args:
        options: The options.
        only_named_alertmanagers: Notify only the Alertmanagers that the command line names.

    Raises:
        ValueError, QueenrightError: A setting is missing or invalid; the message contains no secret.
    """
    settings = load_settings(options.config)
    judging: dict[str, Any] = {}
    for name, url in (("prometheus_url", options.prometheus), ("tempo_url", options.tempo)):
        if url is not None:
            try:
                StackAddress.parse(url)
            except ValueError as error:
                raise ValueError(f"--{name.removesuffix('_url')} {error}") from None
            judging[name] = SecretStr(url)
    if options.model is not None:
        for role, model in (("judge", settings.judging.judge), ("queen", settings.judging.queen)):
            judging[role] = ModelSettings.model_validate({**model.model_dump(), "model": options.model})
    alerting = settings.alerting
    if options.alertmanager or only_named_alertmanagers:
        alerting = AlertingSettings.model_validate(
            {**alerting.model_dump(), "alertmanager_urls": options.alertmanager or ()}
        )
    settings = settings.model_copy(
        update={"judging": settings.judging.model_copy(update=judging), "alerting": alerting}
    )
    if not is_selector(options.selector):
        raise ValueError(
            f"""--selector must be label matchers, such as '{{cluster="x"}}', not {options.selector!r}"""
        )
    if settings.judging.prometheus_url is None:
        raise ValueError(
            "no Prometheus is configured: name one with --prometheus URL, or set judging.prometheus_url"
        )
    return settings


@contextlib.asynccontextmanager
async def _open_job(options: JobOptions, settings: Settings, *, once: bool = False) -> AsyncIterator[_Job]:
    with contextlib.ExitStack() as stack:
        state = options.state
        if state is None:
            state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="queenright-judge-")))
        prometheus, tempo = _open_stack(settings.judging)
        registry, alerting = CollectorRegistry(), settings.alerting
        if options.state is None:
            # Without state, the next job does not know the alert and cannot resolve it.
            lifetime = min(alerting.lifetime_seconds, _LIFETIME_WITHOUT_STATE_SECONDS)
            alerting = alerting.model_copy(update={"lifetime_seconds": lifetime})
        judge = StackJudge(
            prometheus=prometheus,
            tempo=tempo,
            settings=settings.health_monitoring,
            judge=settings.judging,
            storage=state,
            selector=options.selector,
            removed_targets=tuple(options.gone or ()),
            registry=registry,
            once=once,
            on_change=lambda conn, ticket: enqueue(conn, with_stable_id(ticket), alerting, judge.clock()),
        )
        await judge.open()

        def with_stable_id(ticket: EscalationTicket) -> EscalationTicket:
            """Use a stable id without state: every job opens a new ticket for what must stay one alert."""
            labels = {"ticket_id": ticket.fingerprint} if options.state is None else {}
            return ticket.model_copy(update=labels)

        client = AlertmanagerClient()
        try:
            outbox = None
            if alerting.alertmanager_urls:
                outbox = Outbox(
                    judge.store,
                    alerting,
                    client,
                    clock=judge.clock,
                    publish=judge.bus.publish,
                    registry=registry,
                )
            retention = Retention(judge.store, settings.health_monitoring.retention, clock=judge.clock)
            yield _Job(judge, outbox, retention)
        finally:
            await client.aclose()
            await judge.close()


def _open_stack(judging: JudgeSettings) -> tuple[Prometheus, Tempo | None]:
    assert judging.prometheus_url is not None, "checked by _load_settings"
    token, tempo_token = read_stack_tokens(judging)
    prometheus = Prometheus(StackAddress.parse(judging.prometheus_url.get_secret_value(), token))
    if judging.tempo_url is None:
        return prometheus, None
    return prometheus, Tempo(StackAddress.parse(judging.tempo_url.get_secret_value(), tempo_token))


# -- output -------------------------------------------------------------------------------


def _print_once(result: CheckResult, job: _Job, *, as_json: bool, allow_empty: bool) -> int:
    for ticket in result.tickets:
        missing = _find_overdue_worker(result, ticket)
        typer.echo(_format_json_line(ticket, missing) if as_json else _format_ticket(ticket, missing))
    summary = (
        f"{format_count(len(result.workers), 'worker')}, {format_count(len(result.tickets), 'ticket')}, "
        f"{result.dismissed:,} dismissed"
    )
    if result.down:
        summary += f", {result.down} with their target down"
    if result.closed_tickets:
        summary += f", {len(result.closed_tickets)} closed"
    if result.missing:
        summary += f", {len(result.missing)} without metrics"
    if result.skipped_samples:
        summary += f", {format_count(result.skipped_samples, 'sample')} skipped"
    typer.echo(summary, err=as_json)
    problems = [errors] if (errors := job.describe_failed_deliveries()) else []
    if job.outbox is not None and (untriaged := [t for t in result.tickets if is_undecided(t)]):
        ids = ", ".join(f"{ticket.ticket_id} ({ticket.severity.value})" for ticket in untriaged)
        problems.append(f"not notified, because triage has not decided: {ids}")
    if problems:
        return _print_error("; ".join(problems), CHECK_FAILED)
    if result.is_blind:
        return _print_error(_NO_WORKERS, CHECK_FAILED)
    if result.tickets:
        return TICKETS
    if result.unknown:
        return _print_error(
            f"{format_count(result.unknown, 'worker')} could not be judged: the model did not answer",
            CHECK_FAILED,
        )
    if not result.workers and not allow_empty:
        return _print_error(
            "no workers found; check --selector, or pass --allow-empty",
            CHECK_FAILED,
        )
    return NO_TICKETS


class TicketChanges:
    """Prints each ticket when it opens, changes or closes."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._result: CheckResult | None = None
        self._last_lines: dict[str, tuple[str, str, str]] = {}

    def print_check(self, result: CheckResult) -> None:
        """Print the tickets that changed, and problems of the check itself."""
        self._result = result
        self.print_tickets((*result.tickets, *result.closed_tickets))
        if result.is_blind:
            _print_error(_NO_WORKERS, CHECK_FAILED)
        if result.unknown:
            _print_error(
                f"{format_count(result.unknown, 'worker')} could not be judged; retrying at the next check",
                CHECK_FAILED,
            )

    def print_tickets(self, tickets: Iterable[EscalationTicket]) -> None:
        """Print the tickets whose severity, status or missing metrics changed since they were printed."""
        for ticket in tickets:
            missing = _find_overdue_worker(self._result, ticket) if self._result is not None else None
            shown_values = (
                ticket.severity.value,
                ticket.status.value,
                missing.why if missing is not None else "",
            )
            if self._last_lines.get(ticket.ticket_id) != shown_values:
                typer.echo(
                    _format_json_line(ticket, missing) if self._as_json else _format_ticket(ticket, missing)
                )
                self._last_lines[ticket.ticket_id] = shown_values
            if not ticket.is_live:
                del self._last_lines[ticket.ticket_id]


_CHECK_ADDRESS: Final = (
    "check that it runs, and its address: --prometheus URL (--tempo URL for Tempo), or judging.prometheus_url"
)
_NO_WORKERS: Final = (
    "there are tickets, but no worker has metrics; the tickets stay open. "
    "Check the scrape configuration of Prometheus"
)


def _find_overdue_worker(result: CheckResult, ticket: EscalationTicket) -> MissingWorker | None:
    """Return the worker of a ticket if its metrics have been missing for long, otherwise None."""
    missing = result.missing.get(ticket.ticket_id)
    return missing if missing is not None and missing.is_overdue(result.at) else None


def _format_json_line(ticket: EscalationTicket, missing: MissingWorker | None = None) -> str:
    row = ticket.model_dump(mode="json")
    if missing is not None:
        row["unseen"] = {"since": missing.since, "why": missing.why}
    # Escape control characters, which a terminal must not receive.
    text = json.dumps(row, ensure_ascii=False)
    return "".join(c if c.isprintable() or c == " " else json.dumps(c)[1:-1] for c in text)


def _format_ticket(ticket: EscalationTicket, missing: MissingWorker | None = None) -> str:
    head = f"{ticket.severity.value:<8} {ticket.status.value:<12} {ticket.agent_id}"
    details = f"  {ticket.kind.value} at {ticket.session_id}, ticket {ticket.ticket_id}"
    if not ticket.is_live:
        return f"{head}\n{details}"
    text = f"{head}\n{details}\n  {_clean_lines(ticket.analysis or ticket.cause)}"
    text += f"\n  evidence: {_clean_lines(ticket.evidence_snippet)}"
    if missing is None:
        return text
    return (
        f"{text}\n  no metrics of its worker since {format_local_time(missing.since)}: {missing.why}; "
        f"if it was removed, pass --gone {ticket.session_id}"
    )


def _clean_lines(text: str) -> str:
    """Return text of a model or a worker without control characters."""
    return "\n  ".join(clean_name(line, _LINE_LIMIT) for line in text.splitlines())


def _print_error(message: object, code: int) -> int:
    typer.echo(f"queenright: {message}", err=True)
    return code


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
