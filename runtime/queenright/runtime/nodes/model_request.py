"""Asking a model: within a time limit, again after a failure that passes, and said to everybody."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from queenright.instrumentation.names import WaitingReason
from queenright.instrumentation.redaction import redact
from queenright.runtime.backoff import backoff
from queenright.runtime.breakers import CallBreaker, CallRefused
from queenright.runtime.deadline import Sleep, alone, within
from queenright.runtime.graphs.graph import NodeSpec
from queenright.runtime.llm.model import (
    LLMProvider,
    Message,
    ModelError,
    ModelReply,
    OnText,
    ToolSpec,
    TransientModelError,
)
from queenright.runtime.nodes.reporting import LlmReport, Reporter, StepReport

_log = logging.getLogger(__name__)

OnFailure = Callable[[Mapping[str, Any], float], Awaitable[None]]
"""Is told of each call that failed: what the event said, and when. What it raises ends the asking."""


async def ask(
    step: StepReport,
    model: LLMProvider,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    *,
    spec: NodeSpec,
    reporter: Reporter,
    sleep: Sleep,
    random: Random,
    on_failure: OnFailure,
    breaker: CallBreaker | None = None,
    streams: bool = True,
) -> tuple[ModelReply, LlmReport]:
    """
    Return a model's answer, and the report of the call that brought it.

    A failure that passes, a time-out among them, is followed by a wait and another call, as often as the
    node's specification allows; the wait is said as one. ``streams`` hands the text out as it comes,
    or at the end from a provider that does not stream.

    While ``breaker`` refuses, the model is not called, and the wait is until it is worth asking again. That
    is no failure of the model's: ``on_failure`` does not hear of it, and it takes none of the attempts; there
    are as many refusals at most.

    Raises:
        ModelError, TimeoutError: There is no answer. What else the provider raised is told as a ModelError.
    """

    calls = refusals = 0
    while True:
        report: LlmReport | None = None
        try:
            with _by_leave_of(breaker):
                report = step.llm(model.name, client_facing=spec.client_facing)
                async with report:
                    work = _reply(model, messages, tools, report.delta if streams else None)
                    reply = await within(spec.model_timeout_seconds, work, sleep)
                    if streams:
                        report.whole(reply.text)
                    report.usage(reply.input_tokens, reply.output_tokens, reply.cost)
                    report.finished(reply.finish_reason)
            return reply, report
        except Exception as error:
            if report is None:
                refusals += 1
            else:
                calls += 1
                await on_failure(report.facts, report.ended_at)
            passes = isinstance(error, TransientModelError | TimeoutError)
            if not passes or max(calls, refusals) >= spec.model_attempts:
                raise
            asked = error.retry_after if isinstance(error, TransientModelError) else None
            seconds = backoff(max(calls, refusals) - 1, retry_after=asked, random=random)
            _log.info("model %s of node %s is asked again in %.1f s", model.name, spec.id, seconds)
            waits = {"seconds": round(seconds, 3), "attempt": calls + refusals}
            async with reporter.waiting(WaitingReason.BACKOFF, node_id=spec.id, **waits):
                await sleep(seconds)


@contextmanager
def _by_leave_of(breaker: CallBreaker | None) -> Iterator[None]:
    """
    Around a call of a model: it is made if the breaker lets us, and the breaker is told how it went.

    Raises:
        TransientModelError: The breaker does not let us.
    """
    if breaker is None:
        yield
        return
    try:
        permit = breaker.admit()
    except CallRefused as refusal:
        raise TransientModelError(str(refusal), retry_after=refusal.retry_in) from refusal
    try:
        yield
    except (TransientModelError, TimeoutError) as error:
        permit.failed(error)
        raise
    except BaseException:
        # Asked the wrong way, or cancelled: that says nothing about whether the provider works.
        permit.given_back()
        raise
    permit.succeeded()


async def _reply(
    model: LLMProvider, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None
) -> ModelReply:
    """
    Return what a provider answers, if it is an answer.

    Raises:
        ModelError: It is none, or the provider raised what is no failure of a model, or cancelled itself.
    """
    reply, error = await alone(_completed(model, messages, tools, on_text))
    if isinstance(error, ModelError | TimeoutError):
        raise error
    if error is not None:
        raise ModelError(f"{type(error).__name__}: {redact(_words(error))}") from error
    if not isinstance(reply, ModelReply):
        raise ModelError(
            f"the provider {model.name!r} ({type(model).__name__}) answered with a {type(reply).__name__}; "
            f"its complete() must be async and return a ModelReply"
        )
    return reply


async def _completed(
    model: LLMProvider, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None
) -> object:
    work: object = model.complete(messages, tools, on_text)
    return await work if inspect.isawaitable(work) else work


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as fault:  # its own code, as it is a provider's
        return f"(it cannot be said: {type(fault).__name__})"
