"""
The cursor of a node: the progress of a visit.

It is folded from the entries of the node's conversation, so that live and restored cursors are equal: the
state after a kill is the snapshot ``cursor.json`` plus the entries written since. Facts that are in no entry
(a verdict without feedback, an open question, a failed model call, the end) are only in the snapshot, which
is written whenever one occurs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from queenright.instrumentation.verdict import Verdict
from queenright.runtime.events import EventType
from queenright.runtime.storage.entries import Entry, EntryKind

Awaiting = Literal["input", "model", "tools", "verdict", "user", "done"]
"""What a visit waits for; ``input``: it has not started."""

GUARD_ROWS: Final = 512
_MAX_TAKEN_IDS: Final = 512

_TOOL_FACTS: Final = (
    "tool",
    "call_id",
    "turn",
    "args_hash",
    "result_hash",
    "effect",
    "outcome",
    "error_type",
    "error",
)
_MODEL_FACTS: Final = ("model", "input_tokens", "output_tokens")


class NodeCursor(BaseModel):
    """Progress of a visit."""

    model_config = ConfigDict(extra="ignore")

    visit_id: str
    seq: int = 0
    """Sequence number of the last entry that was folded in."""
    awaiting: Awaiting = "input"
    iteration: int = 0
    """Number of turns that the model has answered."""
    outputs: dict[str, Any] = Field(default_factory=dict)
    user_interaction_count: int = 0
    question: str | None = None
    """The open question to the user."""
    retries: int = 0
    verdicts: list[str] = Field(default_factory=list)
    accepted: bool = False
    result: dict[str, Any] | None = None
    """Result of the visit, once it has ended."""

    text: str = ""
    """Newest turn: the model's text."""
    calls: list[str] = Field(default_factory=list)
    """Newest turn: the tools that were called."""
    unanswered: list[str] = Field(default_factory=list)
    """Newest turn: ids of the calls without an answer."""
    succeeded: list[str] = Field(default_factory=list)
    """Newest turn: the tools that succeeded."""
    outputs_set: bool = False
    """Newest turn: whether it set an output."""
    asked: list[str] = Field(default_factory=list)
    """Newest turn: its questions to the user."""

    guard: list[dict[str, Any]] = Field(default_factory=list)
    """The newest events shown to the guard: type, time and data."""
    noted: int = 0
    """Total number of events shown to the guard."""
    warned: list[str] = Field(default_factory=list)
    """Kinds of guard findings that the model was warned of."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    tool_calls: int = 0
    taken: list[str] = Field(default_factory=list)
    """Ids of the newest inputs already in the conversation, so that none is added twice."""

    def fold(self, entry: Entry) -> None:
        """Apply one entry. An entry of another visit only advances ``seq`` and ``taken``."""
        self.seq = max(self.seq, entry.seq)
        input_id = entry.data.get("inbox")
        if isinstance(input_id, str) and input_id not in self.taken:
            self.taken.append(input_id)
            del self.taken[:-_MAX_TAKEN_IDS]
        if entry.visit_id != self.visit_id:
            return
        if self.awaiting == "input":
            self.awaiting = "model"
        if entry.kind is EntryKind.ASSISTANT:
            self._apply_model_reply(entry)
        elif entry.kind is EntryKind.TOOL:
            self._apply_tool_result(entry)
        elif entry.kind is EntryKind.USER:
            self.user_interaction_count += 1
            self.question = None
            self.awaiting = "model"
            self._add_guard_event(EventType.CLIENT_INPUT_RECEIVED, entry.at, {})
        elif entry.kind is EntryKind.FEEDBACK:
            self._apply_feedback(entry)

    def record_verdict(self, verdict: Verdict, text: str, at: float) -> None:
        """Record the verdict on the newest turn, and its feedback."""
        self.verdicts.append(verdict.value)
        self.retries += verdict is Verdict.RETRY
        self.awaiting = "model"
        data = {"index": self.iteration, "verdict": verdict.value, "text": text}
        self._add_guard_event(EventType.STEP_COMPLETED, at, data)

    def record_model_failure(self, facts: Mapping[str, Any], at: float) -> None:
        """Record a model call that gave no reply."""
        self._add_guard_event(EventType.LLM_CALL_COMPLETED, at, dict(facts))

    def _apply_model_reply(self, entry: Entry) -> None:
        data = entry.data
        self.iteration += 1
        self.text = entry.message.content
        self.calls = [call.name for call in entry.message.tool_calls]
        self.unanswered = [call.id for call in entry.message.tool_calls]
        self.outputs_set, self.asked, self.succeeded = False, [], []
        self.awaiting = "tools" if self.unanswered else "verdict"
        self.input_tokens += int(data.get("input_tokens") or 0)
        self.output_tokens += int(data.get("output_tokens") or 0)
        self.cost += float(data.get("cost") or 0.0)
        facts = {key: data[key] for key in _MODEL_FACTS if data.get(key) is not None}
        self._add_guard_event(EventType.LLM_CALL_COMPLETED, _get_end_time(entry), facts)

    def _apply_tool_result(self, entry: Entry) -> None:
        data = entry.data
        self.tool_calls += 1
        if entry.message.tool_call_id in self.unanswered:
            self.unanswered.remove(entry.message.tool_call_id)
        if data.get("outcome") == "ok":
            self.succeeded.append(str(data.get("tool")))
        if self.awaiting == "tools" and not self.unanswered:
            self.awaiting = "verdict"
        if isinstance(outputs := data.get("outputs"), Mapping):
            self.outputs.update(outputs)
            self.outputs_set = True
        if isinstance(question := data.get("question"), str):
            self.asked.append(question)
        facts = {key: data[key] for key in _TOOL_FACTS if data.get(key) is not None}
        self._add_guard_event(EventType.TOOL_CALL_COMPLETED, _get_end_time(entry), facts)

    def _apply_feedback(self, entry: Entry) -> None:
        source = entry.data.get("source")
        if source == "judge":
            self.record_verdict(Verdict(str(entry.data.get("verdict"))), entry.message.content, entry.at)
        elif source == "guard":
            self.warned.append(str(entry.data.get("finding")))

    def _add_guard_event(self, type_: EventType, at: float, data: dict[str, Any]) -> None:
        self.guard.append({"type": type_.value, "time": at, "data": data})
        del self.guard[:-GUARD_ROWS]
        self.noted += 1


def _get_end_time(entry: Entry) -> float:
    """Return the end time of the event in an entry."""
    at = entry.data.get("ended_at")
    return float(at) if isinstance(at, int | float) else entry.at
