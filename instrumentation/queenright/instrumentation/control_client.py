"""HTTP client of the control channel: fetches a worker's instructions and answers them."""

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
from queenright.instrumentation.service_token import read_service_token

if TYPE_CHECKING:
    from requests import PreparedRequest, Response

DEFAULT_ENDPOINT: Final = "http://127.0.0.1:8420"
ENDPOINT_ENV: Final = "QUEENRIGHT_ENDPOINT"

_CONNECT_SECONDS: Final = 3.0
_SLACK_SECONDS: Final = 10.0
"""Extra time for a response beyond the requested wait."""
_CHUNK_BYTES: Final = 64
"""Read in small chunks, so that the deadline also applies to a response that trickles in."""
_RESPONSE_LIMIT: Final = 1 << 20
"""Maximum bytes of a response."""

_FINAL_STATUSES: Final = frozenset({400, 403, 404, 409, 410, 413, 422})
"""Status codes that a retry does not change."""

_HTTP_LOGGERS: Final = ("urllib3.connection", "urllib3.connectionpool")
_queenright_threads: Final[set[int]] = set()


def _is_application_record(record: logging.LogRecord) -> bool:
    """Logging filter: drop records of our own requests, keep those of the application."""
    return record.thread not in _queenright_threads


def resolve_control_endpoint(endpoint: str | None) -> str:
    """Return the base URL of the service's API: argument, environment, default."""
    return (endpoint or os.environ.get(ENDPOINT_ENV) or DEFAULT_ENDPOINT).rstrip("/")


def preload_control() -> None:
    """Import the HTTP modules now: a fork during an import in another thread can deadlock the child."""
    import_for_requests()
    for name in _HTTP_LOGGERS:
        logger = logging.getLogger(name)
        if _is_application_record not in logger.filters:
            logger.addFilter(_is_application_record)


class ServiceUnreachableError(QueenrightError):
    """Raised when the service gives no usable response. ``is_final`` means that a retry cannot help."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


class InstructionsResponse(NamedTuple):
    """A response of the service: its JSON body, and its ``Date`` header in seconds since the epoch."""

    body: object
    time: float | None


class ControlClient:
    """
    Control client of one incarnation of a worker. Use it from one thread only.

    Args:
        endpoint: Base URL of the service's API.
        agent: The agent's name.
        session_id: The session.
        incarnation_id: The incarnation.
        token: Returns the API token, or None. Called for each request, so that a new token needs no restart.
        monotonic: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        endpoint: str,
        agent: str,
        session_id: str,
        incarnation_id: str,
        *,
        token: Callable[[], str | None] = read_service_token,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        import requests

        self._session = requests.Session()
        self._session.auth = self._authorize
        self._url = f"{endpoint}/api/agents/{quote(agent, safe='')}/instructions"
        self._identity = {"session_id": session_id, "incarnation_id": incarnation_id}
        self._token = token
        self._monotonic = monotonic

    def fetch(self, wait: float) -> InstructionsResponse:
        """
        Long-poll for instructions, for up to ``wait`` seconds.

        Raises:
            ServiceUnreachableError: There was no response, or an unusable one.
        """
        params = {**self._identity, "wait": f"{wait:g}"}
        status, body, date = self._send("GET", self._url, wait + _SLACK_SECONDS, params=params)
        if status != 200:
            raise ServiceUnreachableError(f"HTTP status {status}")
        try:
            return InstructionsResponse(json.loads(body), _parse_date(date))
        except (ValueError, RecursionError):
            raise ServiceUnreachableError("the response is not JSON") from None

    def answer(self, instruction_id: str, answer: Mapping[str, Any]) -> None:
        """
        Send the outcome of an instruction.

        Raises:
            ServiceUnreachableError: The service did not accept it.
        """
        url = f"{self._url}/{quote(instruction_id, safe='')}/answer"
        status, *_ = self._send("POST", url, _SLACK_SECONDS, json={**self._identity, **answer})
        if not 200 <= status < 300:
            raise ServiceUnreachableError(f"HTTP status {status}", is_final=status in _FINAL_STATUSES)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def _authorize(self, request: PreparedRequest) -> PreparedRequest:
        """Add the token. Setting ``auth`` also stops ``requests`` from reading ``.netrc``."""
        if token := self._token():
            request.headers["Authorization"] = f"Bearer {token}"
        return request

    def _send(self, method: str, url: str, seconds: float, **options: Any) -> tuple[int, bytes, str]:
        with _suppress_instrumentation():
            try:
                with self._session.request(
                    method,
                    url,
                    timeout=(_CONNECT_SECONDS, seconds),
                    stream=True,
                    # A redirect could send the token to another host.
                    allow_redirects=False,
                    **options,
                ) as response:
                    body = self._read_body(response, seconds)
                    return response.status_code, body, response.headers.get("Date", "")
            except ServiceUnreachableError:
                raise
            except Exception as error:
                raise ServiceUnreachableError(type(error).__name__) from None

    def _read_body(self, response: Response, seconds: float) -> bytes:
        deadline = self._monotonic() + seconds
        body = bytearray()
        for chunk in response.iter_content(_CHUNK_BYTES):
            body += chunk
            if len(body) > _RESPONSE_LIMIT:
                raise ServiceUnreachableError(f"the response is longer than {_RESPONSE_LIMIT} bytes")
            if self._monotonic() > deadline:
                raise ServiceUnreachableError(f"the response took longer than {seconds:g} s")
        return bytes(body)


def _parse_date(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


@contextmanager
def _suppress_instrumentation() -> Iterator[None]:
    """Keep our own requests out of the application's traces and logs."""
    thread = threading.get_ident()
    _queenright_threads.add(thread)
    token = attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
    try:
        yield
    finally:
        detach(token)
        _queenright_threads.discard(thread)
