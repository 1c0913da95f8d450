"""What comes after a turn: a pure function from where a visit stands to a verdict, a question, a judge."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from queenright.instrumentation.names import Verdict
from queenright.runtime.graphs.graph import NodeSpec
from queenright.runtime.nodes.cursor import NodeCursor
from queenright.runtime.nodes.own_tools import ASK_USER, SET_OUTPUT, missing_keys


@dataclass(frozen=True, slots=True)
class Move:
    """
    What comes next.

    ``verdict`` None: the node's judge is asked. ``question`` other than None: unless the visit ends, it
    waits for its user. ``feedback`` is said to the model, ``error`` is what the result says if that was
    the last word.
    """

    verdict: Verdict | None
    feedback: str = ""
    error: str = ""
    question: str | None = None


GO_ON: Final = Move(Verdict.CONTINUE)
ASK_JUDGE: Final = Move(None)


def assess(spec: NodeSpec, cursor: NodeCursor, *, begun_by_user: bool = True) -> Move:
    """
    Return what comes after the newest turn, all of whose calls have their answers.

    A judge is asked when the outputs are complete, when a final tool has done its work, or when the model
    answered in words where nothing else is wanted. A node with a user waits for it after a turn that asks,
    and after one that speaks and does nothing; and whatever it sets, it must have had a word with its user
    before it ends, unless an event or a timer began the run: then nobody may be there.
    """
    if any(name in spec.final_tools for name in cursor.succeeded):
        return ASK_JUDGE
    own = {SET_OUTPUT, ASK_USER} if spec.client_facing else {SET_OUTPUT}
    works = any(name not in own for name in cursor.calls)
    missing = missing_keys(spec, cursor.outputs)
    speaks = bool(cursor.text.strip())
    if cursor.asked:
        return Move(Verdict.CONTINUE, question="\n".join(cursor.asked))
    if cursor.outputs and not missing and (cursor.outputs_set or not works):
        if spec.client_facing and begun_by_user and not works and cursor.user_interaction_count == 0:
            return Move(Verdict.CONTINUE, question=cursor.text if speaks else _outputs(cursor))
        return ASK_JUDGE
    if works:
        return GO_ON
    if spec.client_facing and speaks:
        if spec.output_keys or not spec.conversation_judge or cursor.user_interaction_count == 0:
            return Move(Verdict.CONTINUE, question=cursor.text)
        return Move(None, question=cursor.text)
    if cursor.calls:
        return GO_ON  # outputs in part, or refused: the answer to the call says what is wrong
    if missing:
        wanted = ", ".join(missing)
        feedback = f"You ended your turn without setting {wanted}. Go on, and call {SET_OUTPUT} when done."
        return Move(Verdict.RETRY, feedback, error=f"ended without setting {wanted}")
    if not speaks:
        return Move(Verdict.RETRY, "Your answer was empty. Say something.", error="the answer was empty")
    return ASK_JUDGE


def _outputs(cursor: NodeCursor) -> str:
    """Return the outputs in words, for a user to whom the model has said nothing else."""
    return "\n".join(
        f"{key}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for key, value in cursor.outputs.items()
    )
