"""Items that need a person, and the possible answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from queenright.api.attention import AttentionItem
from queenright.instrumentation.counts import format_names


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: its key, label, confirmation question and effect."""

    key: str
    label: str
    question: str
    effect: str = ""


ANSWERS: Final = {
    "allow": Answer("a", "Allow", "Allow {tool} for {agent}?", "The agent runs the tool."),
    "deny": Answer("d", "Deny", "Deny it for {agent}?", "The agent continues without it."),
    "approve": Answer(
        "t", "Approve termination", "Terminate {agent}?", "The worker saves its state and stops."
    ),
    "more_time": Answer("m", "More time", "Give {agent} more time?", "It keeps running."),
    "hand_off": Answer(
        "h", "Hand off", "Have {agent} hand off?", "It saves its state; another agent continues."
    ),
    "terminate": Answer("t", "Terminate", "Terminate {agent}?", "The worker saves its state and stops."),
    "acknowledge": Answer("a", "Acknowledge", "Acknowledge the ticket on {agent}?", "Reminders stop."),
    "acknowledge_all": Answer(
        "a", "Acknowledge all", "Acknowledge all tickets on {agent}?", "Reminders stop."
    ),
    "reply": Answer("r", "Reply", "Reply to {agent}"),
}
"""All answers by name."""


def format_item_label(item: AttentionItem) -> str:
    """Return the label of an item's kind."""
    return "decision" if item.kind == "escalation" else item.kind


def format_item_agents(item: AttentionItem) -> str:
    """Return the name of an item's agent, or the first names of several."""
    return format_names(item.agents, item.agents_more)


def list_answers(item: AttentionItem) -> tuple[str, ...]:
    """Return the names of an item's possible answers."""
    if item.kind == "question":
        return ("reply",) if item.can_answer else ()
    if item.kind == "incident":
        return ("acknowledge_all",) if "acknowledge" in item.options else ()
    if item.kind == "ticket":
        return tuple(action for action in ("acknowledge", "terminate") if action in item.options)
    return tuple(option for option in item.options if option in ANSWERS)
