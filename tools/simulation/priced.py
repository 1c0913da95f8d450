"""Models that attribute their calls to the tickets of a simulated fleet."""

from __future__ import annotations

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

from queenright.health.findings import WorkerKey
from queenright.health.tickets.ticket import EscalationTicket
from queenright.judge.quoting import unquote
from queenright.judge.rules_model import EMIT, RulesModel
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.llm.model import Message, ModelReply, OnText, ToolCall, ToolSpec
from queenright.runtime.nodes.own_tools import SET_OUTPUT
from tools.simulation.judged import CountingModel, JudgedFleet

_REQUEST_TAGS: Final = {"judge": "check", "triage": "ticket", "escalation": "escalation"}


class CalmJudge:
    """
    Answers like the rules, but calls a share of the medium findings healthy, always the same ones.

    Args:
        share: The share, from 0 to 1.
    """

    name = "unworried"

    def __init__(self, share: float) -> None:
        self._share = share
        self._rules = RulesModel()

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        """See ``LLMProvider``."""
        if any(tool.name == EMIT for tool in tools) and self._is_fine(_read_request("check", messages)):
            verdict = json.dumps({"health_verdict": "healthy: it means nothing"})
            return ModelReply(tool_calls=(ToolCall(f"call_{len(messages)}", SET_OUTPUT, verdict),))
        return await self._rules.complete(messages, tools, on_text)

    def _is_fine(self, check: dict[str, Any]) -> bool:
        findings = check["findings"]
        if any(finding["severity"] in ("high", "critical") for finding in findings):
            return False
        # The answer about a finding is always the same.
        key = f"{check['agent_id']} {check['session_id']} {sorted(finding['kind'] for finding in findings)}"
        return zlib.crc32(key.encode()) / 2**32 < self._share


class AttributingModel(CountingModel):
    """A counting model that attributes its calls to tickets, also those before a ticket is open."""

    def __init__(self, share: float = 0.0) -> None:
        super().__init__(CalmJudge(share))
        self.by_ticket: dict[str, Counter[str]] = {}
        self.unattributed: defaultdict[WorkerKey, Counter[str]] = defaultdict(Counter)
        """Calls about a worker without a ticket so far."""
        self._last_ticket_ids: dict[WorkerKey, str] = {}
        self.open_for: Callable[[str, str], EscalationTicket | None] = lambda agent_id, session_id: None
        """Returns a worker's open ticket; set by the fleet."""

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        """See ``LLMProvider``."""
        role = self.identify_role(tools)
        result = _read_request(_REQUEST_TAGS[role], messages)
        if role == "triage":
            self.by_ticket[result["ticket_id"]][role] += 1
        elif role == "escalation":
            key = result["agent_id"], result["session_id"]
            (
                self.by_ticket[self._last_ticket_ids[key]]
                if key in self._last_ticket_ids
                else self.unattributed[key]
            )[role] += 1
        elif (ticket := self.open_for(result["agent_id"], result["session_id"])) is not None:
            self.by_ticket.setdefault(ticket.ticket_id, Counter())[role] += 1
        else:
            self.unattributed[result["agent_id"], result["session_id"]][role] += 1
        return await super().complete(messages, tools, on_text)

    def attribute_calls(self, event: AgentEvent) -> None:
        """Attribute earlier calls about a worker to its ticket."""
        if event.type is EventType.WORKER_ESCALATION_TICKET:
            key, ticket = (event.agent_id, event.session_id), str(event.data["ticket"]["ticket_id"])
            self._last_ticket_ids[key] = ticket
            self.by_ticket.setdefault(ticket, Counter()).update(self.unattributed.pop(key, Counter()))


class PricedFleet(JudgedFleet):
    """A judged fleet that reports its tickets to the model."""

    model: AttributingModel

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.model.open_for = self.tickets.open_for

    def _record_outcome(self, event: AgentEvent) -> None:
        super()._record_outcome(event)
        self.model.attribute_calls(event)


def _read_request(tag: str, messages: Sequence[Message]) -> dict[str, Any]:
    for message in reversed(messages):
        if message.role == "user" and (data := unquote(tag, message.content)) is not None:
            return data
    raise AssertionError(f"no message holds <{tag}>")
