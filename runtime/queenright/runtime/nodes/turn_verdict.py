"""Decides what follows a turn: a verdict, a question to the user, or the judge. A pure function."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from queenright.instrumentation.verdict import Verdict
from queenright.runtime.graphs.graph import NodeSpec
from queenright.runtime.nodes.cursor import NodeCursor
from queenright.runtime.nodes.own_tools import ASK_USER, SET_OUTPUT, find_missing_output_keys


@dataclass(frozen=True, slots=True)
class NextAction:
    """
    What follows a turn.

    If ``verdict`` is None, the node's judge decides. If ``question`` is set and the visit does not end, it
    waits for its user. ``feedback`` is for the model; ``error`` is the error of the result if the visit
    ends here.
    """

    verdict: Verdict | None
    feedback: str = ""
    error: str = ""
    question: str | None = None


CONTINUE_TURN: Final = NextAction(Verdict.CONTINUE)
ASK_JUDGE: Final = NextAction(None)


def assess_turn(spec: NodeSpec, cursor: NodeCursor, *, started_by_user: bool = True) -> NextAction:
    """
    Decide what follows the newest turn, all of whose calls have been answered.

    The judge decides when the outputs are complete, when a final tool has succeeded, or when the model
    answered in words and nothing else is required. A client-facing node waits for its user after a turn
    with a question, and after one that only answers in text. It must have received a message from its user
    before it ends, unless an event or a timer started the run: then no user may be there, and it waits only
    if outputs are missing.
    """
    has_user = started_by_user or cursor.user_interaction_count > 0
    if any(name in spec.final_tools for name in cursor.succeeded):
        return ASK_JUDGE
    builtin = {SET_OUTPUT, ASK_USER} if spec.client_facing else {SET_OUTPUT}
    uses_tools = any(name not in builtin for name in cursor.calls)
    missing = find_missing_output_keys(spec, cursor.outputs)
    has_text = bool(cursor.text.strip())
    if cursor.asked:
        return NextAction(Verdict.CONTINUE, question="\n".join(cursor.asked))
    if cursor.outputs and not missing and (cursor.outputs_set or not uses_tools):
        if spec.client_facing and started_by_user and not uses_tools and cursor.user_interaction_count == 0:
            return NextAction(Verdict.CONTINUE, question=cursor.text if has_text else _format_outputs(cursor))
        return ASK_JUDGE
    if uses_tools:
        return CONTINUE_TURN
    if spec.client_facing and has_text and (has_user or missing):
        if spec.output_keys or not spec.conversation_judge or cursor.user_interaction_count == 0:
            return NextAction(Verdict.CONTINUE, question=cursor.text)
        return NextAction(None, question=cursor.text)
    if cursor.calls:
        return CONTINUE_TURN  # some outputs, or rejected ones: the answer to the call says what is wrong
    if missing:
        keys = ", ".join(missing)
        feedback = f"You ended your turn without setting {keys}. Go on, and call {SET_OUTPUT} when done."
        return NextAction(Verdict.RETRY, feedback, error=f"ended without setting {keys}")
    if not has_text:
        return NextAction(
            Verdict.RETRY, "Your answer was empty. Say something.", error="the answer was empty"
        )
    return ASK_JUDGE


def _format_outputs(cursor: NodeCursor) -> str:
    """Format the outputs for the user if the model wrote no text."""
    return "\n".join(
        f"{key}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for key, value in cursor.outputs.items()
    )
