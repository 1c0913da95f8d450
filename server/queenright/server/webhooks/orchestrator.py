"""The orchestrator behind a URL: escalations are posted to it; it answers at once, or later over the API."""

from __future__ import annotations

from typing import Any, Final

from pydantic import SecretStr, ValidationError

from queenright.health.interventions.record import Answer, Escalation
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.faults import fault_message
from queenright.instrumentation.redaction import redact
from queenright.server.webhooks.post import ATTEMPTS, SIGNATURE, WebhookClient, WebhookError, parse_object

__all__ = ["ATTEMPTS", "SIGNATURE", "OrchestratorError", "OrchestratorWebhook"]

_SENT_FIELDS: Final = (
    "escalation_id",
    "agent_id",
    "session_id",
    "incarnation_id",
    "reason",
    "options",
    "context",
)


class OrchestratorError(QueenrightError):
    """Raised when the orchestrator was not told, or answered nothing that can be done; names its host."""


class OrchestratorWebhook:
    """
    Asks an orchestrator over HTTP.

    Args:
        url: Where it is posted to. No message, log or repr of ours repeats it: it may hold a token.
        api: Base URL of our own API, from which the answer's URL is made; empty if it is not known.
        secret: What posts are signed with, in ``X-Queenright-Signature``; see ``webhook_post.signed``.
        timeout: Seconds that one answer may take.
    """

    def __init__(
        self, url: SecretStr, *, api: str = "", secret: SecretStr | None = None, timeout: float = 10.0
    ) -> None:
        self._webhook = WebhookClient(url, receiver="the orchestrator", secret=secret, timeout=timeout)
        self._api = api.rstrip("/")

    def __repr__(self) -> str:
        return f"OrchestratorWebhook({self._webhook.host!r})"

    async def ask(self, escalation: Escalation) -> Answer | None:
        """
        Post an escalation; a failure that may pass is tried again for a minute or two.

        Returns:
            Its decision, or None if it took the question and answers later.

        Raises:
            OrchestratorError: It could not be told, or its answer is none of the options.
        """
        try:
            return self._parse_answer(escalation, await self._webhook.post(self._payload(escalation)))
        except WebhookError as failure:
            raise OrchestratorError(str(failure)) from None

    async def close(self) -> None:
        """Close the connections."""
        await self._webhook.close()

    def _payload(self, escalation: Escalation) -> dict[str, Any]:
        fields = escalation.model_dump(mode="json", include={*_SENT_FIELDS, "created_at", "deadline"})
        path = f"/api/escalations/{escalation.escalation_id}/decision"
        return {"type": "escalation_triggered", **fields, "answer_url": f"{self._api}{path}"}

    def _parse_answer(self, escalation: Escalation, answer: bytes) -> Answer | None:
        """Return the decision in an answer; what is no JSON object with one in it is only a thank-you."""
        found = parse_object(answer)
        if found.get("decision") is None:
            return None
        try:
            decided = Answer.model_validate(found)
        except ValidationError as error:
            errors = "; ".join(
                f"{'.'.join(map(str, f['loc']))}: {fault_message(f)}" for f in error.errors()[:3]
            )
            raise self._webhook.make_error(f"its answer is refused: {redact(errors, 300)}") from None
        if decided.decision not in escalation.options:
            options = ", ".join(escalation.options)
            raise self._webhook.make_error(
                f"its answer {decided.decision!r} is none of the options: {options}"
            )
        return decided
