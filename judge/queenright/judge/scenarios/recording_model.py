"""Record a model's calls: their question, tool calls, duration and cost."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

from queenright.judge.rules_model import DISMISS, EMIT, NOTIFY
from queenright.judge.scenarios.scenario import LEVELS
from queenright.runtime.llm.model import LLMProvider, Message, ModelReply, OnText, ToolSpec

SILENT = "no answer"
"""The answer of a model without a valid decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A call of a model. ``question`` is the newest user message."""

    question: str
    calls: tuple[tuple[str, str], ...]
    """The called tools, with their arguments as JSON."""
    seconds: float
    tokens: int
    cost: float
    failure: str = ""


class RecordingModel:
    """Records the calls of a model."""

    def __init__(self, model: LLMProvider) -> None:
        self._model = model
        self.answers: list[RecordedCall] = []
        """The recorded calls, oldest first."""
        self.in_flight = 0
        """The number of calls in progress."""

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._model.name

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        """See ``LLMProvider``."""
        started_at, reply, failure = time.perf_counter(), ModelReply(), ""
        self.in_flight += 1
        try:
            reply = await self._model.complete(messages, tools, on_text)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            raise
        finally:
            self.in_flight -= 1
            self.answers.append(
                RecordedCall(
                    question=next((m.content for m in reversed(messages) if m.role == "user"), ""),
                    calls=tuple((call.name, call.arguments) for call in reply.tool_calls),
                    seconds=time.perf_counter() - started_at,
                    tokens=reply.input_tokens + reply.output_tokens,
                    cost=reply.cost,
                    failure=failure,
                )
            )
        return reply


def questions(answers: Sequence[RecordedCall]) -> list[list[RecordedCall]]:
    """Return the answers grouped by question, in order. Each question is a decision."""
    by_question: dict[str, list[RecordedCall]] = {}
    for answer in answers:
        by_question.setdefault(answer.question, []).append(answer)
    return list(by_question.values())


def answered_severity(answers: Sequence[RecordedCall]) -> str | None:
    """
    Return the worst severity in a judge's own answers: a severity, ``none``, or ``no answer``.

    Return None if the judge was not called. The rules are not applied.
    """
    if not answers:
        return None
    levels = [_parse_level(calls) for calls in (_list_calls(part) for part in questions(answers))]
    severities = [level for level in levels if level in LEVELS]
    return max(severities, key=LEVELS.index) if severities else SILENT


def _parse_level(calls: Sequence[tuple[str, str]]) -> str:
    tickets = [arguments for name, arguments in calls if name == EMIT]
    if not tickets:
        is_healthy = any("healthy" in arguments.lower() for name, arguments in calls if name != EMIT)
        return "none" if is_healthy else SILENT
    try:
        draft = json.loads(tickets[-1])["ticket_json"]
        level = str((json.loads(draft) if isinstance(draft, str) else draft)["severity"])
    except (ValueError, KeyError, TypeError):
        return SILENT
    return level if level in LEVELS else SILENT


def answered_triage(answers: Sequence[RecordedCall]) -> str | None:
    """
    Return a queen's own decision: ``intervene``, ``dismiss`` or ``no answer``. Return None if she was not
    called.
    """
    if not answers:
        return None
    decisions = {NOTIFY: "intervene", DISMISS: "dismiss"}
    made_decisions = [decisions[name] for name, _ in _list_calls(answers) if name in decisions]
    return made_decisions[-1] if made_decisions else SILENT


def _list_calls(answers: Sequence[RecordedCall]) -> list[tuple[str, str]]:
    return [call for answer in answers for call in answer.calls]
