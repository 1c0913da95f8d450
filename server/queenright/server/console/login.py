"""Sign in to the console with a token. The session cookie is HttpOnly and SameSite=Strict."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import parse_qsl, urlsplit

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.responses import RedirectResponse

from queenright.server.access.access import Access
from queenright.server.access.caller import get_client_address
from queenright.server.access.credentials import read_session_cookie
from queenright.server.access.login_sessions import SESSION_COOKIE, SESSION_SECONDS
from queenright.server.access.tokens import InvalidTokensError
from queenright.server.console.templates import render_page

_FORM_CONTENT_TYPE: Final = "application/x-www-form-urlencoded"
_MAX_FIELDS: Final = 30


router = APIRouter(include_in_schema=False)


async def get_access(request: Request) -> Access:
    """Return the access control of the service."""
    access: Access = request.state.access
    return access


AccessDep = Annotated[Access, Depends(get_access)]


@router.get("/login")
async def get_login_page(path: Annotated[str, Query(alias="next")] = "/") -> Response:
    """Return the sign-in page."""
    return render_page("login.html", next=get_safe_redirect_path(path))


@router.post("/login")
async def log_in(request: Request, access: AccessDep) -> Response:
    """Start a session, and redirect to the requested page."""
    form = await _read_form(request)
    path = get_safe_redirect_path(form.get("next", "/"))
    try:
        token = access.find_token(form.get("token", "").strip())
    except InvalidTokensError:
        fault = "The token file cannot be used. The service's log has the reason."
        return render_page("login.html", 503, next=path, fault=fault)
    if token is None:
        denial = access.reject_token(get_client_address(request.scope.get("client")))
        page = render_page("login.html", denial.status, next=path, fault=denial.reason)
        page.headers.update({name: value for name, value in denial.headers if name == "Retry-After"})
        return page
    _end_session(request, access)
    response = RedirectResponse(path, 303)
    response.set_cookie(
        SESSION_COOKIE,
        access.sessions.start(token),
        max_age=SESSION_SECONDS,
        path="/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@router.post("/logout")
async def log_out(request: Request, access: AccessDep) -> Response:
    """End the session."""
    _end_session(request, access)
    response = RedirectResponse("/login", 303)
    response.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")
    return response


def get_safe_redirect_path(path: str) -> str:
    """Return the path to redirect to after sign-in, which is always on this site."""
    if not path.startswith("/") or path.startswith("//") or "\\" in path or not path.isprintable():
        return "/"
    return "/" if urlsplit(path).path in ("/login", "/logout") else path


def _end_session(request: Request, access: Access) -> None:
    if cookie := read_session_cookie(request.headers):
        access.sessions.end(cookie)


async def _read_form(request: Request) -> dict[str, str]:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    if body and content_type != _FORM_CONTENT_TYPE:
        raise HTTPException(
            415, f"Content-Type is {content_type or 'missing'}; send a form as {_FORM_CONTENT_TYPE}"
        )
    try:
        return dict(
            parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
        )
    except ValueError:
        raise HTTPException(
            400, f"the form is invalid: it must be UTF-8 with at most {_MAX_FIELDS} fields"
        ) from None
