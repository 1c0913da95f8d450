"""Which calls of the model each ticket of a simulated fleet took; and models to count them of."""

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
from tools.simulation.judged import Counting, JudgedFleet

_ASKED_ABOUT: Final = {"judge": "check", "triage": "ticket", "escalation": "escalation"}


class CalmJudge:
    """
    Answers as the rules do, and calls a share of the medium findings healthy: the same ones each time.

    Args:
        share: How many of them, from 0 to 1.
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
        # Of one opinion about a finding, however often it is asked.
        what = f"{check['agent_id']} {check['session_id']} {sorted(finding['kind'] for finding in findings)}"
        return zlib.crc32(what.encode()) / 2**32 < self._share


class Attributing(Counting):
    """A counting model that remembers about whom it was asked, until it is known for which ticket."""

    def __init__(self, share: float = 0.0) -> None:
        super().__init__(CalmJudge(share))
        self.by_ticket: dict[str, Counter[str]] = {}
        self.waiting: defaultdict[WorkerKey, Counter[str]] = defaultdict(Counter)
        """Calls about a worker that came to no ticket until now."""
        self._last: dict[WorkerKey, str] = {}
        self.open_for: Callable[[str, str], EscalationTicket | None] = lambda agent_id, session_id: None
        """Returns a worker's open ticket; the fleet says how."""

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        """See ``LLMProvider``."""
        desk = self.desk(tools)
        result = _read_request(_ASKED_ABOUT[desk], messages)
        if desk == "triage":
            self.by_ticket[result["ticket_id"]][desk] += 1
        elif desk == "escalation":
            key = result["agent_id"], result["session_id"]
            (self.by_ticket[self._last[key]] if key in self._last else self.waiting[key])[desk] += 1
        elif (ticket := self.open_for(result["agent_id"], result["session_id"])) is not None:
            self.by_ticket.setdefault(ticket.ticket_id, Counter())[desk] += 1
        else:
            self.waiting[result["agent_id"], result["session_id"]][desk] += 1
        return await super().complete(messages, tools, on_text)

    def heard(self, event: AgentEvent) -> None:
        """Learn of a ticket: what was asked about its worker before was asked for it."""
        if event.type is EventType.WORKER_ESCALATION_TICKET:
            key, ticket = (event.agent_id, event.session_id), str(event.data["ticket"]["ticket_id"])
            self._last[key] = ticket
            self.by_ticket.setdefault(ticket, Counter()).update(self.waiting.pop(key, Counter()))


class PricedFleet(JudgedFleet):
    """A judged fleet that tells its model of tickets."""

    model: Attributing

    def __init__(self, *more: Any, **options: Any) -> None:
        super().__init__(*more, **options)
        self.model.open_for = self.tickets.open_for

    def _note(self, event: AgentEvent) -> None:
        super()._note(event)
        self.model.heard(event)


def _read_request(tag: str, messages: Sequence[Message]) -> dict[str, Any]:
    for message in reversed(messages):
        if message.role == "user" and (data := unquote(tag, message.content)) is not None:
            return data
    raise AssertionError(f"no message holds <{tag}>")
