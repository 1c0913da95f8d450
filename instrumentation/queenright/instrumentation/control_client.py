"""The HTTP of the control channel: a worker asks the service for instructions and answers them."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, detach, set_value

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.forks import import_for_requests
from queenright.instrumentation.service_token import service_token

if TYPE_CHECKING:
    from requests import PreparedRequest, Response

DEFAULT_ENDPOINT: Final = "http://127.0.0.1:8420"
ENDPOINT_ENV: Final = "QUEENRIGHT_ENDPOINT"

_CONNECT_SECONDS: Final = 3.0
_SLACK_SECONDS: Final = 10.0
"""An answer may come so much later than it was asked for."""
_PIECE: Final = 64
"""Bytes at a time, so that an answer that trickles in is found to take too long."""
_LARGEST: Final = 1 << 20
"""Bytes of an answer; a longer one is none of the service's."""

_GONE: Final = frozenset({400, 403, 404, 409, 410, 413, 422})
"""Answers that would be the same next time."""

_HTTP_LOGGERS: Final = ("urllib3.connection", "urllib3.connectionpool")
_our_threads: Final[set[int]] = set()


def _not_ours(record: logging.LogRecord) -> bool:
    """Let pass what is said of the application's own requests; ours are nobody's trouble."""
    return record.thread not in _our_threads


def control_endpoint_of(endpoint: str | None) -> str:
    """Return the base URL of the service's API: argument, environment, default."""
    return (endpoint or os.environ.get(ENDPOINT_ENV) or DEFAULT_ENDPOINT).rstrip("/")


def preload_control() -> None:
    """Import what asking needs, once; not in a thread, where a fork could come in the middle of it."""

    import_for_requests()
    for name in _HTTP_LOGGERS:
        logger = logging.getLogger(name)
        if _not_ours not in logger.filters:
            logger.addFilter(_not_ours)


class ServiceUnreachableError(QueenrightError):
    """Raised when the service gave no answer that can be used. ``final``: it would not give another."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


class Fetched(NamedTuple):
    """An answer of the service as JSON values, and when it was given, on the service's clock, if it says."""

    body: object
    time: float | None


class ControlClient:
    """
    Speaks for one incarnation of one worker; belongs to one thread.

    Args:
        endpoint: The base URL of the service's API.
        agent: The worker's name.
        session_id: Its session.
        incarnation_id: This life of it.
        token: Returns what the service knows this worker's machine by; None if there is nothing. Asked
            for each request, so that a new one needs no restart.
        monotonic: Seconds from anywhere.
    """

    def __init__(
        self,
        endpoint: str,
        agent: str,
        session_id: str,
        incarnation_id: str,
        *,
        token: Callable[[], str | None] = service_token,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        import requests

        self._session = requests.Session()
        self._session.auth = self._authorize
        self._url = f"{endpoint}/api/agents/{quote(agent, safe='')}/instructions"
        self._who = {"session_id": session_id, "incarnation_id": incarnation_id}
        self._token = token
        self._monotonic = monotonic

    def fetch(self, wait: float) -> Fetched:
        """
        Return the service's answer; it takes up to ``wait`` seconds if there is nothing.

        Raises:
            ServiceUnreachableError: There was no answer, or not one of the service's.
        """
        params = {**self._who, "wait": f"{wait:g}"}
        status, body, date = self._send("GET", self._url, wait + _SLACK_SECONDS, params=params)
        if status != 200:
            raise ServiceUnreachableError(f"HTTP status {status}")
        try:
            return Fetched(json.loads(body), _seconds(date))
        except (ValueError, RecursionError):
            raise ServiceUnreachableError("an answer that is not JSON") from None

    def answer(self, instruction_id: str, answer: Mapping[str, Any]) -> None:
        """
        Say what became of an instruction.

        Raises:
            ServiceUnreachableError: The service did not take it.
        """
        url = f"{self._url}/{quote(instruction_id, safe='')}/answer"
        status, *_ = self._send("POST", url, _SLACK_SECONDS, json={**self._who, **answer})
        if not 200 <= status < 300:
            raise ServiceUnreachableError(f"HTTP status {status}", final=status in _GONE)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def _authorize(self, request: PreparedRequest) -> PreparedRequest:
        """Add the token; of one's own here, so that no ``.netrc`` puts something else in its place."""
        if token := self._token():
            request.headers["Authorization"] = f"Bearer {token}"
        return request

    def _send(self, method: str, url: str, seconds: float, **more: Any) -> tuple[int, bytes, str]:
        with _ours():
            try:
                with self._session.request(
                    method,
                    url,
                    timeout=(_CONNECT_SECONDS, seconds),
                    stream=True,
                    # Whoever sends a worker elsewhere is not the service that it was told of.
                    allow_redirects=False,
                    **more,
                ) as response:
                    body = self._read(response, seconds)
                    return response.status_code, body, response.headers.get("Date", "")
            except ServiceUnreachableError:
                raise
            except Exception as error:
                raise ServiceUnreachableError(type(error).__name__) from None

    def _read(self, response: Response, seconds: float) -> bytes:
        until = self._monotonic() + seconds
        body = bytearray()
        for piece in response.iter_content(_PIECE):
            body += piece
            if len(body) > _LARGEST:
                raise ServiceUnreachableError("an answer that does not end")
            if self._monotonic() > until:
                raise ServiceUnreachableError("an answer that took too long")
        return bytes(body)


def _seconds(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


@contextmanager
def _ours() -> Iterator[None]:
    """Keep requests of ours out of the application's traces and logs."""
    thread = threading.get_ident()
    _our_threads.add(thread)
    token = attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
    try:
        yield
    finally:
        detach(token)
        _our_threads.discard(thread)
