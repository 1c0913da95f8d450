"""
The HTML pages.

Pages use the same functions as the API. A GET changes nothing. Forms are posted from our
own pages only; the gate enforces that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from markdown_it import MarkdownIt
from starlette.staticfiles import StaticFiles

from queenright import api
from queenright.alerting.alert import annotations_for
from queenright.alerting.files import runbook
from queenright.health import event_log
from queenright.instrumentation.redaction import redact
from queenright.runtime.events import ALERT_CLASS, AgentEvent, EventType
from queenright.server.access.caller import caller_of
from queenright.server.console import forms
from queenright.server.console.actions import WORKER_ACTS
from queenright.server.console.answers import ANSWER_ACTS
from queenright.server.console.forms import Act, Given, IncompleteFormError, Question
from queenright.server.console.templates import PAGES, render
from queenright.server.console.tickets import TICKET_ACTS, can_be_silenced
from queenright.server.console.view import agent_values, breakers_values, recoveries_values
from queenright.server.problems import LONGEST_TEXT
from queenright.server.routes.dependencies import ServiceDep
from queenright.server.routes.errors import problem_of
from queenright.server.routes.pagination import cursor_at, place_of
from queenright.server.routes.tickets import find_ticket, read_ticket
from queenright.server.service import Service
from queenright.server.views.formatting import without_repeats
from queenright.server.views.telemetry import telemetry_view
from queenright.server.views.view import event_line

router = APIRouter(include_in_schema=False)

_RECOVERIES: Final = 50
_markdown: Final = MarkdownIt("commonmark", {"html": False}).enable("table")


def add_pages(app: FastAPI) -> None:
    """Add the pages, and the files that they load, to an app."""
    app.include_router(router)
    app.mount("/static", StaticFiles(directory=PAGES / "static"))


@router.get("/")
async def get_home() -> RedirectResponse:
    """Send the browser to the console."""
    return RedirectResponse("/console/")


def _add_index(name: str, place: str) -> None:
    """Add an address that people try: the page of the console that lists it."""

    async def redirect() -> RedirectResponse:
        return RedirectResponse(place)

    router.add_api_route(f"/{name}", redirect, methods=["GET"])


for index in ("agents", "sessions", "providers"):
    _add_index(index, "/console/")
for index in ("tickets", "incidents"):
    _add_index(index, f"/console/{index}")
for index in ("approvals", "escalations", "interventions"):
    _add_index(index, "/console/operate/acting")
_add_index("notifications", "/console/tickets")
_add_index("events", "/console/operate/audit")
_add_index("api", "/docs")


@router.get("/breakers")
async def get_breakers(request: Request, service: ServiceDep, name: str = "") -> HTMLResponse:
    """Return the page of circuit breakers, all or those with a text in their name."""
    return render(request, "breakers.html", **breakers_values(service, name.strip()))


@router.get("/recoveries")
async def get_recoveries(request: Request, service: ServiceDep, cursor: str | None = None) -> HTMLResponse:
    """Return the page of recoveries."""
    before = place_of(cursor, "recoveries", float, str)
    found = await service.health.recoveries(_RECOVERIES + 1, before=before)
    shown = found[:_RECOVERIES]
    older = (
        cursor_at("recoveries", shown[-1].created_at, shown[-1].recovery_id)
        if len(found) > _RECOVERIES
        else None
    )
    return render(request, "recoveries.html", older=older, **recoveries_values(service, shown))


@router.get("/telemetry")
async def get_telemetry(request: Request, service: ServiceDep) -> HTMLResponse:
    """Return the page of incoming telemetry."""
    telemetry = telemetry_view(service.intake, service.monitor)
    return render(
        request, "telemetry.html", otlp_port=service.settings.otlp.port, at=service.clock(), **vars(telemetry)
    )


@router.get("/tickets/{ticket_id}")
async def get_ticket(request: Request, service: ServiceDep, ticket_id: str) -> HTMLResponse:
    """Return the page of a ticket."""
    row = await read_ticket(service, ticket_id)
    ticket = await find_ticket(service, ticket_id)
    events = await service.store.read(
        lambda connection: event_log.read_events(
            connection, types=ALERT_CLASS, agent_id=ticket.agent_id, limit=10_000
        )
    )
    shown, parts = parts_of(row)
    return render(
        request,
        "ticket.html",
        ticket=row,
        parts=parts,
        silences_unknown=service.silences.unknown,
        may_silence=can_be_silenced(ticket),
        known_agent=service.monitor.get(ticket.agent_id) is not None,
        links=annotations_for(ticket, service.settings.alerting),
        asked=[one for one in service.approvals.pending() if one.ticket_id == ticket_id],
        events=[_line(event, shown) for _, event in events if _is_about(event.data, ticket_id)],
    )


@router.get("/runbooks/{name}")
async def get_runbook(request: Request, name: str) -> HTMLResponse:
    """Return the page of a runbook."""
    text = runbook(name) if re.fullmatch(r"[A-Za-z]{1,80}", name) else None
    if text is None:
        raise HTTPException(404, f"there is no runbook {name!r}")
    # A runbook links to another one as a file; here that is a page.
    body = _markdown.render(re.sub(r"\]\((\w+)\.md\)", r"](\1)", text))
    return render(request, "runbook.html", name=name, body=body)


# -- actions --------------------------------------------------------------------------------------


def _add_act(act: Act) -> None:
    """Add the page of an action, and the route that its form is posted to."""

    async def ask(request: Request, service: ServiceDep) -> Response:
        given = {**request.query_params, **request.path_params}
        return _ask(request, await act.ask(service, given), given)

    async def do(request: Request, service: ServiceDep) -> Response:
        form = {**await forms.read_form(request), **request.path_params}
        question = await act.ask(service, form)
        try:
            by = forms.sender_of(request, form, grave=act.grave)
            forms.complete(question, form)
            done = await act.do(service, form, by)
        except IncompleteFormError as error:
            return _ask(request, question, form, status=422, fault=str(error))
        except Exception as error:
            if (problem := problem_of(request, error)) is None:
                raise
            fault = redact(problem.title, LONGEST_TEXT)
            return _ask(request, question, form, status=problem.status, fault=fault)
        response = RedirectResponse(done.place, 303)
        forms.send_message(request, response, done)
        if not caller_of(request).name:
            forms.store_name(request, response, by)
        return response

    router.add_api_route(act.path, ask, methods=["GET"])
    router.add_api_route(act.path, do, methods=["POST"])


def _ask(
    request: Request, question: Question, given: Given, *, status: int = 200, fault: str = ""
) -> HTMLResponse:
    # A link from another site sends no cookie: the name may be stored, and the form will send it.
    away = request.headers.get("sec-fetch-site") == "cross-site"
    return render(
        request, "ask.html", status_code=status, question=question, given=given, fault=fault, away=away
    )


async def _ask_name(service: Service, given: Given) -> Question:
    return Question(
        title="Your name",
        lead="Your name is recorded with what you do. This browser remembers it.",
        back="/",
        buttons=(forms.Button(label="Save"),),
    )


async def _save_name(service: Service, form: Given, by: str) -> forms.Done:
    return forms.Done(place="/you", words=f"Your name is {by}.")


for one in (*WORKER_ACTS, *TICKET_ACTS, *ANSWER_ACTS, Act(path="/you", ask=_ask_name, do=_save_name)):
    _add_act(one)


# Last, as a worker may have any name.
@router.get("/agents/{agent_id:agent}")
async def get_agent(
    request: Request, service: ServiceDep, agent_id: str = "", session: str | None = None
) -> HTMLResponse:
    """Return the page of a worker."""
    name = agent_id or forms.agent_of(request.query_params)
    return render(request, "agent.html", **await agent_values(service, name, session or None))


def parts_of(ticket: api.Ticket) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the texts of a ticket's page, and all but the first with their labels; no sentence twice."""
    found = [("Cause", ticket.cause), ("Reason", ticket.judge_reasoning)]
    if not ticket.closed_at:
        found.append(("Suggested", ticket.suggested_action))
    found.append(("Evidence", ticket.evidence_snippet))
    shown, parts = [str(ticket.analysis or "")], []
    for label, text in found:
        if left := without_repeats(str(text or ""), shown):
            shown.append(left)
            parts.append((label, left))
    return shown, parts


def _line(event: AgentEvent, shown: Sequence[str]) -> api.FeedLine:
    """Return a line of a ticket's timeline, without the texts that the page shows above it."""
    line = event_line(event)
    if event.type is EventType.QUEEN_INTERVENTION_REQUESTED and (analysis := event.data.get("analysis")):
        rest = without_repeats(str(analysis), shown)
        return line.model_copy(update={"text": f"queen → operator: {rest or 'a person is needed'}"})
    return line


def _is_about(data: Mapping[str, Any], ticket_id: str) -> bool:
    return ticket_id in (data.get("ticket_id"), data.get("ticket", {}).get("ticket_id"))
