"""
The cursor of a node: what it remembers between two awaits.

It is a fold over the entries of the node's conversation, so that it is the same read from the disk as live:
the state after a kill is ``cursor.json``, a snapshot, and the entries written since. What no entry carries
(a verdict without words, a question that waits, a failed call of the model, the end) is in the snapshot,
which is written whenever such a thing happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from queenright.instrumentation.names import Verdict
from queenright.runtime.events import EventType
from queenright.runtime.storage.entries import Entry, EntryKind

Awaiting = Literal["input", "model", "tools", "verdict", "user", "done"]
"""What a visit waits for; ``input``: it has not begun."""

GUARD_ROWS: Final = 512
_TAKEN: Final = 512

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
    """Where a visit stands."""

    model_config = ConfigDict(extra="ignore")

    visit_id: str
    seq: int = 0
    """The entry that was folded in last."""
    awaiting: Awaiting = "input"
    iteration: int = 0
    """Turns that the model has answered."""
    outputs: dict[str, Any] = Field(default_factory=dict)
    user_interaction_count: int = 0
    question: str | None = None
    """What the user was asked and has not answered."""
    retries: int = 0
    verdicts: list[str] = Field(default_factory=list)
    accepted: bool = False
    result: dict[str, Any] | None = None
    """How the visit ended, if it did."""

    text: str = ""
    """Of the newest turn: what the model said."""
    calls: list[str] = Field(default_factory=list)
    """Of the newest turn: the tools that were called."""
    unanswered: list[str] = Field(default_factory=list)
    """Of the newest turn: ids of the calls that have no answer yet."""
    succeeded: list[str] = Field(default_factory=list)
    """Of the newest turn: the tools that did what they were asked."""
    outputs_set: bool = False
    """Of the newest turn: whether it set an output."""
    asked: list[str] = Field(default_factory=list)
    """Of the newest turn: what it asked the user."""

    guard: list[dict[str, Any]] = Field(default_factory=list)
    """What the guard was shown, the newest of it: type, time and data of events."""
    noted: int = 0
    """How much the guard was shown in all."""
    warned: list[str] = Field(default_factory=list)
    """Kinds of the guard's findings that the model was told of."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    tool_calls: int = 0
    taken: list[str] = Field(default_factory=list)
    """Ids of the newest inputs that are in the conversation, so that none is taken in twice."""

    @classmethod
    def from_dict(cls, row: object) -> NodeCursor:
        """
        Read what ``to_dict`` wrote.

        Raises:
            ValueError: ``row`` is no cursor.
        """
        return cls.model_validate(row)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return self.model_dump()

    def fold(self, entry: Entry) -> None:
        """Take in one entry; those of other visits move the cursor on, and nothing else."""
        self.seq = max(self.seq, entry.seq)
        taken = entry.data.get("inbox")
        if isinstance(taken, str) and taken not in self.taken:
            self.taken.append(taken)
            del self.taken[:-_TAKEN]
        if entry.visit_id != self.visit_id:
            return
        if self.awaiting == "input":
            self.awaiting = "model"
        if entry.kind is EntryKind.ASSISTANT:
            self._answered_by_model(entry)
        elif entry.kind is EntryKind.TOOL:
            self._answered_by_tool(entry)
        elif entry.kind is EntryKind.USER:
            self.user_interaction_count += 1
            self.question = None
            self.awaiting = "model"
            self._note(EventType.CLIENT_INPUT_RECEIVED, entry.at, {})
        elif entry.kind is EntryKind.FEEDBACK:
            self._told(entry)

    def judged(self, verdict: Verdict, text: str, at: float) -> None:
        """Note the verdict on the newest turn, and the words that came with it."""
        self.verdicts.append(verdict.value)
        self.retries += verdict is Verdict.RETRY
        self.awaiting = "model"
        data = {"index": self.iteration, "verdict": verdict.value, "text": text}
        self._note(EventType.STEP_COMPLETED, at, data)

    def model_failed(self, facts: Mapping[str, Any], at: float) -> None:
        """Note a call of the model that brought no answer."""
        self._note(EventType.LLM_CALL_COMPLETED, at, dict(facts))

    def _answered_by_model(self, entry: Entry) -> None:
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
        self._note(EventType.LLM_CALL_COMPLETED, _time(entry), facts)

    def _answered_by_tool(self, entry: Entry) -> None:
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
        self._note(EventType.TOOL_CALL_COMPLETED, _time(entry), facts)

    def _told(self, entry: Entry) -> None:
        source = entry.data.get("source")
        if source == "judge":
            self.judged(Verdict(str(entry.data.get("verdict"))), entry.message.content, entry.at)
        elif source == "guard":
            self.warned.append(str(entry.data.get("finding")))

    def _note(self, type_: EventType, at: float, data: dict[str, Any]) -> None:
        self.guard.append({"type": type_.value, "time": at, "data": data})
        del self.guard[:-GUARD_ROWS]
        self.noted += 1


def _time(entry: Entry) -> float:
    """Return when what the entry tells of ended."""
    at = entry.data.get("ended_at")
    return float(at) if isinstance(at, int | float) else entry.at
