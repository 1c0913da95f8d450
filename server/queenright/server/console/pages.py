"""
The console: the pages that people look at, and act from.

What a page does goes through the same functions as the API. A page changes nothing when it is looked at; its
forms are posted from our own pages only, which the gate sees to.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, select_autoescape
from markdown_it import MarkdownIt

from queenright.alerting.alert import annotations_for
from queenright.alerting.files import runbook
from queenright.health import event_log
from queenright.instrumentation.money import format_spend
from queenright.runtime.events import ALERT_CLASS, AgentEvent, EventType
from queenright.server.access.caller import caller_of
from queenright.server.console import forms
from queenright.server.console.actions import worker_acts
from queenright.server.console.answers import answers
from queenright.server.console.forms import Act, Given, IncompleteFormError, Question
from queenright.server.console.tickets import (
    can_be_acknowledged,
    can_be_silenced,
    ticket_acts,
)
from queenright.server.console.view import agent_values, breakers_values, recoveries_values
from queenright.server.routes.pagination import cursor_at, place_of
from queenright.server.routes.tickets import found_ticket
from queenright.server.service import Service
from queenright.server.views.telemetry import telemetry_values
from queenright.server.views.view import event_line, status
from queenright.server.views.words import moment, without_repeats

_PAGES: Final = Path(__file__).parents[1] / "pages"
_STATIC: Final = {
    "queenright.css": "text/css",
    "live.js": "text/javascript",
    "forms.js": "text/javascript",
}
_PAGE_REFRESH: Final = 0.5
_RECOVERIES: Final = 50
_HEADERS: Final = {
    # No script but our own, whatever a worker is called; no form to anywhere else; in nobody's frame.
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}


def add_console(app: FastAPI, service: Service) -> None:
    """Give the app its pages."""
    console = _Console(service)
    router = APIRouter(route_class=console.route_class, include_in_schema=False)
    console.add_pages(router)
    for act in (*worker_acts(service), *ticket_acts(service), *answers(service), console.you):
        console.add_act(router, act)
    # Last, as a worker may be called anything.
    router.add_api_route("/agents/{agent_id:agent}", console.agent)
    app.include_router(router)


class _Console:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._templates = Environment(
            loader=FileSystemLoader(_PAGES), autoescape=select_autoescape(default=True)
        )
        self._templates.globals |= {"agent_page": forms.agent_page, "spent": format_spend}
        self._templates.filters |= {"part": forms.part, "moment": moment}
        self._markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
        self._shown = (0.0, "")
        self.you = Act(path="/you", ask=self._ask_you, do=self._keep_you)

    def add_pages(self, router: APIRouter) -> None:
        for path, page in (
            ("/", self.home),
            ("/live", self.live),
            ("/breakers", self.breakers),
            ("/recoveries", self.recoveries),
            ("/telemetry", self.telemetry),
            ("/tickets/{ticket_id}", self.ticket),
            ("/runbooks/{name}", self.runbook),
            ("/static/{name}", self.static),
        ):
            router.add_api_route(path, page)

    # -- pages ------------------------------------------------------------------------------------

    async def home(self, request: Request) -> Response:
        return self._page(request, "status.html", status=status(self._service))

    async def live(self) -> Response:
        """The status page's content, again whenever it changes, as server-sent events."""
        service = self._service

        async def fragments() -> AsyncIterator[str]:
            before = ""
            while not service.stopping.is_set():
                html = self._live_now()
                if html != before:
                    before = html
                    yield f"data: {json.dumps(html)}\n\n"
                try:
                    await asyncio.wait_for(service.stopping.wait(), _PAGE_REFRESH)
                except TimeoutError:
                    continue

        return StreamingResponse(
            fragments(), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )

    def _live_now(self) -> str:
        """Return the status page's content, made once for all who look at the same time."""
        now = asyncio.get_running_loop().time()
        made, html = self._shown
        if not html or now - made >= _PAGE_REFRESH / 2:
            html = self._templates.get_template("live.html").render(status=status(self._service))
            self._shown = now, html
        return html

    async def agent(self, request: Request, agent_id: str = "", session: str | None = None) -> Response:
        name = agent_id or forms.agent_of(request.query_params)
        return self._page(request, "agent.html", **await agent_values(self._service, name, session or None))

    async def breakers(self, request: Request, name: str = "") -> Response:
        return self._page(request, "breakers.html", **breakers_values(self._service, name.strip()))

    async def recoveries(self, request: Request, cursor: str | None = None) -> Response:
        before = place_of(cursor, "recoveries", float, str)
        found = await self._service.health.recoveries(_RECOVERIES + 1, before=before)
        shown = found[:_RECOVERIES]
        older = (
            cursor_at("recoveries", shown[-1].created_at, shown[-1].recovery_id)
            if len(found) > _RECOVERIES
            else ""
        )
        return self._page(request, "recoveries.html", older=older, **recoveries_values(self._service, shown))

    async def telemetry(self, request: Request) -> Response:
        service = self._service
        values = telemetry_values(service.intake, service.monitor, service.clock())
        return self._page(request, "telemetry.html", otlp_port=service.settings.otlp.port, **values)

    async def ticket(self, request: Request, ticket_id: str) -> Response:
        service = self._service
        row = await found_ticket(service, ticket_id)
        ticket = await service.tickets.find(ticket_id)
        assert ticket is not None  # it was there just now, and tickets stay
        events = await service.store.read(
            lambda connection: event_log.read_events(
                connection, types=ALERT_CLASS, agent_id=ticket.worker_agent_id, limit=10_000
            )
        )
        shown, parts = parts_of(row)
        return self._page(
            request,
            "ticket.html",
            ticket=row,
            parts=parts,
            may_acknowledge=can_be_acknowledged(ticket),
            may_resolve=service.tickets.can_be_resolved(ticket),
            silences_unknown=service.silences.unknown,
            may_silence=can_be_silenced(ticket),
            known_agent=service.monitor.get(ticket.worker_agent_id) is not None,
            links=annotations_for(ticket, service.settings.alerting),
            asked=[one for one in service.approvals.pending() if one.ticket_id == ticket_id],
            events=[_line(event, shown) for _, event in events if _concerns(event.data, ticket_id)],
        )

    async def runbook(self, request: Request, name: str) -> Response:
        text = runbook(name) if re.fullmatch(r"[A-Za-z]{1,80}", name) else None
        if text is None:
            raise HTTPException(404, f"there is no runbook {name!r}")
        # A runbook names another one as the file beside it; here it is the page beside this one.
        body = self._markdown.render(re.sub(r"\]\((\w+)\.md\)", r"](\1)", text))
        return self._page(request, "runbook.html", name=name, body=body)

    async def static(self, name: str) -> Response:
        if name not in _STATIC:
            raise HTTPException(404, f"there is no file {name!r}")
        return Response((_PAGES / name).read_text("utf-8"), media_type=_STATIC[name])

    def _page(self, request: Request, template: str, *, code: int = 200, **values: Any) -> HTMLResponse:
        said = forms.said_before(request)
        text = self._templates.get_template(template).render(
            here=request.url.path,
            you=forms.known_as(request),
            token=caller_of(request).name,
            said=said,
            **values,
        )
        response = HTMLResponse(text, code, headers=dict(_HEADERS))
        if said is not None:
            forms.was_said(response)
        return response

    # -- questions --------------------------------------------------------------------------------

    def add_act(self, router: APIRouter, act: Act) -> None:
        """Give an act its page, and what is posted from it."""

        async def ask(request: Request) -> Response:
            given = {**request.query_params, **request.path_params}
            return self._ask(request, await act.ask(given), given)

        async def do(request: Request) -> Response:
            form = {**await forms.read_form(request), **request.path_params}
            question = await act.ask(form)
            try:
                by = forms.asked_by(request, form, grave=act.grave)
                forms.complete(question, form)
                done = await act.do(form, by)
            except Exception as error:
                if (refused := await _refusal(request, error)) is None:
                    raise
                code, fault = refused
                return self._ask(request, question, form, code=code, fault=fault)
            response = RedirectResponse(done.place, 303)
            forms.say_next(request, response, done)
            if not caller_of(request).name:
                forms.keep_name(request, response, by)
            return response

        router.add_api_route(act.path, ask, methods=["GET"])
        router.add_api_route(act.path, do, methods=["POST"])

    def _ask(
        self, request: Request, question: Question, given: Given, *, code: int = 200, fault: str = ""
    ) -> Response:
        # A link from elsewhere brings no cookie along: the name may well be kept, and the form sends it.
        away = request.headers.get("sec-fetch-site") == "cross-site"
        return self._page(
            request, "ask.html", code=code, question=question, given=given, fault=fault, away=away
        )

    async def _ask_you(self, given: Given) -> Question:
        return Question(
            title="Your name",
            lead="Your name is kept with what you do, and by this browser, so that you are asked once.",
            back="/",
            buttons=(forms.Button(label="Keep it"),),
        )

    async def _keep_you(self, form: Given, by: str) -> forms.Done:
        return forms.Done(place="/", words=f"You are {by}.")

    # -- what goes wrong --------------------------------------------------------------------------

    @property
    def route_class(self) -> type[APIRoute]:
        """Routes whose errors are pages, for whoever reads pages; programs get what the API says."""
        page = self._page

        class Page(APIRoute):
            def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
                handle = super().get_route_handler()

                async def answer(request: Request) -> Response:
                    try:
                        return await handle(request)
                    except Exception as error:
                        if "text/html" not in request.headers.get("accept", ""):
                            raise
                        if (refused := await _refusal(request, error)) is None:
                            raise
                        code, fault = refused
                        return page(request, "error.html", code=code, fault=fault)

                return answer

        return Page


