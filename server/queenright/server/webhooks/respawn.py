"""Restart workers in other processes through a respawner's URL."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, SecretStr, StringConstraints, ValidationError

from queenright.health.interventions.target import Target
from queenright.health.recovery.respawner import (
    CheckpointRef,
    InvalidCheckpointError,
    Respawner,
    RespawnRefusedError,
)
from queenright.health.store.store import Store
from queenright.runtime.events import EventType
from queenright.server.webhooks.post import WebhookClient, WebhookError, parse_object

_log = logging.getLogger(__name__)

IDEMPOTENCY_KEY: Final = "Idempotency-Key"
_CONFLICT: Final = 409
_RETRY_SECONDS: Final = 40.0
"""Seconds for retries. A worker has a minute to start, so a later retry is too late."""
_MAX_CHAIN_LENGTH: Final = 50


class _RespawnReply(BaseModel):
    """The new session and incarnation, if the respawner knows them before the worker starts."""

    model_config = ConfigDict(extra="ignore", strict=True)

    session_id: Annotated[str, StringConstraints(max_length=200)] = ""
    incarnation_id: Annotated[str, StringConstraints(max_length=200)] = ""


class RespawnWebhook:
    """
    The ``Respawner`` of workers that the local runtime does not run.

    Args:
        url: The respawner's URL. It may contain a token, so no message, log or repr includes it.
        store: The event log, with the checkpoints that workers reported.
        local: The respawner of the local runtime, which handles its own workers.
        secret: The key of ``X-Queenright-Signature``; see `sign_body`.
    """

    def __init__(
        self,
        url: SecretStr,
        store: Store,
        *,
        local: Respawner | None = None,
        secret: SecretStr | None = None,
    ) -> None:
        self._webhook = WebhookClient(
            url, receiver="the respawner", secret=secret, retry_timeout=_RETRY_SECONDS
        )
        self._store = store
        self._local = local

    def __repr__(self) -> str:
        return f"RespawnWebhook({self._webhook.host!r})"

    def can_reach(self, target: Target) -> bool:
        """Return whether the worker does not belong to the local runtime."""
        return self._local is None or not self._local.can_reach(target)

    async def chain(self, target: Target) -> Sequence[CheckpointRef]:
        """
        Return the checkpoints that the worker reported in this session, newest first.

        They are not verified. The respawner reports a broken checkpoint when it tries to resume from it.

        Raises:
            StoreError: The event log cannot be read.
        """
        events = await self._store.history(
            types={EventType.CHECKPOINT_SAVED, EventType.AGENT_TERMINATED},
            filter_agent=target.agent_id,
            session_id=target.session_id,
            limit=10 * _MAX_CHAIN_LENGTH,
        )
        newest_times: dict[str, float] = {}
        for event in sorted(events, key=lambda event: event.time, reverse=True):
            checkpoint_id = event.data.get("checkpoint_id")
            if isinstance(checkpoint_id, str) and checkpoint_id:
                newest_times.setdefault(checkpoint_id, event.time)
        return [
            CheckpointRef(checkpoint_id=checkpoint_id, created_at=created_at, valid=True)
            for checkpoint_id, created_at in list(newest_times.items())[:_MAX_CHAIN_LENGTH]
        ]

    async def respawn(
        self,
        target: Target,
        checkpoint: CheckpointRef | None,
        *,
        task_id: str,
        attempt: int,
        note: str,
        repeatable: bool,
        may_start_over: bool,
    ) -> Target:
        """
        Request a restart of the worker. The respawner has accepted it when this returns.

        The session stays the same unless the response has a new one; the incarnation is "" unless the
        response has one.

        Raises:
            InvalidCheckpointError: The checkpoint is broken; another one may work.
            RespawnRefusedError: The worker will not be started.
        """
        request = {
            "type": "respawn_requested",
            "task_id": task_id,
            "agent_id": target.agent_id,
            "session_id": target.session_id,
            "incarnation_id": target.incarnation_id,
            "checkpoint_id": None if checkpoint is None else checkpoint.checkpoint_id,
            "attempt": attempt,
        }
        options = {"note": note, "repeatable": repeatable, "may_start_over": may_start_over}
        # A retry has the same key, so it cannot start the worker twice.
        key = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:32]
        try:
            answer = await self._webhook.post(request | options, {IDEMPOTENCY_KEY: key})
        except WebhookError as error:
            if checkpoint is not None and error.status == _CONFLICT:
                broken_id = parse_object(error.answer).get("broken_checkpoint")
                if broken_id == checkpoint.checkpoint_id:
                    raise InvalidCheckpointError(f"checkpoint {broken_id} is broken: {error}") from None
            raise RespawnRefusedError(str(error), final=not error.is_transient) from None
        reply = self._parse_reply(answer)
        return Target(
            agent_id=target.agent_id,
            session_id=reply.session_id or target.session_id,
            incarnation_id=reply.incarnation_id,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._webhook.close()

    def _parse_reply(self, answer: bytes) -> _RespawnReply:
        """Parse a response. The worker is started even if the response is invalid."""
        try:
            return _RespawnReply.model_validate(parse_object(answer))
        except ValidationError:
            _log.warning(
                "%s", self._webhook.make_error("it named no session and incarnation that can be used")
            )
            return _RespawnReply()
