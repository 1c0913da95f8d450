"""One HTTP API of the user's stack: its address, whose secrets are never shown, and bounded answers."""

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
MOST_BYTES: Final = 16 << 20
"""An answer that is longer is not read to its end."""

_MOST_SAID: Final = 100_000


class StackError(QueenrightError):
    """Base of what may go wrong with an API; ``name`` is its address without credentials."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason


class StackUnavailableError(StackError):
    """Raised when an API could not be asked, or gave no usable answer: nothing is known."""


class InvalidQueryError(StackError):
    """Raised when an API says that the question is wrong; asking it again changes nothing."""


class InvalidSelectorError(InvalidQueryError):
    """Raised when Prometheus says that the label matchers a person gave are wrong; ``name`` is these."""


@dataclass(frozen=True, slots=True)
class StackAddress(ApiAddress):
    """Where an API of the user's stack is; ``token`` is sent as a bearer's."""

    token: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str, token: SecretStr | None = None) -> StackAddress:
        """
        Read a base URL, with a path prefix if need be.

        Raises:
            ValueError: it is no http or https URL with a host; the message repeats nothing of it.
        """
        secret = token.get_secret_value() if token is not None else ""
        return cls(*read_base_url(url, port=9090), token=secret)


class StackClient:
    """
    Asks one API for JSON.

    Args:
        address: Where it is.
        timeout: Seconds that one answer may take, from the first byte sent to the last one read.
    """

    def __init__(self, address: StackAddress, *, timeout: float = TIMEOUT_SECONDS) -> None:
        self.address = address
        self._timeout = timeout
        self._client: httpx.AsyncClient | None = None

    async def get(self, path: str, params: Mapping[str, str]) -> Any:
        """Ask with GET; see ``_ask``."""
        return await self._ask("GET", path, params=params)

    async def post(self, path: str, form: Mapping[str, str]) -> Any:
        """Ask with POST, as a form; see ``_ask``."""
        return await self._ask("POST", path, data=form)

    async def aclose(self) -> None:
        """Close the connections. The client may be used again, with new ones."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    async def _ask(self, method: str, path: str, **how: Mapping[str, str]) -> Any:
        """
        Return the answer's JSON.

        Raises:
            InvalidQueryError: status 400, 404 or 422, with the API's own words.
            StackUnavailableError: anything else that is no answer.
        """
        import httpx

        name = self.address.name
        try:
            async with asyncio.timeout(self._timeout):
                status, body = await self._exchange(method, f"{name}{path}", **how)
        except TimeoutError:
            raise StackUnavailableError(name, f"did not answer within {self._timeout:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            # `from None`: the chained exception carries the request, and with it the login.
            reached = not isinstance(error, httpx.ConnectError)
            reason = f"did not answer ({type(error).__name__})" if reached else "cannot be reached"
            raise StackUnavailableError(name, reason) from None
        if status in (400, 404, 422):
            raise InvalidQueryError(name, _fault(status, body))
        if status != 200:
            raise StackUnavailableError(name, _fault(status, body))
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise StackUnavailableError(name, "its answer is no JSON; is the address right?") from None

    async def _exchange(self, method: str, url: str, **how: Any) -> tuple[int, bytes]:
        import httpx

        if self._client is None:
            # A proxy from the environment would take loopback away; a redirect would take the login along.
            self._client = httpx.AsyncClient(
                trust_env=False, follow_redirects=False, verify=certificates(self.address.name)
            )
        address = self.address
        headers = {"Accept": "application/json"}
        if address.token:
            headers["Authorization"] = f"Bearer {address.token}"
        request = self._client.stream(
            method, url, headers=headers, auth=address.auth, timeout=self._timeout, **how
        )
        body = bytearray()
        async with request as response:
            async for part in response.aiter_bytes():
                body += part
                if len(body) > MOST_BYTES:
                    raise InvalidQueryError(
                        address.name, f"the answer has more than {MOST_BYTES >> 20} MB; ask for less"
                    )
        return response.status_code, bytes(body)


def _fault(status: int, body: bytes) -> str:
    """Say what an API said is wrong, in its own words where it has any."""
    text = body.decode("utf-8", "replace")
    try:
        answer = json.loads(text)
        text = str(answer["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return f"{status} {redact(clean_name(' '.join(text.split()), _MOST_SAID), 300)}".strip()
