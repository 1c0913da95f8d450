"""The orchestrator behind a URL: escalations are posted to it; it answers at once, or later over the API."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import stamina
from pydantic import SecretStr, ValidationError

from queenright.health.interventions.record import Answer, Escalation
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import redact

if TYPE_CHECKING:
    import httpx

_log = logging.getLogger(__name__)

SIGNATURE: Final = "X-Queenright-Signature"
ATTEMPTS: Final = 6
_PASSING: Final = frozenset({408, 425, 429})
"""Refusals that may be none a moment later; so may every answer of the server's own fault."""
_LONGEST_ANSWER: Final = 64 << 10
_SENT: Final = ("escalation_id", "agent_id", "session_id", "incarnation_id", "reason", "options", "context")


class OrchestratorError(QueenrightError):
    """Raised when the orchestrator was not told, or answered nothing that can be done; names its host."""


class _Passing(OrchestratorError):
    """It may go well the next time."""


class OrchestratorWebhook:
    """
    Asks an orchestrator over HTTP.

    Args:
        url: Where it is posted to. No message, log or repr of ours repeats it: it may hold a token.
        api: Base URL of our own API, from which the answer's URL is made; empty if it is not known.
        secret: What posts are signed with, in ``X-Queenright-Signature: sha256=<HMAC of the body>``.
        timeout: Seconds that one answer may take.
    """

    def __init__(
        self, url: SecretStr, *, api: str = "", secret: SecretStr | None = None, timeout: float = 10.0
    ) -> None:
        self._url = url
        self._api = api.rstrip("/")
        self._secret = secret
        self._timeout = timeout
        self._client: httpx.AsyncClient | None = None
        self._name = urlsplit(url.get_secret_value()).hostname or "?"

    def __repr__(self) -> str:
        return f"OrchestratorWebhook({self._name!r})"

    async def ask(self, escalation: Escalation) -> Answer | None:
        """
        Post an escalation; a failure that may pass is tried again for a minute or two.

        Returns:
            Its decision, or None if it took the question and answers later.

        Raises:
            OrchestratorError: It could not be told, or its answer is none of the options.
        """
        body = json.dumps(self._said(escalation), ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json"}
        if self._secret is not None:
            key = self._secret.get_secret_value().encode()
            headers[SIGNATURE] = "sha256=" + hmac.new(key, body, hashlib.sha256).hexdigest()
        retrying = stamina.retry_context(
            on=_Passing, attempts=ATTEMPTS, timeout=None, wait_initial=1.0, wait_max=30.0
        )
        async for attempt in retrying:
            with attempt:
                return self._understood(escalation, await self._post(body, headers))
        raise AssertionError("the last attempt returns or raises")

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _said(self, escalation: Escalation) -> dict[str, Any]:
        said = escalation.model_dump(mode="json", include={*_SENT, "created_at", "deadline"})
        path = f"/api/escalations/{escalation.escalation_id}/decision"
        return {"type": "escalation_triggered", **said, "answer_url": f"{self._api}{path}"}

    async def _post(self, body: bytes, headers: dict[str, str]) -> bytes:
        import httpx

        if self._client is None:
            self._client = httpx.AsyncClient(timeout=self._timeout, trust_env=False)
        try:
            url = self._url.get_secret_value()
            async with self._client.stream("POST", url, content=body, headers=headers) as response:
                answer = b""
                async for chunk in response.aiter_bytes():
                    answer += chunk
                    if len(answer) > _LONGEST_ANSWER:
                        raise self._error(f"its answer is longer than {_LONGEST_ANSWER} bytes")
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise self._error(f"its URL cannot be used ({type(error).__name__})") from None
        except httpx.HTTPError as error:
            # The library's message may repeat the URL.
            raise self._error(f"it cannot be reached ({type(error).__name__})", passing=True) from None
        if not response.is_success:
            passing = response.status_code in _PASSING or response.is_server_error
            said = redact(answer.decode("utf-8", "replace"), 200).strip()
            raise self._error(f"it answered {response.status_code} {said}".strip(), passing=passing)
        return answer

    def _understood(self, escalation: Escalation, answer: bytes) -> Answer | None:
        """Return the decision in an answer; what is no JSON object with one in it is only a thank-you."""
        try:
            found = json.loads(answer)
        except ValueError:
            return None
        if not isinstance(found, dict) or found.get("decision") is None:
            return None
        try:
            decided = Answer.model_validate(found)
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, f['loc']))}: {f['msg']}" for f in error.errors()[:3])
            raise self._error(f"its answer is refused: {redact(faults, 300)}") from None
        if decided.decision not in escalation.options:
            options = ", ".join(escalation.options)
            raise self._error(f"its answer {decided.decision!r} is none of the options: {options}")
        return decided

    def _error(self, reason: str, *, passing: bool = False) -> OrchestratorError:
        return (_Passing if passing else OrchestratorError)(f"the orchestrator at {self._name}: {reason}")
