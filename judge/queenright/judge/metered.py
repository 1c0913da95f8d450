"""A model in a role: counted, paid from a budget, within its time; and the rules in its place without it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from queenright.instrumentation.redaction import redact
from queenright.judge.budget import Budget, Held, Spent
from queenright.judge.estimate import Cost, estimate
from queenright.judge.metrics import FallbackReason, JudgeMetrics, ModelRole
from queenright.judge.model_backoff import ModelBackoff
from queenright.judge.rules import DECIDE, DISMISS, EMIT, NOTIFY, SUMMARY
from queenright.judge.settings import ModelSettings
from queenright.runtime.deadline import Sleep, within
from queenright.runtime.llm.litellm_provider import LiteLlmProvider
from queenright.runtime.llm.model import LLMProvider, Message, ModelError, ModelReply, OnText, ToolSpec
from queenright.runtime.nodes.own_tools import ASK_USER, SET_OUTPUT

_log = logging.getLogger(__name__)

STOOD_IN: Final = "rules_in_place"
"""How the ``finish_reason`` of an answer begins that the rules gave in place of the model."""

_DECIDING: Final = frozenset({EMIT, NOTIFY, DISMISS, DECIDE, SET_OUTPUT})

FAILURES_UNTIL_RULES: Final = 3
"""Providers fail once or twice in normal operation; a third failure in a row is an outage."""
RULES_SECONDS: Final = 300.0
"""Long enough to spare a provider that is down, short enough to notice soon that it is back."""
_NEARLY: Final = 0.99
"""Whoever asks may have the same limit, and be the first to see it reached."""


class Metered:
    """
    A model whose answers are counted: time, tokens, dollars.

    Without ``stand_in`` it is asked whatever comes. With it, the stand-in answers in its place where the
    budget is spent, and from one failure too many (``ModelBackoff``) until a rest is over. A failure before
    that is raised: it is no verdict, and the next check asks again. An answer whose calls are all refused,
    and a visit that ends without a decision, are failures too.

    What a call may cost is held before it is made. One that nobody answers, because it failed, was given up
    or ran out of time, is paid for as far as it can be known: its question was sent.

    Args:
        model: Who thinks.
        role: As whom.
        settings: Its time limit, and how many failures are borne.
        metrics: Counts all of it.
        budget: What answers are paid from.
        stand_in: Who answers in its place.
        monotonic: The clock of limits and rests.
        sleep: Waits on that clock.
    """

    def __init__(
        self,
        model: LLMProvider,
        role: ModelRole,
        settings: ModelSettings,
        *,
        metrics: JudgeMetrics,
        budget: Budget | None = None,
        stand_in: LLMProvider | None = None,
        monotonic: Callable[[], float] = time.perf_counter,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._model = model
        self._role = role
        self._timeout = settings.timeout_seconds
        self._metrics = metrics
        for one in (model, stand_in):
            if one is not None:
                metrics.knows(role, one.name)
        self._budget = budget
        self._stand_in = stand_in
        self._monotonic = monotonic
        self._sleep = sleep
        self._patience = ModelBackoff(FAILURES_UNTIL_RULES, RULES_SECONDS, monotonic)
        self._said = _OnceAWindow(monotonic)

    @property
    def name(self) -> str:
        """The model's own name."""
        return self._model.name

    @property
    def role(self) -> ModelRole:
        """As whom it is asked."""
        return self._role

    @property
    def replaced(self) -> FallbackReason | None:
        """Why the stand-in would answer now; None if the model is asked."""
        if self._stand_in is None:
            return None
        spent = self._budget is not None and self._budget.exhausted() is not None
        return self._patience.lost or ("budget" if spent else None)

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        """
        Ask the model, or have the rules answer in its place.

        Raises:
            ModelError, TimeoutError: There is no answer.
        """
        if must_call(tools) and (refusal := refusal_of(messages)) is not None:
            self.count_invalid(refusal)
        reason = None if self._stand_in is None else self._patience.lost
        spent: Spent | None = None
        if reason is None:
            held = await self._hold(messages, tools)
            if isinstance(held, Spent):
                reason, spent = "budget", held
            else:
                reply, reason = await self._try(held, messages, tools, on_text)
                if reply is not None:
                    return reply
        return await self._replace(reason or "error", spent, messages, tools, on_text)

    def count_invalid(self, why: str) -> None:
        """Count the newest answer as a failure: what it asked for was refused, or it decided nothing."""
        if self._stand_in is not None and self._patience.lost is None and self._patience.refused("invalid"):
            self._log_rest(why)

    async def _hold(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Held | Spent | None:
        """Set aside what a question may cost; return the limit that forbids it where another can answer."""
        if self._budget is None:
            return None
        cost = await estimate(self._model, messages, tools)
        return await self._budget.hold(self._role, cost, whatever=self._stand_in is None)

    async def _try(
        self,
        held: Held | None,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        on_text: OnText | None,
    ) -> tuple[ModelReply | None, FallbackReason | None]:
        """Return the model's answer; or None and why, where that is the last failure that is borne."""
        began = self._monotonic()
        try:
            reply = await self._ask(held, messages, tools, on_text)
        except asyncio.CancelledError:
            if self._monotonic() - began >= self._timeout * _NEARLY:
                self._failed("timeout", "it was given up")
            raise
        except Exception as error:
            late = isinstance(error, TimeoutError) or self._monotonic() - began >= self._timeout * _NEARLY
            reason: FallbackReason = "timeout" if late else "error"
            if not self._failed(reason, f"{type(error).__name__}: {error}"):
                raise
            return None, reason
        if must_call(tools) and not _usable(reply, tools):
            given_up = self._failed("invalid", f"no usable tool call (it stopped by {reply.finish_reason!r})")
            return (None, "invalid") if given_up else (reply, None)
        if must_call(tools) and not _decides(reply):
            self._patience.looked()
        elif self._patience.answered():
            _log.info("%s answers the %s again", self.name, self._role)
        return reply, None

    async def _ask(
        self,
        held: Held | None,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        on_text: OnText | None,
    ) -> ModelReply:
        """Ask the model within its time; count, and pay."""
        began = self._monotonic()
        reply: ModelReply | None = None
        if isinstance(self._model, LiteLlmProvider):
            work = self._model.complete(messages, tools, on_text, must_call=must_call(tools))
        else:
            work = self._model.complete(messages, tools, on_text)
        try:
            reply = await within(self._timeout, work, self._sleep)
            return reply
        finally:
            self._metrics.answered(self._role, self.name, reply, self._monotonic() - began)
            if self._budget is not None and held is not None:
                await self._budget.settle(held, None if reply is None else _cost(reply))

    def _failed(self, reason: FallbackReason, said: str) -> bool:
        """Count a failure; return whether the stand-in answers from here on."""
        if self._stand_in is None or not self._patience.failed(reason):
            return False
        self._log_rest(said)
        return True

    def _log_rest(self, why: str) -> None:
        _log.warning(
            "the %s's model %s keeps failing (%s); the rules answer in its place for a while",
            self._role,
            self.name,
            redact(why, 300),
        )

    async def _replace(
        self,
        reason: FallbackReason,
        spent: Spent | None,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        on_text: OnText | None,
    ) -> ModelReply:
        assert self._stand_in is not None
        began = self._monotonic()
        if spent is not None and self._said.now(spent):
            _log.warning(
                "the %s's model %s is not asked: %s; the rules answer in its place",
                self._role,
                self.name,
                spent,
            )
        try:
            reply = await self._stand_in.complete(messages, tools, on_text)
        except ModelError as error:
            why = spent or f"it failed too often ({reason})"
            raise ModelError(f"{self.name} is not asked now: {why}; and without it: {error}") from error
        self._metrics.answered(self._role, self._stand_in.name, reply, self._monotonic() - began)
        self._metrics.fell_back(self._role, reason)
        return replace(reply, finish_reason=f"{STOOD_IN}:{reason}")


def must_call(tools: Sequence[ToolSpec]) -> bool:
    """Say whether an answer in words is none: where there are outputs to set, and nobody to talk to."""
    offered = {tool.name for tool in tools}
    return SET_OUTPUT in offered and ASK_USER not in offered


def refusal_of(messages: Sequence[Message]) -> str | None:
    """
    Return why the newest answer was refused; None if one of its calls was taken, or nothing is known of it.

    Only tools that have no outage of their own count: what a model may look at elsewhere can fail without it.
    """
    refusals: dict[str, str] = {}
    for message in reversed(messages):
        if message.role == "tool":
            if not message.content.startswith("error:"):
                return None
            refusals[message.tool_call_id] = message.content
            continue
        ours = [call for call in message.tool_calls if call.name in _DECIDING or call.name == SUMMARY]
        known = [refusals[call.id] for call in ours if call.id in refusals]
        return known[0] if known and len(ours) == len(message.tool_calls) else None
    return None


def _cost(reply: ModelReply) -> Cost:
    return Cost(reply.cost, reply.input_tokens + reply.output_tokens)


def _decides(reply: ModelReply) -> bool:
    return any(call.name in _DECIDING for call in reply.tool_calls)


def _usable(reply: ModelReply, tools: Sequence[ToolSpec]) -> bool:
    offered = {tool.name for tool in tools}
    return any(call.name in offered and _is_object(call.arguments) for call in reply.tool_calls)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


class _OnceAWindow:
    """Says whether a spent limit is worth a line in the log: once in each of its windows."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._clock = monotonic
        self._last: dict[tuple[str, str], float] = {}

    def now(self, spent: Spent) -> bool:
        key, now = (spent.window, spent.unit), self._clock()
        if key in self._last and now - self._last[key] < spent.seconds:
            return False
        self._last[key] = now
        return True
