"""`queenright judge once` and `run`: the job, and what it prints."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import tempfile
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import typer
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from queenright.alerting.alertmanager import AlertmanagerClient
from queenright.alerting.outbox import Outbox, enqueue
from queenright.alerting.settings import AlertingSettings
from queenright.cli.signals import SIGNALS
from queenright.health.tickets import EscalationTicket, iso
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.redaction import redact
from queenright.judge.models import ModelUnavailableError
from queenright.judge.settings import JudgeSettings, ModelSettings
from queenright.judge.stack.http import InvalidSelectorError, StackAddress, StackUnavailableError
from queenright.judge.stack.prometheus import Prometheus
from queenright.judge.stack.stale_tickets import Unseen
from queenright.judge.stack.targets import is_selector
from queenright.judge.stack.tempo import Tempo
from queenright.judge.stack_job import Look, StackJudge, undecided
from queenright.runtime.events import EventType
from queenright.server.ops.folders import unusable
from queenright.server.ops.secret_files import stack_tokens
from queenright.server.settings import Settings, load_settings

NO_TICKET: Final = 0
TICKETS: Final = 1
MISUSE: Final = 2
NOT_KNOWN: Final = 3

_log = logging.getLogger(__name__)

_TRACEBACK_LIMIT: Final = 4_000
_LINE_LIMIT: Final = 4_000
_LIFETIME_WITHOUT_STATE: Final = 3_600.0
"""Seconds after which an alert ends that no job repeats, if there is no state by which to end it."""


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
    prints_only: bool = False
    """Whether nobody is told but by ``alertmanagers``: whoever looks once by hand pages nobody."""
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
        if self.outbox is None:
            return ""
        status = self.outbox.status()
        failing = {peer["peer"]: peer["error"] for peer in status["peers"] if not peer["ok"]}
        failing |= {alert["peer"]: alert["error"] for alert in status["refused"]}
        who = "nobody was told" if len(failing) == len(status["peers"]) else "not everybody was told"
        return f"{who}: {_faults(failing)}" if failing else ""


def _faults(failing: Mapping[str, str]) -> str:
    return "; ".join(f"{peer}: {error}" for peer, error in failing.items())


def run_once(options: JobOptions) -> int:
    """Look once; return the exit code. Without an Alertmanager on the command line nobody is told."""
    options = replace(options, prints_only=True)
    return _run(options, lambda settings: _look_once(options, settings))


def run_always(options: JobOptions, interval: float) -> int:
    """Look every ``interval`` seconds until a signal comes; return the exit code."""
    return _run(options, lambda settings: _look_always(options, settings, interval))


def _run(options: JobOptions, look: Callable[[Settings], Coroutine[Any, Any, int]]) -> int:
    """Return the exit code; what nobody has thought of is not known: 1 would say that there are tickets."""
    try:
        try:
            settings = _settings(options)
            if options.state is not None and (why := unusable(options.state)):
                raise ValueError(
                    f"the folder {options.state} cannot be used ({why}); name another with --state"
                )
        except (ValueError, QueenrightError) as error:
            return _say(error, MISUSE)
        _log_to_stderr()
        return asyncio.run(look(settings))
    except InvalidSelectorError as error:
        return _say(f"--selector {options.selector!r} is refused by Prometheus: {error.reason}", MISUSE)
    except ModelUnavailableError as error:
        return _say(error, MISUSE)
    except StackUnavailableError as error:
        return _say(f"{error}; {_IS_IT_THERE}", NOT_KNOWN)
    except QueenrightError as error:
        return _say(error, NOT_KNOWN)
    except OSError as error:
        return _say(error, NOT_KNOWN)
    except Exception as error:
        return _say_broken(error)


async def _look_once(options: JobOptions, settings: Settings) -> int:
    async with _job(options, settings, once=True) as job:
        return _tell_once(await job.look(), job, options)


async def _look_always(options: JobOptions, settings: Settings, interval: float) -> int:
    stop, wake = asyncio.Event(), asyncio.Event()

    def end() -> None:
        stop.set()
        wake.set()

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, end)
    async with _job(options, settings) as job:
        job.judge.bus.subscribe(
            lambda _: wake.set(), name="judge-job", types={EventType.QUEEN_INTERVENTION_REQUESTED}
        )
        news = _News(options.as_json)
        looked = False
        while not stop.is_set():
            try:
                look = await job.look()
            except QueenrightError as error:
                if isinstance(error, InvalidSelectorError) and not looked:
                    raise  # later it is Prometheus' trouble
                _say(f"not known how the workers are: {error}", NOT_KNOWN)
            except Exception as error:
                _say_broken(error)
            else:
                looked = True
                news.tell(look)
            if undelivered := job.undelivered():
                _say(f"{undelivered}; it is tried again", NOT_KNOWN)
            await _pause(job, news, stop, wake, interval)
    return 0


async def _pause(job: _Job, news: _News, stop: asyncio.Event, wake: asyncio.Event, interval: float) -> None:
    """Wait for the next look; what triage or the bypass time decides until then is told at once."""
    clock = asyncio.get_running_loop().time
    until = clock() + interval
    while not stop.is_set():
        try:
            await asyncio.wait_for(wake.wait(), max(until - clock(), 0.0))
        except TimeoutError:
            return
        wake.clear()
        try:
            await job.tell()
        except QueenrightError as error:
            _say(f"{error}; it is tried again at the next look", NOT_KNOWN)
        news.show(job.judge.tickets.open_tickets())


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
    if options.alertmanagers or options.prints_only:
        alerting = AlertingSettings.model_validate(
            {**alerting.model_dump(), "alertmanager_urls": options.alertmanagers}
        )
    settings = settings.model_copy(
        update={"judging": settings.judging.model_copy(update=judging), "alerting": alerting}
    )
    if not is_selector(options.selector):
        raise ValueError(
            f"""--selector must be label matchers, such as '{{cluster="x"}}', not {options.selector!r}"""
        )
    if settings.judging.prometheus_url is None:
        raise ValueError("say with --prometheus URL where the metrics are, or set judging.prometheus_url")
    return settings


@contextlib.asynccontextmanager
async def _job(options: JobOptions, settings: Settings, *, once: bool = False) -> AsyncIterator[_Job]:
    with contextlib.ExitStack() as stack:
        state = options.state
        if state is None:
            state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="queenright-judge-")))
        prometheus, tempo = _stack(settings.judging)
        registry, alerting = CollectorRegistry(), settings.alerting
        if options.state is None:
            # What is forgotten at the end of the job cannot be ended by the next one.
            lifetime = min(alerting.lifetime_seconds, _LIFETIME_WITHOUT_STATE)
            alerting = alerting.model_copy(update={"lifetime_seconds": lifetime})
        judge = StackJudge(
            prometheus=prometheus,
            tempo=tempo,
            settings=settings.health_monitoring,
            judge=settings.judging,
            storage=state,
            selector=options.selector,
            gone=options.gone,
            registry=registry,
            once=once,
            on_change=lambda conn, ticket: enqueue(conn, identified(ticket), alerting, judge.clock()),
        )
        await judge.open()

        def identified(ticket: EscalationTicket) -> EscalationTicket:
            """Without a state every job opens a new ticket about the same trouble, which is one alert."""
            known = {"ticket_id": ticket.fingerprint} if options.state is None else {}
            return ticket.model_copy(update=known)

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
    if look.down:
        seen += f", {look.down} with their target down"
    if look.closed:
        seen += f", {len(look.closed)} over"
    if look.unseen:
        seen += f", {len(look.unseen)} not seen"
    if look.skipped:
        seen += f", {look.skipped} samples skipped"
    typer.echo(seen, err=options.as_json)
    untold = [job.undelivered()] if job.undelivered() else []
    if job.outbox is not None and (waiting := [t for t in look.tickets if undecided(t)]):
        ids = ", ".join(f"{ticket.ticket_id} ({ticket.severity.value})" for ticket in waiting)
        untold.append(f"nobody was told: triage gave no decision on {ids}")
    if untold:
        return _say("; ".join(untold), NOT_KNOWN)
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
        self._look: Look | None = None
        self._told: dict[str, tuple[str, str, str]] = {}

    def tell(self, look: Look) -> None:
        """
        Print every ticket that is new, worse, over, of another status, or not seen for long or again.

        That nobody is seen at all, though there are tickets, is said at every look.
        """
        self._look = look
        self.show((*look.tickets, *look.closed))
        if look.blind:
            _say(_BLIND, NOT_KNOWN)
        if look.unknown:
            _say(f"{look.unknown} workers could not be judged and are looked at again", NOT_KNOWN)

    def show(self, tickets: Iterable[EscalationTicket]) -> None:
        """Print those that are not as they were when printed last, as far as the last look knows."""
        for ticket in tickets:
            unseen = _long_unseen(self._look, ticket) if self._look is not None else None
            now = (ticket.severity.value, ticket.status.value, unseen.why if unseen is not None else "")
            if self._told.get(ticket.ticket_id) != now:
                typer.echo(_line(ticket, unseen) if self._as_json else _words(ticket, unseen))
                self._told[ticket.ticket_id] = now
            if not ticket.live:
                del self._told[ticket.ticket_id]


_IS_IT_THERE: Final = (
    "is it running, and is its address right? Say with --prometheus URL where it is (--tempo URL for Tempo), "
    "or set judging.prometheus_url"
)
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
    # JSON may hold what a terminal must not be given: all but blanks is told by its number.
    text = json.dumps(told, ensure_ascii=False)
    return "".join(c if c.isprintable() or c == " " else json.dumps(c)[1:-1] for c in text)


def _words(ticket: EscalationTicket, unseen: Unseen | None = None) -> str:
    head = f"{ticket.severity.value:<8} {ticket.status.value:<12} {ticket.worker_agent_id}"
    where = f"  {ticket.kind.value} at {ticket.worker_session_id}, ticket {ticket.ticket_id}"
    if not ticket.live:
        return f"{head}\n{where}"
    words = f"{head}\n{where}\n  {_plain(ticket.analysis or ticket.cause)}"
    words += f"\n  evidence: {_plain(ticket.evidence_snippet)}"
    if unseen is None:
        return words
    return (
        f"{words}\n  its worker is not seen since {iso(unseen.since)}: {unseen.why}; "
        f"if it is no more, say --gone {ticket.worker_session_id}"
    )


def _plain(text: str) -> str:
    """Return what a model or a worker said as a terminal may be given it."""
    return "\n  ".join(clean_name(line, _LINE_LIMIT) for line in text.splitlines())


def _say(what: object, code: int) -> int:
    typer.echo(f"queenright: {what}", err=True)
    return code


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
