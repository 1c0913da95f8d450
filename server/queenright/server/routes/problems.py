"""Errors as RFC 9457 problem details."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from queenright.api.problem import Problem
from queenright.health.store import StoreError
from queenright.instrumentation.faults import fault_message
from queenright.instrumentation.redaction import redact
from queenright.server.access.headers import set_security_headers

_WORDS: Final = 4000
_VALUE: Final = 80
"""Characters of a refused value that are repeated."""


def problem(status: int, title: str, *, reason: str = "", field: str = "") -> JSONResponse:
    """
    Return an error as JSON: what is wrong, and the way out.

    What is refused is repeated in it, so that it is masked here, wherever the words come from.

    Args:
        status: The HTTP status.
        title: What is wrong.
        reason: Why an action is refused, alone.
        field: The field of an agent's input that is refused.
    """
    body = Problem(
        type="about:blank",
        title=redact(title, _WORDS),
        status=status,
        reason=redact(reason, _WORDS),
        field=redact(field, _WORDS),
    )
    return JSONResponse(
        body.model_dump(exclude_defaults=True),
        status_code=status,
        media_type="application/problem+json",
    )


def add_problems(app: FastAPI) -> None:
    """Let every error of the app be a problem."""

    @app.exception_handler(HTTPException)
    async def said(request: Request, error: HTTPException) -> JSONResponse:
        response = problem(error.status_code, str(error.detail))
        response.headers.update(error.headers or {})
        if error.status_code == 405:
            response.headers["Allow"] = ", ".join(sorted(_methods(request)))
        return response

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        if any(
            fault["loc"] == ("body",) and isinstance(fault.get("input"), bytes) for fault in error.errors()
        ):
            kind = request.headers.get("content-type", "").partition(";")[0].strip() or "nothing that is said"
            return problem(
                415, f"the body comes as {_shown(kind)}; send it as JSON, with Content-Type: application/json"
            )
        return problem(422, "; ".join(_fault(fault) for fault in error.errors()[:5]))

    @app.exception_handler(StoreError)
    async def unstored(request: Request, error: StoreError) -> JSONResponse:
        return problem(503, f"nothing was done: {error}")

    @app.exception_handler(Exception)
    async def faulty(request: Request, error: Exception) -> JSONResponse:
        # What it says is for the log, where it is written with the lines that led to it.
        response = problem(
            500, "the service itself has a fault here; its log says which, look before you ask again"
        )
        set_security_headers(response.headers)  # what else does that is further in
        return response


def _methods(request: Request) -> set[str]:
    """Return what may be done with a path: the router names only what the first of its routes takes."""
    return {
        method
        for route in request.app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }


def _fault(fault: Any) -> str:
    if fault["type"] == "json_invalid":
        why = fault.get("ctx", {}).get("error", "it cannot be read")
        return f"the body is no JSON: at character {fault['loc'][-1]}, {why}"
    where = ".".join(str(part) for part in fault["loc"] if part != "body") or "the body"
    said = fault_message(fault)
    if fault["type"] == "missing":
        return f"{where}: {said}"
    value = fault.get("input")
    if fault["type"] == "string_too_long":
        return f"{where}: {said}, not {len(value)}"
    return f"{where}: {_shown(repr(value))} is refused: {said}"


def _shown(value: str) -> str:
    """Return the beginning of a value, without its secrets."""
    if len(value) > _WORDS:
        return f"a value of {len(value)} characters"
    masked = redact(value, _WORDS)
    return masked if len(masked) <= _VALUE else f"{masked[: _VALUE - 1]}…"
