"""
Forms of the pages.

They work without JavaScript: a form is posted, its action runs, and the browser is redirected to a page with
a message; or the form is shown again with an error and the input.
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
from queenright.server.access.caller import audit_name, caller_of, person_name
from queenright.server.routes.params import Body, By

if TYPE_CHECKING:
    from queenright.server.service import Service

M = TypeVar("M", bound=BaseModel)

Given = Mapping[str, str]
"""Input by name: the query or the form, and the parameters of the path."""

_FORM: Final = "application/x-www-form-urlencoded"
_FIELDS: Final = 30
_MESSAGE: Final = 600
"""Characters of a message: it is sent in a cookie, which holds 4 KB."""
_WHO_COOKIE: Final = "queenright_by"
_MESSAGE_COOKIE: Final = "queenright_said"
_A_YEAR: Final = 365 * 86_400
_A_MINUTE: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """An input field; ``kind`` is ``text``, ``area``, ``number`` or ``check``."""

    name: str
    label: str
    kind: str = "text"
    hint: str = ""
    required: bool = False
    longest: int = 2000
    preset: str = ""
    """The initial value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """A submit button; ``value`` is sent as ``answer``."""

    label: str
    value: str = ""
    danger: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The content of a form's page."""

    title: str
    lead: str
    back: str
    """The URL of Cancel."""
    facts: tuple[tuple[str, str], ...] = ()
    fields: tuple[Field, ...] = ()
    hidden: Mapping[str, str] = field(default_factory=dict)
    buttons: tuple[Button, ...] = ()
    """Empty if there is nothing to decide; ``lead`` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The result: a message for the page ``place``; ``well`` is false if the action was not carried out."""

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
    """Raised when a required field is empty or a value is invalid."""


def checked(model: type[M], **values: Any) -> M:
    """
    Return a request body of the API.

    Raises:
        RequestValidationError: The values are invalid.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


async def read_form(request: Request) -> dict[str, str]:
    """
    Return the fields of a form; the last one of a repeated field.

    Raises:
        HTTPException: The body is not a form of our pages.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    if body and kind != _FORM:
        raise HTTPException(415, f"Content-Type is {kind or 'missing'}; send a form as {_FORM}")
    try:
        found = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_FIELDS)
    except ValueError:
        raise HTTPException(
            400, f"the form is invalid: it must be UTF-8 with at most {_FIELDS} fields"
        ) from None
    return {name: value.replace("\r\n", "\n") for name, value in found}


def complete(question: Question, form: Given) -> None:
    """
    Check the required fields.

    Raises:
        IncompleteFormError: One is empty.
    """
    for one in question.fields:
        if one.required and not form.get(one.name, "").strip():
            raise IncompleteFormError(f"{one.label}: this field is required.")


# -- the operator's name ------------------------------------------------------------------------------------


class _Who(Body):
    by: By


def known_name(request: Request) -> str:
    """Return the token's name, or the one in the browser's cookie; empty without either."""
    if name := caller_of(request).name:
        return name
    try:
        return checked(_Who, by=unquote(request.cookies.get(_WHO_COOKIE, ""), errors="strict")).by
    except (RequestValidationError, UnicodeDecodeError):
        return ""


def sender_of(request: Request, form: Given, *, grave: bool = False) -> str:
    """
    Return the sender of a form: the token's name, the form's field, or the cookie.

    A browser does not send the cookie when it follows a link from another site, but it does with the form of
    that page, so the field may be empty.

    Raises:
        IncompleteFormError: There is no name.
        RequestValidationError: The name is too long, or blank.
    """
    name = form.get("by", "").strip()
    if name:
        name = checked(_Who, by=name).by
    if caller_of(request).name:
        return (audit_name if grave else person_name)(request, name)
    if name:
        return name
    if not (kept := known_name(request)):
        raise IncompleteFormError("Your name: this field is required. It is recorded with what you do.")
    return kept


def store_name(request: Request, response: Response, by: str) -> None:
    """Store the name in the browser, so that it is asked for once."""
    _set_cookie(request, response, _WHO_COOKIE, quote(by, safe=""), _A_YEAR)


# -- message on the next page ------------------------------------------------------------------


def send_message(request: Request, response: Response, done: Done) -> None:
    """
    Show the result on the next page.

    The message is sent in a cookie, not in the URL, so that a link cannot put text into our pages.
    """
    text = done.words if len(done.words) <= _MESSAGE else f"{done.words[: _MESSAGE - 1]}…"
    message = json.dumps({"well": done.well, "text": redact(text, _MESSAGE)}, ensure_ascii=False)
    value = base64.urlsafe_b64encode(message.encode()).decode().rstrip("=")
    _set_cookie(request, response, _MESSAGE_COOKIE, value, _A_MINUTE)


def previous_message(request: Request) -> dict[str, Any] | None:
    """Return the message of the previous form, as ``well`` and ``text``; None without one."""
    value = request.cookies.get(_MESSAGE_COOKIE, "")
    try:
        message = json.loads(base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)))
        return {"well": message["well"] is True, "text": str(message["text"])[:_MESSAGE]}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def delete_message(response: Response) -> None:
    """Delete the message, which is shown once."""
    response.delete_cookie(_MESSAGE_COOKIE, path="/", httponly=True, samesite="strict")


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


# -- URLs --------------------------------------------------------------------------------------


def part(text: object) -> str:
    """Return a text as one segment of a URL's path."""
    return quote(str(text), safe="", errors="replace")


def agent_page(agent_id: str, session_id: str = "") -> str:
    """Return the URL of a worker's page."""
    more = [f"session={part(session_id)}"] if session_id else []
    path = part(agent_id)
    if agent_id in (".", "..", ""):
        # A browser resolves these as directories.
        path, more = "", [f"agent={path}", *more]
    return f"/agents/{path}" + (f"?{'&'.join(more)}" if more else "")


def agent_of(given: Given) -> str:
    """Return the worker's name in the input, as the service stores it."""
    return clean_name(given.get("agent_id") or given.get("agent", ""))