async def _refusal(request: Request, error: Exception) -> tuple[int, str] | None:
    """Return status and words that the API has for an error; None if it has none."""
    if isinstance(error, IncompleteFormError):
        return 422, str(error)
    handlers: Mapping[Any, Any] = request.app.exception_handlers
    for kind in type(error).__mro__:
        if kind in handlers:
            response = await handlers[kind](request, error)
            return response.status_code, str(json.loads(response.body)["title"])
    return None


def parts_of(ticket: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the texts of a ticket's page, and those below its first one with their labels: each once."""
    found = [("Cause", ticket["cause"]), ("Reason", ticket["judge_reasoning"])]
    if not ticket["closed_at"]:
        found.append(("Suggested", ticket["suggested_action"]))
    found.append(("Evidence", ticket["evidence_snippet"]))
    shown, parts = [str(ticket["analysis"] or "")], []
    for label, text in found:
        if left := without_repeats(str(text or ""), shown):
            shown.append(left)
            parts.append((label, left))
    return shown, parts


def _line(event: AgentEvent, shown: Sequence[str]) -> dict[str, str]:
    """Return a line of a ticket's timeline, without what the page says above it."""
    line = event_line(event)
    if event.type is EventType.QUEEN_INTERVENTION_REQUESTED:
        left = without_repeats(str(event.data["analysis"]), shown)
        line["text"] = f"queen → operator: {left or 'a person is needed'}"
    return line


def _concerns(data: Mapping[str, Any], ticket_id: str) -> bool:
    return ticket_id in (data.get("ticket_id"), data.get("ticket", {}).get("ticket_id"))
