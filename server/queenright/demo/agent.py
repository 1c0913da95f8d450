"""One demo agent: model turns with tool calls, each with a verdict, until the task is done."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from queenright.demo.model import Call, Model, ProviderError, Reply
from queenright.demo.tools import Tool, run
from queenright.instrumentation import Verdict, Worker

_MAX_PROVIDER_FAILURES = 12
"""Consecutive failures of the provider before an agent gives up."""

Sleep = Callable[[float], bool]
"""Waits for a number of seconds; returns True if the fleet stops."""

TakeNudges = Callable[[], list[str]]
"""Returns the nudges that arrived since the last call."""


@dataclass(frozen=True, slots=True)
class Task:
    """The task of an agent: prompt, seconds per turn, and seconds until the user answers."""

    node: str
    prompt: str
    turn_seconds: float = 0.5
    answer_seconds: float = 5.0
    has_checkpoints: bool = False
    """Save a checkpoint after every accepted answer."""


def run_task(
    worker: Worker,
    model: Model,
    task: Task,
    tools: dict[str, Tool],
    sleep: Sleep,
    take_nudges: TakeNudges = list,
) -> None:
    """
    Work on a task until the model gives its final answer. Nudges go into the next prompt.

    Raises:
        ProviderError: The provider failed too many times in a row.
        CancelledError: The fleet is being stopped.
    """
    messages: list[dict[str, Any]] = [{"role": "user", "content": task.prompt}]
    known_results: set[str] = set()
    provider_failures = 0
    while True:
        if sleep(task.turn_seconds):
            raise CancelledError
        messages.extend({"role": "user", "content": text} for text in take_nudges())
        with worker.step(task.node) as step:
            try:
                with step.llm(model.name, model.provider) as llm:
                    reply = model.reply(messages)
                    llm.usage(reply.input_tokens, reply.output_tokens)
            except ProviderError as error:
                provider_failures += 1
                step.verdict(Verdict.RETRY, feedback=str(error))
                if provider_failures >= _MAX_PROVIDER_FAILURES:
                    raise
                continue
            provider_failures = 0
            results = [_call_tool(step, tools, call) for call in reply.calls]
            step.verdict(*_choose_verdict(reply, results, known_results))
        messages.append({"role": "assistant", "content": reply.answer or str(reply.calls)})
        messages.extend({"role": "user", "content": f"Result: {text[:2000]}"} for _, text in results)
        known_results.update(text for _, text in results)
        if reply.answer and task.has_checkpoints:
            worker.checkpoint()
        if reply.question:
            with worker.waiting("user_input"):
                if sleep(task.answer_seconds):
                    raise CancelledError
            messages.append({"role": "user", "content": "Yes, go on."})
        elif reply.final:
            return


def _call_tool(step: Any, tools: dict[str, Tool], call: Call) -> tuple[bool, str]:
    """Run one tool call; return whether it succeeded, and the result for the model."""
    try:
        with step.tool(call.tool, call.arguments, timeout=call.timeout) as span:
            text = run(tools, call.tool, call.arguments)
            span.result(text)
            return True, text
    except CancelledError:
        raise
    except Exception as error:  # the model handles errors of tools
        return False, f"{type(error).__name__}: {error}"


def _choose_verdict(
    reply: Reply, results: list[tuple[bool, str]], known_results: set[str]
) -> tuple[Verdict, str | None]:
    """Return the verdict on a step: whether it contains anything new."""
    if reply.answer:
        return Verdict.ACCEPT, None
    if reply.question:
        return Verdict.CONTINUE, None
    if all(text in known_results or not is_success for is_success, text in results):
        return Verdict.RETRY, "nothing new in this step"
    return Verdict.CONTINUE, None
