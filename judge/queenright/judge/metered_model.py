"""A model with metrics, a budget and a time limit. The rules replace it if it keeps failing."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from queenright.instrumentation.redaction import redact
from queenright.judge.estimate import Cost, estimate
from queenright.judge.judging_budget import ExceededLimit, ModelBudget, Reservation
from queenright.judge.metrics import FallbackReason, JudgeMetrics, ModelRole
from queenright.judge.model_backoff import ModelBackoff
from queenright.judge.rules_model import DECIDE, DISMISS, EMIT, NOTIFY, SUMMARY
from queenright.judge.settings import ModelSettings
from queenright.runtime.deadline import Sleep, within
from queenright.runtime.llm.litellm_provider import LiteLlmProvider
from queenright.runtime.llm.model import LLMProvider, Message, ModelError, ModelReply, OnText, ToolSpec
from queenright.runtime.nodes.own_tools import ASK_USER, SET_OUTPUT

_log = logging.getLogger(__name__)

FALLBACK_PREFIX: Final = "rules_in_place"
"""The prefix of the ``finish_reason`` if the rules replied in place of the model."""

_DECIDING: Final = frozenset({EMIT, NOTIFY, DISMISS, DECIDE, SET_OUTPUT})

FAILURES_UNTIL_RULES: Final = 3
"""Providers fail once or twice in normal operation. A third consecutive failure is an outage."""
RULES_SECONDS: Final = 300.0
"""Long enough to spare a provider that is down, and short enough to notice soon that it has recovered."""
_TIMEOUT_FRACTION: Final = 0.99
"""
A call that is cancelled after this fraction of its time limit counts as timed out. The caller may have the
same limit.
"""


class MeteredModel:
    """
    A model that counts its calls: their time, tokens and dollars.

    A ``stand_in`` replies while the budget is spent, or while the model is paused after too many failures
    (``ModelBackoff``). Earlier failures are raised, and the next check retries. A reply whose tool calls are
    all rejected, and a visit that ends without a decision, also count as failures.

    The estimated cost of a call is reserved before the call. A call that fails, is cancelled or times out is
    charged for its input tokens, because they were sent.

    Args:
        budget: Limits the cost of calls.
    """

    def __init__(
        self,
        model: LLMProvider,
        role: ModelRole,
        settings: ModelSettings,
        *,
        metrics: JudgeMetrics,
        budget: ModelBudget | None = None,
        stand_in: LLMProvider | None = None,
        monotonic: Callable[[], float] = time.perf_counter,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._model = model
        self._role = role
        self._timeout = settings.timeout_seconds
        self._metrics = metrics
        for provider in (model, stand_in):
            if provider is not None:
                metrics.initialise(role, provider.name)
        self._budget = budget
        self._stand_in = stand_in
        self._monotonic = monotonic
        self._sleep = sleep
        self._backoff = ModelBackoff(FAILURES_UNTIL_RULES, RULES_SECONDS, monotonic)
        self._limit_log = _LogLimiter(monotonic)

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._model.name

    @property
    def fallback_reason(self) -> FallbackReason | None:
        """Why the stand-in would reply now, or None if the model would reply."""
        if self._stand_in is None:
            return None
        is_spent = self._budget is not None and self._budget.find_exceeded_limit() is not None
        return self._backoff.reason or ("budget" if is_spent else None)

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        """
        Call the model, or the stand-in in its place.

        Raises:
            ModelError, TimeoutError: There is no reply.
        """
        if must_call(tools) and (rejection := find_rejection(messages)) is not None:
            self.count_invalid(rejection)
        reason = None if self._stand_in is None else self._backoff.reason
        limit: ExceededLimit | None = None
        if reason is None:
            reservation = await self._reserve(messages, tools)
            if isinstance(reservation, ExceededLimit):
                reason, limit = "budget", reservation
            else:
                reply, reason = await self._call_model(reservation, messages, tools, on_text)
                if reply is not None:
                    return reply
        return await self._call_stand_in(reason or "error", limit, messages, tools, on_text)

    def count_invalid(self, detail: str) -> None:
        """Count the newest reply as a failure, because its calls were rejected or it made no decision."""
        if (
            self._stand_in is not None
            and self._backoff.reason is None
            and self._backoff.reject_reply("invalid")
        ):
            self._log_backoff(detail)

    async def _reserve(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Reservation | ExceededLimit | None:
        """
        Reserve the estimated cost of a call, or return the limit that forbids it if a stand-in can reply.
        """
        if self._budget is None:
            return None
        cost = await estimate(self._model, messages, tools)
        return await self._budget.reserve(self._role, cost, force=self._stand_in is None)

    async def _call_model(
        self,
        reservation: Reservation | None,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        on_text: OnText | None,
    ) -> tuple[ModelReply | None, FallbackReason | None]:
        """Return the model's reply, or None and the reason if its failure starts a pause."""
        started_at = self._monotonic()
        try:
            reply = await self._call_metered(reservation, messages, tools, on_text)
        except asyncio.CancelledError:
            if self._monotonic() - started_at >= self._timeout * _TIMEOUT_FRACTION:
                self._record_failure("timeout", "the call was cancelled")
            raise
        except Exception as error:
            is_timeout = (
                isinstance(error, TimeoutError)
                or self._monotonic() - started_at >= self._timeout * _TIMEOUT_FRACTION
            )
            reason: FallbackReason = "timeout" if is_timeout else "error"
            if not self._record_failure(reason, f"{type(error).__name__}: {error}"):
                raise
            return None, reason
        if must_call(tools) and not _is_usable(reply, tools):
            is_replaced = self._record_failure(
                "invalid", f"no valid tool call (finish reason {reply.finish_reason!r})"
            )
            return (None, "invalid") if is_replaced else (reply, None)
        if must_call(tools) and not _makes_decision(reply):
            self._backoff.note_undecided()
        elif self._backoff.note_reply():
            _log.info("%s replies to the %s again", self.name, self._role)
        return reply, None

    async def _call_metered(
        self,
        reservation: Reservation | None,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        on_text: OnText | None,
    ) -> ModelReply:
        """Call the model within its time limit. Record metrics and cost."""
        started_at = self._monotonic()
        reply: ModelReply | None = None
        if isinstance(self._model, LiteLlmProvider):
            work = self._model.complete(messages, tools, on_text, must_call=must_call(tools))
        else:
            work = self._model.complete(messages, tools, on_text)
        try:
            reply = await within(self._timeout, work, self._sleep)
            return reply
        finally:
            self._metrics.count_call(self._role, self.name, reply, self._monotonic() - started_at)
            if self._budget is not None and reservation is not None:
                await self._budget.settle(reservation, None if reply is None else _make_cost(reply))

    def _record_failure(self, reason: FallbackReason, detail: str) -> bool:
        """Count a failure, and return whether the stand-in replies from now on."""
        if self._stand_in is None or not self._backoff.note_failure(reason):
            return False
        self._log_backoff(detail)
        return True

    def _log_backoff(self, detail: str) -> None:
        _log.warning(
            "the %s's model %s keeps failing (%s); the rules answer instead for a while",
            self._role,
            self.name,
            redact(detail, 300),
        )

    async def _call_stand_in(
        self,
        reason: FallbackReason,
        limit: ExceededLimit | None,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        on_text: OnText | None,
    ) -> ModelReply:
        assert self._stand_in is not None
        started_at = self._monotonic()
        if limit is not None and self._limit_log.is_due(limit):
            _log.warning(
                "the %s's model %s is not called: %s; the rules replace it",
                self._role,
                self.name,
                limit,
            )
        try:
            reply = await self._stand_in.complete(messages, tools, on_text)
        except ModelError as error:
            explanation = limit or f"it failed too often ({reason})"
            raise ModelError(f"{self.name} is not called now: {explanation}; the rules: {error}") from error
        self._metrics.count_call(self._role, self._stand_in.name, reply, self._monotonic() - started_at)
        self._metrics.count_fallback(self._role, reason)
        return replace(reply, finish_reason=f"{FALLBACK_PREFIX}:{reason}")


