"""Errors as RFC 9457 problem details, and who may change anything: nobody's web page but our own."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from queenright.health.store import StoreError
from queenright.instrumentation.redaction import redact

MAX_BODY: Final = 1 << 20
_CHANGING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def problem(status: int, title: str, **more: Any) -> JSONResponse:
    """Return an error as JSON: what is wrong, and the way out."""
    return JSONResponse(
        {"type": "about:blank", "title": title, "status": status} | more,
        status_code=status,
        media_type="application/problem+json",
    )


def add_problems(app: FastAPI) -> None:
    """Let every error of the app be a problem, and refuse what other sites' pages send."""

    @app.exception_handler(HTTPException)
    async def said(request: Request, error: HTTPException) -> JSONResponse:
        return problem(error.status_code, str(error.detail))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return problem(422, "; ".join(_fault(fault) for fault in error.errors()[:5]))

    @app.exception_handler(StoreError)
    async def unstored(request: Request, error: StoreError) -> JSONResponse:
        return problem(503, f"nothing was done: {error}")

    @app.middleware("http")
    async def guard(request: Request, call_next: Any) -> Response:
        refusal = foreign(request) or _too_long(request)
        response: Response = refusal or await call_next(request)
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response


def foreign(request: Request) -> JSONResponse | None:
    """
    Return the refusal of a request that would change something and comes from another site's page.

    A browser says where the page is from in ``Origin``; programs say nothing, and are let pass.
    """
    origin = request.headers.get("origin")
    if request.method not in _CHANGING or origin is None:
        return None
    host = request.headers.get("host", "")
    if _address(origin) == _address(f"{urlsplit(origin).scheme}://{host}") is not None:
        return None
    return problem(
        403,
        f"a page of {redact(origin, 100)} may not change anything here; "
        f"behind a proxy, let it pass on the Host header (it is {redact(host, 100)!r})",
    )


def _address(url: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    return (parts.hostname, port) if parts.hostname else None


def _too_long(request: Request) -> JSONResponse | None:
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > MAX_BODY:
        return problem(413, f"the body has {length} bytes; {MAX_BODY} are allowed")
    return None


def _fault(fault: Any) -> str:
    where = ".".join(str(part) for part in fault["loc"] if part != "body") or "the body"
    said = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] in ("missing", "json_invalid"):
        return f"{where}: {said}"
    return f"{where}: {redact(repr(fault.get('input')), 80)} is refused: {said}"
