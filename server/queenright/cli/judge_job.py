"""`queenright judge once` and `run`: the job, and what it prints."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import tempfile
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import typer
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from queenright.alerting.alertmanager import AlertmanagerClient
from queenright.alerting.outbox import Outbox, enqueue
from queenright.alerting.settings import AlertingSettings
from queenright.cli.stopping import SIGNALS
from queenright.health.tickets import EscalationTicket, iso
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import redact
from queenright.judge.models import ModelUnavailableError
from queenright.judge.settings import JudgeSettings, ModelSettings
from queenright.judge.stack.http import QueryRefused, StackAddress
from queenright.judge.stack.job import Look, StackJudge
from queenright.judge.stack.prometheus import Prometheus
from queenright.judge.stack.tempo import Tempo
from queenright.judge.stack.unseen import Unseen
from queenright.server.secret_files import stack_tokens
from queenright.server.settings import Settings, load_settings

NO_TICKET: Final = 0
TICKETS: Final = 1
MISUSE: Final = 2
NOT_KNOWN: Final = 3

_log = logging.getLogger(__name__)

_TRACEBACK_LIMIT: Final = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What was said on the command line; None: as the settings say."""

    prometheus: str | None = field(default=None, repr=False)
    tempo: str | None = field(default=None, repr=False)
    model: str | None = None
    selector: str = ""
    gone: tuple[str, ...] = ()
    alertmanagers: tuple[str, ...] = field(default=(), repr=False)
    state: Path | None = None
    as_json: bool = False
    allow_empty: bool = False
    config: Path | None = None


@dataclass(slots=True)
class _Job:
    """A judge, and who is told of its tickets."""

    judge: StackJudge
    outbox: Outbox | None

    async def look(self) -> Look:
        look = await self.judge.look()
        await self.tell()
        return look

    async def tell(self) -> None:
        if self.outbox is not None:
            await self.outbox.deliver_due(self.judge.clock())

    def undelivered(self) -> str:
        """Say who could not be told, and why; empty if everybody was."""
        peers = self.outbox.status()["peers"] if self.outbox is not None else []
        return "; ".join(f"{peer['peer']}: {peer['error']}" for peer in peers if not peer["ok"])


def run_once(options: JobOptions) -> int:
    """Look once; return the exit code."""
    return _run(options, lambda settings: _look_once(options, settings))


def run_always(options: JobOptions, interval: float) -> int:
    """Look every ``interval`` seconds until a signal comes; return the exit code."""
    return _run(options, lambda settings: _look_always(options, settings, interval))


def _run(options: JobOptions, look: Callable[[Settings], Coroutine[Any, Any, int]]) -> int:
    """Return the exit code; what nobody has thought of is not known: 1 would say that there are tickets."""
    try:
        try:
            settings = _settings(options)
        except (ValueError, QueenrightError) as error:
            return _say(error, MISUSE)
        _log_to_stderr()
        return asyncio.run(look(settings))
    except (QueryRefused, ModelUnavailableError) as error:
        return _say(error, MISUSE)
    except QueenrightError as error:
        return _say(error, NOT_KNOWN)
    except OSError as error:
        return _say(error, NOT_KNOWN)
    except Exception as error:
        return _say_broken(error)


async def _look_once(options: JobOptions, settings: Settings) -> int:
    async with _job(options, settings) as job:
        return _tell_once(await job.look(), job, options)


async def _look_always(options: JobOptions, settings: Settings, interval: float) -> int:
    stop = asyncio.Event()
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with _job(options, settings) as job:
        news = _News(options.as_json)
        looked = False
        while not stop.is_set():
            try:
                look = await job.look()
            except QueenrightError as error:
                if isinstance(error, QueryRefused) and not looked:
                    raise  # the selector is wrong; later it is Prometheus' trouble
                _say(f"not known how the workers are: {error}", NOT_KNOWN)
            except Exception as error:
                _say_broken(error)
            else:
                looked = True
                news.tell(look)
            if undelivered := job.undelivered():
                _say(f"not delivered, and tried again: {undelivered}", NOT_KNOWN)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), interval)
    return 0


def _say_broken(error: Exception) -> int:
    """Say what nobody has thought of, for whoever can mend it."""
    _log.error("%s", redact(traceback.format_exc(), _TRACEBACK_LIMIT))
    return _say(
        f"not known how the workers are: {type(error).__name__}: {redact(str(error))}; please report it",
        NOT_KNOWN,
    )


# -- wiring ---------------------------------------------------------------------------------------