def must_call(tools: Sequence[ToolSpec]) -> bool:
    """
    Return whether a reply needs a tool call, because outputs must be set and there is no user to talk to.
    """
    tool_names = {tool.name for tool in tools}
    return SET_OUTPUT in tool_names and ASK_USER not in tool_names


def find_rejection(messages: Sequence[Message]) -> str | None:
    """
    Return why all calls of the newest reply were rejected, or None if one was accepted or this is unknown.

    Only built-in tools count, because a query of an external system can fail through no fault of the model.
    """
    rejections: dict[str, str] = {}
    for message in reversed(messages):
        if message.role == "tool":
            if not message.content.startswith("error:"):
                return None
            rejections[message.tool_call_id] = message.content
            continue
        builtin_calls = [
            call for call in message.tool_calls if call.name in _DECIDING or call.name == SUMMARY
        ]
        reasons = [rejections[call.id] for call in builtin_calls if call.id in rejections]
        return reasons[0] if reasons and len(builtin_calls) == len(message.tool_calls) else None
    return None


def _make_cost(reply: ModelReply) -> Cost:
    return Cost(reply.cost, reply.input_tokens + reply.output_tokens)


def _makes_decision(reply: ModelReply) -> bool:
    return any(call.name in _DECIDING for call in reply.tool_calls)


def _is_usable(reply: ModelReply, tools: Sequence[ToolSpec]) -> bool:
    tool_names = {tool.name for tool in tools}
    return any(call.name in tool_names and _is_object(call.arguments) for call in reply.tool_calls)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


class _LogLimiter:
    """Limits the log to one line per exceeded limit in each window."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._clock = monotonic
        self._last: dict[tuple[str, str], float] = {}

    def is_due(self, limit: ExceededLimit) -> bool:
        key, now = (limit.window, limit.unit), self._clock()
        if key in self._last and now - self._last[key] < limit.seconds:
            return False
        self._last[key] = now
        return True
