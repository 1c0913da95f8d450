"""Post escalations to the URL of an orchestrator, which answers immediately or later through the API."""

from __future__ import annotations

from typing import Any, Final

from pydantic import SecretStr, ValidationError

from queenright.health.interventions.escalation import Escalation, EscalationAnswer
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import redact
from queenright.instrumentation.validation_messages import describe_faults
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
    """Raised when the orchestrator is unreachable or its answer is invalid. The message has its host."""


class OrchestratorWebhook:
    """
    Asks an orchestrator over HTTP for decisions.

    Args:
        url: The orchestrator's URL. It may contain a token, so no message, log or repr includes it.
        api: Base URL of Queenright's API, for the URL of the answer; "" if unknown.
        secret: The key of ``X-Queenright-Signature``; see `sign_body`.
    """

    def __init__(self, url: SecretStr, *, api: str = "", secret: SecretStr | None = None) -> None:
        self._webhook = WebhookClient(url, receiver="the orchestrator", secret=secret)
        self._api = api.rstrip("/")

    def __repr__(self) -> str:
        return f"OrchestratorWebhook({self._webhook.host!r})"

    async def ask(self, escalation: Escalation) -> EscalationAnswer | None:
        """
        Post an escalation. Transient failures are retried for a minute or two.

        Returns:
            The decision, or None if the orchestrator answers later.

        Raises:
            OrchestratorError: The orchestrator cannot be reached, or its answer is not one of the options.
        """
        try:
            return self._parse_answer(escalation, await self._webhook.post(self._build_payload(escalation)))
        except WebhookError as error:
            raise OrchestratorError(str(error)) from None

    async def close(self) -> None:
        """Close the connections."""
        await self._webhook.close()

    def _build_payload(self, escalation: Escalation) -> dict[str, Any]:
        fields = escalation.model_dump(mode="json", include={*_SENT_FIELDS, "created_at", "deadline"})
        path = f"/api/escalations/{escalation.escalation_id}/decision"
        return {"type": "escalation_triggered", **fields, "answer_url": f"{self._api}{path}"}

    def _parse_answer(self, escalation: Escalation, answer: bytes) -> EscalationAnswer | None:
        """Return the decision in an answer; None if the answer has none."""
        values = parse_object(answer)
        if values.get("decision") is None:
            return None
        try:
            validated_answer = EscalationAnswer.model_validate(values)
        except ValidationError as error:
            errors = describe_faults(error.errors(include_input=False), limit=3)
            raise self._webhook.make_error(f"its answer is invalid: {redact(errors, 300)}") from None
        if validated_answer.decision not in escalation.options:
            options = ", ".join(escalation.options)
            raise self._webhook.make_error(
                f"its answer {validated_answer.decision!r} is not one of the options: {options}"
            )
        return validated_answer
