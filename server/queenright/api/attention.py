"""What needs a person now."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from queenright.api.base_model import ApiModel, KnownValues
from queenright.api.terms import Severity

AttentionKind = Annotated[
    str, KnownValues("permission", "question", "approval", "escalation", "ticket", "incident")
]


class AttentionItem(ApiModel):
    """An item that needs a person. Times are in seconds since the epoch."""

    item_id: str = Field(
        description="The id of the permission request, approval, escalation, ticket or incident; for a "
        "question, `agent_id/session_id`."
    )
    kind: AttentionKind = Field(
        description="`permission`: a coding agent asks to use a tool. `question`: a worker asks its user. "
        "`approval`: the queen asks to terminate a worker. `escalation`: an operator has to decide about a "
        "worker. `ticket`: a high or critical ticket that nobody has acknowledged; not listed while "
        "an approval or escalation about it is listed. `incident`: several workers share a cause; listed "
        "instead of their tickets until all are acknowledged."
    )
    severity: Severity | None = Field(description="Null if it has no severity.")
    agent_id: str = Field(description="Empty for an incident.")
    agents: list[str] = Field(
        description="The agent's name; for an incident, the names of its agents, at most 20."
    )
    agents_more: int = Field(description="Number of further agents of an incident.")
    session_id: str
    incarnation_id: str
    title: str
    text: str = Field(description="Details; may be empty.")
    since: float
    deadline: float | None = Field(description="Time until which an answer is accepted; null: no limit.")
    ticket_id: str = Field(description="Its ticket; empty if there is none.")
    tool: str = Field(description="The tool of a permission request; empty otherwise.")
    options: list[str] = Field(description="Possible decisions.")
    workers: int = Field(description="Number of workers concerned.")
    can_answer: bool = Field(
        description="For a question: whether the service can deliver an answer, by "
        "`POST /api/agents/{agent_id}/inject`. It can if the agent runs in the service."
    )
    node_id: str = Field(description="The node that asks the question; empty without one.")
    question_id: str = Field(description="The question that an answer refers to; empty without `node_id`.")


class AttentionList(ApiModel):
    """What needs a person now, most urgent first."""

    items: list[AttentionItem] = Field(description="At most 200.")
    total: int = Field(description="Number of all items, including those that are not listed.")
