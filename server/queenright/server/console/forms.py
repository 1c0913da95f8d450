"""
Forms of the console: what is asked on a page, what comes in, and what is said on the page after.

They work without JavaScript: a form is posted, what it asks for is done, and the browser is sent on to a page
that says so; or the form comes back with what is wrong, and with what was typed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qsl, quote, unquote

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.redaction import redact
from queenright.server.access.caller import caller_of, who, who_from
from queenright.server.routes.params import Body, By

if TYPE_CHECKING:
    from queenright.server.service import Service

M = TypeVar("M", bound=BaseModel)

Given = Mapping[str, str]
"""What came in: the parts of the path, then the query or the form, by name."""

_FORM: Final = "application/x-www-form-urlencoded"
_FIELDS: Final = 30
_SAID: Final = 600
"""Characters of a message: it goes through a cookie, which holds 4 KB."""
_WHO_COOKIE: Final = "queenright_by"
_SAID_COOKIE: Final = "queenright_said"
_A_YEAR: Final = 365 * 86_400
_A_MINUTE: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One thing that is filled in; ``kind`` is ``text``, ``area``, ``number`` or ``check``."""

    name: str
    label: str
    kind: str = "text"
    hint: str = ""
    required: bool = False
    longest: int = 2000
    preset: str = ""
    """What stands there to begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """What is pressed; ``value`` is sent as ``answer``."""

    label: str
    value: str = ""
    danger: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a page asks before anything is done."""

    title: str
    lead: str
    back: str
    """Where one goes who thinks better of it."""
    facts: tuple[tuple[str, str], ...] = ()
    fields: tuple[Field, ...] = ()
    hidden: Mapping[str, str] = field(default_factory=dict)
    buttons: tuple[Button, ...] = ()
    """None: there is nothing to decide, and ``lead`` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What became of it: words for the page ``place``; ``well`` is false for what was not done."""

    place: str
    words: str
    well: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """
    An action with a page of its own.

    ``ask`` returns what the page asks. It changes nothing, so that a link preview does no harm.
    ``do`` receives the form and the name of the operator.
    """

    path: str
    ask: Callable[[Service, Given], Awaitable[Question]]
    do: Callable[[Service, Given, str], Awaitable[Done]]
    grave: bool = False
    """Whether the audit records the role and the address of the operator, too."""


class IncompleteFormError(ValueError):
    """Raised when something is not filled in; says what, in words."""


def checked(model: type[M], **values: Any) -> M:
    """
    Return what the API would have been sent.

    Raises:
        RequestValidationError: The API would refuse it.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


async def read_form(request: Request) -> dict[str, str]:
    """
    Return the fields of a form; of one that is there twice the last.

    Raises:
        HTTPException: It is none that a browser sends for our pages.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    if body and kind != _FORM:
        raise HTTPException(415, f"a form comes as {_FORM}, not as {kind or 'nothing that is said'}")
    try:
        found = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_FIELDS)
    except ValueError:
        raise HTTPException(
            400, f"this is no form: it must be UTF-8, with at most {_FIELDS} fields"
        ) from None
    return {name: value.replace("\r\n", "\n") for name, value in found}


def complete(question: Question, form: Given) -> None:
    """
    See whether everything that is needed was filled in.

    Raises:
        IncompleteFormError: It was not.
    """
    for one in question.fields:
        if one.required and not form.get(one.name, "").strip():
            raise IncompleteFormError(f"{one.label}: please fill this in.")


# -- who it is ------------------------------------------------------------------------------------


class _Who(Body):
    by: By


def known_as(request: Request) -> str:
    """Return the token's name, or the one that this browser keeps; empty if it has not sent any."""
    if name := caller_of(request).name:
        return name
    try:
        return checked(_Who, by=unquote(request.cookies.get(_WHO_COOKIE, ""), errors="strict")).by
    except (RequestValidationError, UnicodeDecodeError):
        return ""


def asked_by(request: Request, form: Given, *, grave: bool = False) -> str:
    """
    Return who sends a form: whose token it is, what it says, else the name that was kept.

    The cookie is not sent when a link from elsewhere is followed, but with the form on the page it leads to:
    so the field may be empty there.

    Raises:
        IncompleteFormError: Nobody has said it yet.
        RequestValidationError: It is too long, or blank to the eye.
    """
    said = form.get("by", "").strip()
    if said:
        said = checked(_Who, by=said).by
    if caller_of(request).name:
        return (who_from if grave else who)(request, said)
    if said:
        return said
    if not (kept := known_as(request)):
        raise IncompleteFormError("Your name: please say who you are. It is kept with what you do.")
    return kept


def keep_name(request: Request, response: Response, by: str) -> None:
    """Let the browser keep a name, so that it is asked for once."""
    _set_cookie(request, response, _WHO_COOKIE, quote(by, safe=""), _A_YEAR)


# -- what is said on the next page ------------------------------------------------------------------


def say_next(request: Request, response: Response, done: Done) -> None:
    """
    Let the next page say what became of something.

    It goes through a cookie, and not through the address: nobody may put words into our pages with a link.
    """
    text = done.words if len(done.words) <= _SAID else f"{done.words[: _SAID - 1]}…"
    said = json.dumps({"well": done.well, "text": redact(text, _SAID)}, ensure_ascii=False)
    value = base64.urlsafe_b64encode(said.encode()).decode().rstrip("=")
    _set_cookie(request, response, _SAID_COOKIE, value, _A_MINUTE)


def said_before(request: Request) -> dict[str, Any] | None:
    """Return what became of the form before: ``well`` and ``text``; None if there is nothing to say."""
    value = request.cookies.get(_SAID_COOKIE, "")
    try:
        said = json.loads(base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)))
        return {"well": said["well"] is True, "text": str(said["text"])[:_SAID]}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def was_said(response: Response) -> None:
    """Let it be said once."""
    response.delete_cookie(_SAID_COOKIE, path="/", httponly=True, samesite="strict")


def _set_cookie(request: Request, response: Response, name: str, value: str, seconds: int) -> None:
    response.set_cookie(
        name,
        value,
        max_age=seconds,
        path="/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )


# -- addresses --------------------------------------------------------------------------------------


def part(text: object) -> str:
    """Return a text as a part of an address, a slash in it, too."""
    return quote(str(text), safe="", errors="replace")


def agent_page(agent_id: str, session_id: str = "") -> str:
    """Return the address of a worker's page."""
    more = [f"session={part(session_id)}"] if session_id else []
    path = part(agent_id)
    if agent_id in (".", "..", ""):
        # A browser takes these for folders.
        path, more = "", [f"agent={path}", *more]
    return f"/agents/{path}" + (f"?{'&'.join(more)}" if more else "")


def agent_of(given: Given) -> str:
    """Return the worker that a page is asked about, by the name that the service has."""
    return clean_name(given.get("agent_id") or given.get("agent", ""))
