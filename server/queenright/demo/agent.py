"""One demo agent: turns of model and tools, each judged, until the task is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from queenright.demo.model import Call, Model, ProviderError, Reply
from queenright.demo.tools import Tool, run
from queenright.instrumentation import Verdict, Worker

_PROVIDER_PATIENCE = 12
"""Failures of the provider, one after another, before an agent gives up."""

Sleep = Callable[[float], bool]
"""Waits so many seconds; returns True when the fleet is to stop."""

Told = Callable[[], list[str]]
"""Returns what an agent was told since the last time it asked."""


@dataclass(frozen=True, slots=True)
class Task:
    """What an agent is to do, how fast it works and how long a user takes to answer."""

    node: str
    prompt: str
    pace: float = 0.5
    user_takes: float = 5.0
    saves: bool = False
    """Whether every accepted answer is followed by a checkpoint."""


class FleetStoppedError(Exception):
    """Raised inside an agent when the fleet is stopped."""


def work(
    worker: Worker,
    model: Model,
    task: Task,
    tools: dict[str, Tool],
    sleep: Sleep,
    told: Told = list,
) -> None:
    """
    Work on one task until the model gives its final answer; what it is told is in its next prompt.

    Raises:
        ProviderError: the provider failed too many times running.
        FleetStoppedError: the fleet is being stopped.
    """
    messages: list[dict[str, Any]] = [{"role": "user", "content": task.prompt}]
    seen: set[str] = set()
    provider_failures = 0
    while True:
        if sleep(task.pace):
            raise FleetStoppedError
        messages.extend({"role": "user", "content": text} for text in told())
        with worker.step(task.node) as step:
            try:
                with step.llm(model.name, model.provider) as llm:
                    reply = model.reply(messages)
                    llm.usage(reply.input_tokens, reply.output_tokens)
            except ProviderError as error:
                provider_failures += 1
                step.verdict(Verdict.RETRY, feedback=str(error))
                if provider_failures >= _PROVIDER_PATIENCE:
                    raise
                continue
            provider_failures = 0
            results = [_call(step, tools, call) for call in reply.calls]
            step.verdict(*_review(reply, results, seen))
        messages.append({"role": "assistant", "content": reply.answer or str(reply.calls)})
        messages.extend({"role": "user", "content": f"Result: {text[:2000]}"} for _, text in results)
        seen.update(text for _, text in results)
        if reply.answer and task.saves:
            worker.checkpoint()
        if reply.question:
            with worker.waiting("user_input"):
                if sleep(task.user_takes):
                    raise FleetStoppedError
            messages.append({"role": "user", "content": "Yes, go on."})
        elif reply.final:
            return


def _call(step: Any, tools: dict[str, Tool], call: Call) -> tuple[bool, str]:
    """Run one tool call; return whether it went well and what the model is told."""
    try:
        with step.tool(call.tool, call.arguments, timeout=call.timeout) as span:
            text = run(tools, call.tool, call.arguments)
            span.result(text)
            return True, text
    except FleetStoppedError:
        raise
    except Exception as error:  # a tool's error is the model's to deal with
        return False, f"{type(error).__name__}: {error}"


def _review(reply: Reply, results: list[tuple[bool, str]], seen: set[str]) -> tuple[Verdict, str | None]:
    """Judge one step as a careful reader would: is there anything new in it?"""
    if reply.answer:
        return Verdict.ACCEPT, None
    if reply.question:
        return Verdict.CONTINUE, None
    if all(text in seen or not went_well for went_well, text in results):
        return Verdict.RETRY, "nothing new in this step"
    return Verdict.CONTINUE, None