def _settings(options: JobOptions) -> Settings:
    """
    Return the settings with what was said on the command line.

    Raises:
        ValueError, QueenrightError: Something is missing or bad; the message holds no secret.
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
    if options.alertmanagers:
        alerting = AlertingSettings.model_validate(
            {**alerting.model_dump(), "alertmanager_urls": options.alertmanagers}
        )
    settings = settings.model_copy(
        update={"judging": settings.judging.model_copy(update=judging), "alerting": alerting}
    )
    if settings.judging.prometheus_url is None:
        raise ValueError("say with --prometheus URL where the metrics are, or set judging.prometheus_url")
    return settings


@contextlib.asynccontextmanager
async def _job(options: JobOptions, settings: Settings) -> AsyncIterator[_Job]:
    with contextlib.ExitStack() as stack:
        state = options.state
        if state is None:
            state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="queenright-judge-")))
        prometheus, tempo = _stack(settings.judging)
        registry, alerting = CollectorRegistry(), settings.alerting
        judge = StackJudge(
            prometheus=prometheus,
            tempo=tempo,
            settings=settings.health_monitoring,
            judge=settings.judging,
            storage=state,
            selector=options.selector,
            gone=options.gone,
            registry=registry,
            on_change=lambda conn, ticket: enqueue(conn, ticket, alerting, judge.clock()),
        )
        await judge.open()
        client = AlertmanagerClient(timeout=alerting.timeout_seconds)
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
            yield _Job(judge, outbox)
        finally:
            await client.aclose()
            await judge.close()


def _stack(judging: JudgeSettings) -> tuple[Prometheus, Tempo | None]:
    assert judging.prometheus_url is not None, "refused without"
    token, tempo_token = stack_tokens(judging)
    prometheus = Prometheus(StackAddress.parse(judging.prometheus_url.get_secret_value(), token))
    if judging.tempo_url is None:
        return prometheus, None
    return prometheus, Tempo(StackAddress.parse(judging.tempo_url.get_secret_value(), tempo_token))


# -- what is printed ------------------------------------------------------------------------------


def _tell_once(look: Look, job: _Job, options: JobOptions) -> int:
    for ticket in look.tickets:
        unseen = _long_unseen(look, ticket)
        typer.echo(_line(ticket, unseen) if options.as_json else _words(ticket, unseen))
    seen = f"{len(look.workers)} workers, {len(look.tickets)} tickets, {look.dismissed} dismissed"
    if look.closed:
        seen += f", {len(look.closed)} over"
    if look.unseen:
        seen += f", {len(look.unseen)} not seen"
    if look.skipped:
        seen += f", {look.skipped} samples skipped"
    typer.echo(seen, err=options.as_json)
    if undelivered := job.undelivered():
        return _say(f"not delivered: {undelivered}", NOT_KNOWN)
    if look.blind:
        return _say(_BLIND, NOT_KNOWN)
    if look.tickets:
        return TICKETS
    if look.unknown:
        return _say(f"{look.unknown} workers could not be judged: the model gave no answer", NOT_KNOWN)
    if not look.workers and not options.allow_empty:
        return _say(
            "no worker is known here, so nothing is known of any; see --selector, or say --allow-empty",
            NOT_KNOWN,
        )
    return NO_TICKET


class _News:
    """What has changed from look to look."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._told: dict[str, tuple[str, str, str]] = {}

    def tell(self, look: Look) -> None:
        """
        Print every ticket that is new, worse, over, of another status, or not seen for long or again.

        That nobody is seen at all, though there are tickets, is said at every look.
        """
        for ticket in (*look.tickets, *look.closed):
            unseen = _long_unseen(look, ticket)
            now = (ticket.severity.value, ticket.status.value, unseen.why if unseen is not None else "")
            if self._told.get(ticket.ticket_id) != now:
                typer.echo(_line(ticket, unseen) if self._as_json else _words(ticket, unseen))
                self._told[ticket.ticket_id] = now
            if not ticket.live:
                del self._told[ticket.ticket_id]
        if look.blind:
            _say(_BLIND, NOT_KNOWN)
        if look.unknown:
            _say(f"{look.unknown} workers could not be judged and are looked at again", NOT_KNOWN)


_BLIND: Final = (
    "not known how the workers are: no worker is seen at all, though there are tickets, which stay; "
    "is Prometheus' scrape configuration right?"
)


def _long_unseen(look: Look, ticket: EscalationTicket) -> Unseen | None:
    """Return why the ticket's worker is not seen, if that has been so for long."""
    unseen = look.unseen.get(ticket.ticket_id)
    return unseen if unseen is not None and unseen.long_at(look.at) else None


def _line(ticket: EscalationTicket, unseen: Unseen | None = None) -> str:
    told = ticket.model_dump(mode="json")
    if unseen is not None:
        told["unseen"] = {"since": iso(unseen.since), "why": unseen.why}
    return json.dumps(told, ensure_ascii=False)


def _words(ticket: EscalationTicket, unseen: Unseen | None = None) -> str:
    head = f"{ticket.severity.value:<8} {ticket.status.value:<12} {ticket.worker_agent_id}"
    where = f"  {ticket.kind.value} at {ticket.worker_session_id}, ticket {ticket.ticket_id}"
    if not ticket.live:
        return f"{head}\n{where}"
    words = f"{head}\n{where}\n  {ticket.analysis or ticket.cause}\n  evidence: {ticket.evidence_snippet}"
    if unseen is None:
        return words
    return (
        f"{words}\n  its worker is not seen since {iso(unseen.since)}: {unseen.why}; "
        f"if it is no more, say --gone {ticket.worker_session_id}"
    )


def _say(what: object, code: int) -> int:
    typer.echo(f"queenright: {what}", err=True)
    return code


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
