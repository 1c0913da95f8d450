"""The event-loop node: ask the model, do what it asks for, tell it what came of it, until it is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

from queenright.runtime.conversation import Conversation
from queenright.runtime.deadline import Sleep
from queenright.runtime.events import Clock
from queenright.runtime.files import Disk
from queenright.runtime.graph import NodeSpec
from queenright.runtime.guard import Guard
from queenright.runtime.model import LLMProvider
from queenright.runtime.node_judge import NodeJudge
from queenright.runtime.reporting import Reporter
from queenright.runtime.tools import ToolRegistry

SET_OUTPUT: Final = "set_output"
ASK_USER: Final = "ask_user"

Outcome = Literal["done", "no_answer", "incomplete", "escalated", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    """How a visit of a node ended."""

    outcome: Outcome
    outputs: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    turns: int = 0
    error: str = ""
    error_type: str = ""
    verdicts: tuple[str, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    tool_calls: int = 0


class EventLoopNode:
    """One node, ready to be visited."""

    def __init__(
        self,
        spec: NodeSpec,
        *,
        model: LLMProvider,
        tools: ToolRegistry,
        conversation: Conversation,
        folder: Path,
        reporter: Reporter,
        disk: Disk,
        clock: Clock,
        sleep: Sleep,
        monotonic: Clock,
        judge: NodeJudge,
        guard: Guard | None,
        context: Mapping[str, object],
        random: Random,
        fresh: bool,
    ) -> None: ...

    async def run(self, visit_id: str, message: str) -> NodeResult:
        """Begin the visit, or take it up where it stands."""
        raise NotImplementedError

    async def inject(self, content: str) -> None:
        """Give the node input from its user; durable on return."""
        raise NotImplementedError

    @property
    def waiting_for_user(self) -> bool:
        """Whether the node waits for input."""
        raise NotImplementedError

    @property
    def question(self) -> str | None:
        """What it asked, while it waits."""
        raise NotImplementedError
