"""Calls a model with a time limit and retries, and reports each call."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from queenright.instrumentation.errors import error_text
from queenright.instrumentation.names import WaitingReason
from queenright.instrumentation.redaction import redact
from queenright.runtime.breaker_protocols import CallBreaker, CallRefusedError, guarded_by
from queenright.runtime.deadline import Sleep, run_isolated, within
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
"""Called for each failed call with the data of its event and its time. An exception ends the retries."""


async def request_reply(
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
    Call a model and return its reply, with the report of the successful call.

    Transient failures, including timeouts, are retried as often as the node's specification allows, after
    a wait that is reported. ``streams`` emits the text as it arrives, or at the end from a provider
    that does not stream.

    While ``breaker`` is open, the model is not called; the wait lasts until the breaker may admit a call.
    Such refusals are not failures of the model: ``on_failure`` is not called, and they have a limit of
    their own.

    Raises:
        ModelError, TimeoutError: There is no reply. Other exceptions of the provider become a ModelError.
    """

    calls = refusals = 0
    while True:
        report: LlmReport | None = None
        try:
            with _guarded_by(breaker):
                report = step.llm(model.name, client_facing=spec.client_facing)
                async with report:
                    work = _request_once(model, messages, tools, report.delta if streams else None)
                    reply = await within(spec.model_timeout_seconds, work, sleep)
                    if streams:
                        report.ensure_text(reply.text)
                    report.usage(reply.input_tokens, reply.output_tokens, reply.cost)
                    report.set_finish_reason(reply.finish_reason)
            return reply, report
        except Exception as error:
            if report is None:
                refusals += 1
            else:
                calls += 1
                await on_failure(report.facts, report.ended_at)
            is_transient = isinstance(error, TransientModelError | TimeoutError)
            if not is_transient or max(calls, refusals) >= spec.model_attempts:
                raise
            retry_after = error.retry_after if isinstance(error, TransientModelError) else None
            seconds = backoff(max(calls, refusals) - 1, retry_after=retry_after, random=random)
            _log.info("retrying model %s of node %s in %.1f s", model.name, spec.id, seconds)
            data = {"seconds": round(seconds, 3), "attempt": calls + refusals}
            async with reporter.waiting(WaitingReason.BACKOFF, node_id=spec.id, **data):
                await sleep(seconds)


@contextmanager
def _guarded_by(breaker: CallBreaker | None) -> Iterator[None]:
    """
    Guard a model call by a breaker. An invalid request says nothing about the provider.

    Raises:
        TransientModelError: The breaker is open.
    """
    try:
        with guarded_by(breaker, TransientModelError, TimeoutError):
            yield
    except CallRefusedError as refusal:
        raise TransientModelError(str(refusal), retry_after=refusal.retry_in) from refusal


async def _request_once(
    model: LLMProvider, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None
) -> ModelReply:
    """
    Call a provider and check that it returns a reply.

    Raises:
        ModelError: The provider returned no reply, raised an unexpected exception, or cancelled itself.
    """
    reply, error = await run_isolated(_call_provider(model, messages, tools, on_text))
    if isinstance(error, ModelError | TimeoutError):
        raise error
    if error is not None:
        raise ModelError(f"{type(error).__name__}: {redact(error_text(error))}") from error
    if not isinstance(reply, ModelReply):
        raise ModelError(
            f"the provider {model.name!r} ({type(model).__name__}) returned a {type(reply).__name__}; "
            f"its complete() must be async and return a ModelReply"
        )
    return reply


async def _call_provider(
    model: LLMProvider, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None
) -> object:
    work: object = model.complete(messages, tools, on_text)
    return await work if inspect.isawaitable(work) else work


def backoff(
    attempt: int, *, base: float = 1.0, cap: float = 60.0, retry_after: float | None = None, random: Random
) -> float:
    """
    Return the number of seconds to wait before the next attempt.

    Half of it is fixed and half is random, so that clients that failed together do not retry together.

    Args:
        attempt: Number of earlier failures: 0 after the first one.
        base: Maximum wait after the first failure, in seconds; doubles with each further one.
        cap: Limit of that doubling, in seconds.
        retry_after: Minimum wait that the server requested, in seconds; may exceed ``cap``.
        random: Source of the random half.
    """
    longest = min(cap, base * 2.0 ** min(max(attempt, 0), 64))
    return max(longest * (0.5 + random.random() / 2), retry_after or 0.0)
