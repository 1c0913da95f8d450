"""Exception handlers: turn every error that a route may raise into a problem or a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import quote, urlencode

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import iter_route_contexts
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from queenright.alerting.alertmanager import AlertmanagerError, AlertsRejectedError, SilenceNotFoundError
from queenright.alerting.callbacks.alertmanager import InvalidWebhookError
from queenright.alerting.callbacks.pagerduty import InvalidEventError
from queenright.alerting.callbacks.signatures import InvalidSignatureError
from queenright.alerting.callbacks.slack_buttons import InvalidInteractionError
from queenright.api.problem import Problem
from queenright.health.detection.evaluation_thresholds import InvalidThresholdError
from queenright.health.interventions.permit import ActionRefusedError
from queenright.health.monitoring.heartbeat import InvalidHeartbeatError
from queenright.health.monitoring_service import AgentNotFoundError
from queenright.health.store.former_names import find_current_name
from queenright.health.store.store import StoreError
from queenright.instrumentation.errors import ConflictError, InvalidValueError, NotFoundError
from queenright.instrumentation.redaction import redact
from queenright.instrumentation.validation_messages import describe_faults, shorten_value
from queenright.judge.chat import ChatInterruptedError
from queenright.runtime.inputs import InvalidInputError
from queenright.runtime.stream import TooManyWaitingError
from queenright.server.access.headers import set_security_headers
from queenright.server.agents.manager import LoadTimeoutError, ManagerClosingError
from queenright.server.http.problems import MAX_TEXT_LENGTH, make_problem_response, render_problem
from queenright.server.otlp.errors import OTLP_PATHS, describe_wrong_port
from queenright.server.routes.pagination import InvalidCursorError

STATUS: Final[Mapping[type[Exception], int]] = {
    NotFoundError: 404,
    ConflictError: 409,
    InvalidValueError: 422,
    InvalidCursorError: 400,
    InvalidEventError: 400,
    InvalidHeartbeatError: 400,
    InvalidInteractionError: 400,
    InvalidWebhookError: 400,
    InvalidSignatureError: 403,
    SilenceNotFoundError: 404,
    AlertsRejectedError: 409,
    TooManyWaitingError: 429,
    AlertmanagerError: 502,
    ChatInterruptedError: 503,
    LoadTimeoutError: 503,
    ManagerClosingError: 503,
    StoreError: 503,
}
"""The status of each exception and its subclasses."""

_RETRY_AFTER_SECONDS: Final = "5"
"""Value of ``Retry-After`` if too many runs are queued."""


ErrorPage = Callable[[int, str], Response]
"""Renders a status and an error message for a browser."""


def add_exception_handlers(app: Starlette, page: ErrorPage) -> None:
    """Respond to every exception with a problem, or with an error page if the client is a browser."""
    for kind in (HTTPException, RequestValidationError, *STATUS):
        app.add_exception_handler(kind, partial(_handle_error, page))
    app.add_exception_handler(Exception, _handle_unexpected_error)


def to_problem(request: Request, error: Exception) -> Problem | None:
    """Convert an exception to a problem; None for an unexpected exception."""
    if isinstance(error, HTTPException):
        title = str(error.detail)
        if title == HTTPStatus.NOT_FOUND.phrase:  # raised by the router
            title = f"there is no {shorten_value(request.url.path)}; see /docs for the API"
            if request.url.path in OTLP_PATHS:
                otlp = request.state.service.settings.otlp
                title = describe_wrong_port(f"http://{request.url.hostname}:{otlp.port}")
        return _make_problem(error.status_code, title)
    if isinstance(error, RequestValidationError):
        return _describe_invalid_request(request, error)
    if isinstance(error, StoreError):
        return _make_problem(503, f"nothing was done: {error}")
    if isinstance(error, SilenceNotFoundError):
        silence_id = shorten_value(request.path_params.get("silence_id", ""))
        return _make_problem(
            404, f"no Alertmanager knows the silence {silence_id}; list them: queenright silences"
        )
    status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), None)
    if status is None:
        return None
    reason = error.reason if isinstance(error, ActionRefusedError) else ""
    field = error.field if isinstance(error, InvalidInputError | InvalidThresholdError) else ""
    return _make_problem(status, str(error), reason=reason, field=field)


def wants_page(request: Request) -> bool:
    """Return whether the client is a browser that expects a page."""
    is_api = request.url.path.startswith(("/api/", "/-/"))
    return not is_api and "text/html" in request.headers.get("accept", "")


async def _handle_error(page: ErrorPage, request: Request, error: Exception) -> Response:
    if isinstance(error, AgentNotFoundError) and request.method in ("GET", "HEAD"):
        current_name = await request.state.service.store.read(
            lambda conn: find_current_name(conn, error.agent_id, error.session_id)
        )
        if current_name is not None and (address := _rename_in_url(request, error.agent_id, *current_name)):
            return RedirectResponse(address)
    problem = to_problem(request, error)
    assert problem is not None
    response: Response
    if wants_page(request):
        response = page(problem.status, redact(problem.title, MAX_TEXT_LENGTH))
    else:
        response = render_problem(problem)
    if isinstance(error, HTTPException):
        response.headers.update(error.headers or {})
    if isinstance(error, TooManyWaitingError):
        response.headers["Retry-After"] = _RETRY_AFTER_SECONDS
    if problem.status == 405:
        response.headers["Allow"] = ", ".join(sorted(_find_allowed_methods(request)))
    return response


def _rename_in_url(request: Request, old_name: str, agent_id: str, session_id: str) -> str:
    """Return the URL with a worker's new name; "" if the path does not contain the old name."""
    base, separator, rest = request.scope["path"].partition(f"/agents/{old_name}")
    if not separator or rest[:1] not in ("", "/"):
        return ""
    query = dict(request.query_params)
    if "session_id" in query:
        query["session_id"] = session_id
    path = f"{base}/agents/{quote(agent_id, safe='')}{rest}"
    return f"{path}?{urlencode(query)}" if query else path


