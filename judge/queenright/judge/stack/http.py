"""
A client for an API of the user's stack. It limits the response size and keeps credentials out of errors.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from queenright.instrumentation.api_address import ApiAddress, read_base_url
from queenright.instrumentation.certificates import certificates
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.redaction import redact

if TYPE_CHECKING:
    import httpx
    from pydantic import SecretStr

TIMEOUT_SECONDS: Final = 10.0
MAX_BYTES: Final = 16 << 20
"""The maximum size of a response."""

_MAX_ERROR_BYTES: Final = 100_000


class StackError(QueenrightError):
    """The base class of errors of an API. ``name`` is its address without credentials."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason


class StackUnavailableError(StackError):
    """Raised when an API cannot be reached or gives no valid answer."""


class InvalidQueryError(StackError):
    """Raised when an API rejects the query. A retry does not help."""


class InvalidSelectorError(InvalidQueryError):
    """Raised when Prometheus rejects the operator's label matchers, which are in ``name``."""


@dataclass(frozen=True, slots=True)
class StackAddress(ApiAddress):
    """The address of an API of the user's stack. ``token`` is a bearer token, or empty."""

    token: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str, token: SecretStr | None = None) -> StackAddress:
        """
        Parse a base URL, which may have a path prefix.

        Raises:
            ValueError: The address is not an http or https URL with a host. The message does not repeat it.
        """
        secret = token.get_secret_value() if token is not None else ""
        return cls(*read_base_url(url, port=9090), token=secret)


class StackClient:
    """
    Requests JSON from an API.

    Args:
        timeout: The seconds for a whole request, from the first byte sent to the last byte read.
    """

    def __init__(self, address: StackAddress, *, timeout: float = TIMEOUT_SECONDS) -> None:
        self.address = address
        self._timeout = timeout
        self._client: httpx.AsyncClient | None = None

    @property
    def name(self) -> str:
        """The API's address without credentials."""
        return self.address.name

    async def get(self, path: str, params: Mapping[str, str]) -> Any:
        """
        Send a GET request and return the JSON of the response.

        Raises:
            InvalidQueryError: Status 400, 404 or 422, or the response exceeds `MAX_BYTES`.
            StackUnavailableError: There is no valid response.
        """
        return await self._request("GET", path, params=params)

    async def post(self, path: str, form: Mapping[str, str]) -> Any:
        """
        Send a form as a POST request and return the JSON of the response.

        Raises:
            InvalidQueryError: Status 400, 404 or 422, or the response exceeds `MAX_BYTES`.
            StackUnavailableError: There is no valid response.
        """
        return await self._request("POST", path, data=form)

    async def aclose(self) -> None:
        """Close the connections. The client can be used again."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    async def _request(self, method: str, path: str, **options: Mapping[str, str]) -> Any:
        import httpx

        name = self.name
        try:
            async with asyncio.timeout(self._timeout):
                status, body = await self._exchange(method, f"{name}{path}", **options)
        except TimeoutError:
            raise StackUnavailableError(name, f"did not answer within {self._timeout:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            # `from None`, because the chained exception contains the request with its credentials.
            is_connected = not isinstance(error, httpx.ConnectError)
            reason = f"did not answer ({type(error).__name__})" if is_connected else "cannot be reached"
            raise StackUnavailableError(name, reason) from None
        if status in (400, 404, 422):
            raise InvalidQueryError(name, _describe_fault(status, body))
        if status != 200:
            raise StackUnavailableError(name, _describe_fault(status, body))
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise StackUnavailableError(name, "the response is not JSON; check the address") from None

    async def _exchange(self, method: str, url: str, **options: Any) -> tuple[int, bytes]:
        import httpx

        if self._client is None:
            # A proxy from the environment would break loopback addresses. A redirect would forward
            # credentials.
            self._client = httpx.AsyncClient(
                trust_env=False, follow_redirects=False, verify=certificates(self.address.name)
            )
        address = self.address
        headers = {"Accept": "application/json"}
        if address.token:
            headers["Authorization"] = f"Bearer {address.token}"
        request = self._client.stream(
            method, url, headers=headers, auth=address.auth, timeout=self._timeout, **options
        )
        body = bytearray()
        async with request as response:
            async for part in response.aiter_bytes():
                body += part
                if len(body) > MAX_BYTES:
                    raise InvalidQueryError(
                        address.name, f"the response has more than {MAX_BYTES >> 20} MB; narrow the query"
                    )
        return response.status_code, bytes(body)


def _describe_fault(status: int, body: bytes) -> str:
    """Return an API's error message."""
    text = body.decode("utf-8", "replace")
    try:
        answer = json.loads(text)
        text = str(answer["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return f"{status} {redact(clean_name(' '.join(text.split()), _MAX_ERROR_BYTES), 300)}".strip()
