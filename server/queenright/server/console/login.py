"""Sign in to the console with a token. The session cookie is HttpOnly and SameSite=Strict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, select_autoescape

from queenright.server.access.access import Access
from queenright.server.access.caller import client_address
from queenright.server.access.credentials import read_session_cookie
from queenright.server.access.sessions import COOKIE, SECONDS
from queenright.server.access.tokens import InvalidTokensError
from queenright.server.console.forms import read_form

_PAGES: Final = Path(__file__).parents[1] / "pages"
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
_templates: Final = Environment(loader=FileSystemLoader(_PAGES), autoescape=select_autoescape(default=True))


def refusal_page(code: int, reason: str) -> Response:
    """Return a page with the reason of a denial."""
    return _page("error.html", code, fault=reason)


def add_login(app: FastAPI, access: Access) -> None:
    """Add the routes to sign in and out."""
    router = APIRouter(include_in_schema=False)

    @router.get("/login")
    async def login_page(path: Annotated[str, Query(alias="next")] = "/") -> Response:
        return _page("login.html", next=safe_redirect_path(path))

    @router.post("/login")
    async def log_in(request: Request) -> Response:
        form = await read_form(request)
        path = safe_redirect_path(form.get("next", "/"))
        try:
            token = access.find_token(form.get("token", "").strip())
        except InvalidTokensError:
            return _page("login.html", 503, next=path, fault="The token file cannot be used.")
        if token is None:
            denied = access.reject_token(client_address(request.scope.get("client")))
            refused = _page("login.html", denied.status, next=path, fault=denied.reason)
            refused.headers.update({name: value for name, value in denied.headers if name == "Retry-After"})
            return refused
        _end_session(request, access)
        response = RedirectResponse(path, 303)
        response.set_cookie(
            COOKIE,
            access.sessions.start(token),
            max_age=SECONDS,
            path="/",
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    @router.post("/logout")
    async def log_out(request: Request) -> Response:
        _end_session(request, access)
        response = RedirectResponse("/login", 303)
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return response

    app.include_router(router)


def safe_redirect_path(path: str) -> str:
    """Return the path to redirect to after sign-in: always a local one."""
    parts = urlsplit("http://here" + path) if path.startswith("/") else None
    if parts is None or path.startswith("//") or "\\" in path or not path.isprintable():
        return "/"
    return "/" if parts.netloc != "here" or parts.path in ("/login", "/logout") else path


def _end_session(request: Request, access: Access) -> None:
    if cookie := read_session_cookie(request.headers):
        access.sessions.end(cookie)


def _page(template: str, code: int = 200, **values: Any) -> HTMLResponse:
    text = _templates.get_template(template).render(here="/login", you="", said=None, **values)
    return HTMLResponse(text, code, headers=dict(_HEADERS))