async def _handle_unexpected_error(request: Request, error: Exception) -> Response:
    # The log has the traceback. The response must not reveal it.
    response = make_problem_response(500, "the service has an internal error; see its log before you retry")
    # The middleware that sets these headers does not see this response.
    set_security_headers(response.headers)
    return response


def _make_problem(status: int, title: str, *, reason: str = "", field: str = "") -> Problem:
    return Problem(type="about:blank", title=title, status=status, reason=reason, field=field)


def _find_allowed_methods(request: Request) -> set[str]:
    """Return the methods of the most specific matching path, because an agent's name matches many paths."""
    matching_routes = [
        route
        for route in iter_route_contexts(request.app.routes)
        if isinstance(route.original_route, Route)
        and route.original_route.matches(request.scope)[0] is not Match.NONE
    ]
    paths = [route.path for route in matching_routes if route.path is not None]
    path = max(paths, key=lambda path: (path.count("/"), -path.count("{")), default="")
    return {method for route in matching_routes if route.path == path for method in route.methods or ()}


def _describe_invalid_request(request: Request, error: RequestValidationError) -> Problem:
    faults = error.errors()
    if any(fault["loc"] == ("body",) and isinstance(fault.get("input"), bytes) for fault in faults):
        content_type = request.headers.get("content-type", "").partition(";")[0].strip() or "nothing"
        return _make_problem(
            415,
            f"Content-Type is {shorten_value(content_type)}; send JSON with Content-Type: application/json",
        )
    if faults[0]["type"] == "json_invalid":
        reason = faults[0].get("ctx", {}).get("error", "it cannot be read")
        position = f"at character {faults[0]['loc'][-1]}"
        return _make_problem(422, f"the body is not valid JSON: {position}, {reason}")
    named_faults = [
        {**fault, "loc": tuple(part for part in fault["loc"] if part != "body")} for fault in faults
    ]
    return _make_problem(422, describe_faults(named_faults))
