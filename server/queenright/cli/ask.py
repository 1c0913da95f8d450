"""Asking a running service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from queenright.instrumentation.certificates import certificates
from queenright.instrumentation.errors import QueenrightError

_TIMEOUT = 10.0
_ACTING_TIMEOUT = 300.0
"""A worker that is stopped is given time to save its state, by settings."""


class Refused(QueenrightError):
    """Raised when the service says no; ``status`` is HTTP's."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def ask(url: str, path: str, *, method: str = "GET", body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """
    Return the JSON that the service answers.

    Args:
        url: Where the service is.
        path: What is asked for; see ``segment`` for names in it.
        method: What is to be done with it.
        body: What is sent along; keys without a value are left out.

    Raises:
        Refused: The answer is no, and why.
        QueenrightError: ``url`` is none, nothing answers there, or what does is no Queenright.
    """
    sent = None if body is None else {key: value for key, value in body.items() if value is not None}
    try:
        response = httpx.request(
            method,
            f"{url.rstrip('/')}{path}",
            json=sent,
            timeout=_TIMEOUT if method == "GET" else _ACTING_TIMEOUT,
            trust_env=False,
            verify=certificates(url),
        )
        if response.is_error:
            raise Refused(response.status_code, _reason(response) or _no_words(url, path, response))
        answer: dict[str, Any] = response.json() if response.content else {}
    except (httpx.UnsupportedProtocol, httpx.InvalidURL):
        raise QueenrightError(
            f"{url!r} is no URL; name the service as in --url http://127.0.0.1:8420."
        ) from None
    except (httpx.HTTPError, ValueError) as error:
        raise QueenrightError(
            f"No Queenright answers at {url} ({type(error).__name__}). "
            "Start one with `queenright up`, or name another with --url."
        ) from None
    return answer


def ask_all(url: str, path: str, name: str) -> list[dict[str, Any]]:
    """
    Return a whole list, page after page; see ``ask``.

    Args:
        url: Where the service is.
        path: The list, with what is asked of it.
        name: What it is called in the answer.
    """
    found: list[dict[str, Any]] = []
    asked = f"{path}{'&' if '?' in path else '?'}limit=1000"
    answer = ask(url, asked)
    while True:
        found += answer[name]
        if not answer["next"]:
            return found
        answer = ask(url, f"{asked}&cursor={segment(answer['next'])}")


def segment(name: str) -> str:
    """Return a name as a part of a path."""
    return quote(name, safe="")


def _reason(response: httpx.Response) -> str:
    if response.headers.get("content-type") != "application/problem+json":
        return ""
    return str(response.json().get("title", ""))


def _no_words(url: str, path: str, response: httpx.Response) -> str:
    return f"{url} answered {response.status_code} for {path}."
