"""Post signed JSON to a user's URL, with retries. The URL is never logged."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import stamina
from pydantic import SecretStr

from queenright.instrumentation.certificates import certificates
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import redact

if TYPE_CHECKING:
    import httpx

SIGNATURE: Final = "X-Queenright-Signature"
TIMESTAMP: Final = "X-Queenright-Timestamp"
ATTEMPTS: Final = 6
_TIMEOUT_SECONDS: Final = 10.0
"""Timeout of one attempt."""
_TRANSIENT_STATUSES: Final = frozenset({408, 425, 429})
"""Statuses to retry, in addition to 5xx."""
_MAX_RESPONSE_BYTES: Final = 64 << 10


class WebhookError(QueenrightError):
    """
    Raised when a post fails. The message has the host, but never the URL.

    A retry may succeed if ``is_transient``. ``status`` and ``answer`` are those of the response, if any.
    """

    def __init__(
        self, message: str, *, is_transient: bool = False, status: int | None = None, answer: bytes = b""
    ) -> None:
        super().__init__(message)
        self.is_transient = is_transient
        self.status = status
        self.answer = answer


class WebhookClient:
    """
    Posts to one URL.

    Args:
        url: The URL. It may contain a token, so no message, log or repr includes it.
        receiver: The receiver's name for messages, such as "the orchestrator".
        secret: The key of the signature; see `sign_body`.
        retry_timeout: Seconds after which no retry starts; None to retry up to ``ATTEMPTS`` times.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        url: SecretStr,
        *,
        receiver: str,
        secret: SecretStr | None = None,
        retry_timeout: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._url = url
        self._receiver = receiver
        self._secret = secret
        self._retry_timeout = retry_timeout
        self._clock = clock
        self._client: httpx.AsyncClient | None = None
        self.host: Final = urlsplit(url.get_secret_value()).hostname or "?"

    def __repr__(self) -> str:
        return f"WebhookClient({self.host!r})"

    async def post(self, payload: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> bytes:
        """
        Post an object, and return the body of the response. Transient failures are retried.

        Raises:
            WebhookError: The post failed or was refused.
        """
        body = json.dumps(payload, ensure_ascii=False).encode()
        all_headers = {"Content-Type": "application/json", **(headers or {})}
        attempts = stamina.retry_context(
            on=_is_transient, attempts=ATTEMPTS, timeout=self._retry_timeout, wait_initial=1.0, wait_max=30.0
        )
        async for attempt in attempts:
            with attempt:
                return await self._post(body, all_headers)
        raise AssertionError("the last attempt returns or raises")

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def make_error(self, reason: str, **details: Any) -> WebhookError:
        """Return an error that names the receiver and its host."""
        return WebhookError(f"{self._receiver} at {self.host}: {reason}", **details)

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> bytes:
        import httpx

        url = self._url.get_secret_value()
        if self._secret is not None:
            # Sign each attempt separately, so that a receiver that checks the timestamp accepts a late one.
            headers = {**headers, **sign_body(body, self._secret, self._clock())}
        if self._client is None:
            self._client = httpx.AsyncClient(
                timeout=_TIMEOUT_SECONDS, trust_env=False, verify=certificates(url)
            )
        try:
            async with self._client.stream("POST", url, content=body, headers=headers) as response:
                answer = b""
                async for chunk in response.aiter_bytes():
                    answer += chunk
                    if len(answer) > _MAX_RESPONSE_BYTES:
                        raise self.make_error(f"its answer is longer than {_MAX_RESPONSE_BYTES} bytes")
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise self.make_error(f"its URL cannot be used ({type(error).__name__})") from None
        except httpx.HTTPError as error:
            # The library's message may contain the URL.
            raise self.make_error(
                f"it cannot be reached ({type(error).__name__})", is_transient=True
            ) from None
        if not response.is_success:
            status = response.status_code
            payload = redact(answer.decode("utf-8", "replace"), 200).strip()
            raise self.make_error(
                f"it answered {status} {payload}".strip(),
                is_transient=status in _TRANSIENT_STATUSES or response.is_server_error,
                status=status,
                answer=answer,
            )
        return answer


def sign_body(body: bytes, secret: SecretStr, now: float) -> dict[str, str]:
    """
    Return the timestamp and signature headers of a post.

    ``X-Queenright-Signature: sha256=<HMAC-SHA256 of "{timestamp}.{body}">``, in hexadecimal.
    ``X-Queenright-Timestamp``, in whole seconds since the epoch, lets a receiver reject a replayed post.
    """
    timestamp = str(int(now))
    key = secret.get_secret_value().encode()
    mac = hmac.new(key, timestamp.encode() + b"." + body, hashlib.sha256)
    return {TIMESTAMP: timestamp, SIGNATURE: f"sha256={mac.hexdigest()}"}


def parse_object(answer: bytes) -> dict[str, Any]:
    """Return the JSON object in a response; {} for any other response."""
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _is_transient(error: Exception) -> bool:
    return isinstance(error, WebhookError) and error.is_transient
