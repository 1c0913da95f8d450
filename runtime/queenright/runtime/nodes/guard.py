"""The guard of a running node: what sees a loop or a stall from inside, and who makes one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from queenright.runtime.events import AgentEvent
from queenright.runtime.nodes.reporting import Origin


@dataclass(frozen=True, slots=True)
class GuardFinding:
    """
    What a guard saw.

    ``evidence`` is in words for the model and the operator. Without ``stop`` it is said to the model, once
    a visit for each ``kind`` and ``level``; with it the visit is held, and ends as escalated if nobody has
    given the node anything to read after ``hold_seconds``.
    """

    kind: str
    evidence: str
    stop: bool
    level: str = ""
    """How bad it is: what has got worse is said again."""
    hold_seconds: float = 0.0

    @property
    def label(self) -> str:
        """What is said once."""
        return f"{self.kind} {self.level}" if self.level else self.kind


class Guard(Protocol):
    """Looks on while a node works; one guard a visit."""

    @property
    def hold_seconds(self) -> float:
        """For how long a visit that it stops is held; 0: it ends at once."""
        ...

    def observe(self, event: AgentEvent) -> GuardFinding | None:
        """
        Look at one event of the visit, and say what is wrong by now, if anything is.

        The events are STEP_COMPLETED, LLM_CALL_COMPLETED, TOOL_CALL_COMPLETED and CLIENT_INPUT_RECEIVED, in
        order. After a resume
        the guard is a new one and is shown what the visit had brought before, at the times at which it
        happened, so time is to be read from the events. It must be quick and must not raise.
        """
        ...

    def reset(self) -> None:
        """Forget what was seen: somebody has given the node something to read, and it gets another try."""
        ...


GuardFactory = Callable[[Origin, str], Guard]
"""Makes a guard for a visit, from whose work it is and the node's id."""
