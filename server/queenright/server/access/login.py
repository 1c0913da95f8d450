"""Logging in to the console: a token once, then a cookie that no script sees and no other site sends."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, select_autoescape

from queenright.server.access.access import Access
from queenright.server.access.caller import address_of
from queenright.server.access.presented import session_of
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


def refusal_page(code: int, words: str) -> Response:
    """Return a page that says why somebody is not let in."""
    return _page("error.html", code, fault=words)


def add_login(app: FastAPI, access: Access) -> None:
    """Give the app the pages for coming and leaving."""
    router = APIRouter(include_in_schema=False)

    @router.get("/login")
    async def ask(place: Annotated[str, Query(alias="next")] = "/") -> Response:
        return _page("login.html", next=local(place))

    @router.post("/login")
    async def login(request: Request) -> Response:
        form = await read_form(request)
        place = local(form.get("next", "/"))
        try:
            token = access.token(form.get("token", "").strip())
        except InvalidTokensError:
            return _page("login.html", 503, next=place, fault="The file of tokens cannot be used.")
        if token is None:
            denied = access.failed(address_of(request.scope.get("client")))
            refused = _page("login.html", denied.status, next=place, fault=denied.words)
            refused.headers.update({name: value for name, value in denied.headers if name == "Retry-After"})
            return refused
        _end(request, access)
        response = RedirectResponse(place, 303)
        response.set_cookie(
            COOKIE,
            access.sessions.begin(token),
            max_age=SECONDS,
            path="/",
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    @router.post("/logout")
    async def logout(request: Request) -> Response:
        _end(request, access)
        response = RedirectResponse("/login", 303)
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return response

    app.include_router(router)


def local(place: str) -> str:
    """Return where one goes after logging in: a page of ours, whatever a link says."""
    parts = urlsplit("http://here" + place) if place.startswith("/") else None
    if parts is None or place.startswith("//") or "\\" in place or not place.isprintable():
        return "/"
    return "/" if parts.netloc != "here" or parts.path in ("/login", "/logout") else place


def _end(request: Request, access: Access) -> None:
    if words := session_of(request.headers):
        access.sessions.end(words)


def _page(template: str, code: int = 200, **values: Any) -> HTMLResponse:
    text = _templates.get_template(template).render(here="/login", you="", said=None, **values)
    return HTMLResponse(text, code, headers=dict(_HEADERS))
