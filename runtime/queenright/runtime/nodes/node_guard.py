"""Protocol of the guard of a running node, which detects loops and stalls from inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from queenright.runtime.events import AgentEvent
from queenright.runtime.nodes.reporting import Origin


@dataclass(frozen=True, slots=True)
class GuardFinding:
    """
    A finding of a guard.

    ``evidence`` is text for the model and the operator. Without ``stop``, the model is warned once per
    visit for each ``kind`` and ``level``. With it, the visit is held, and escalated if the node receives
    no input within ``hold_seconds``.
    """

    kind: str
    evidence: str
    stop: bool
    level: str = ""
    """Severity; the model is warned again when it rises."""
    hold_seconds: float = 0.0

    @property
    def label(self) -> str:
        """Identifies the warning, which is given once."""
        return f"{self.kind} {self.level}" if self.level else self.kind


class Guard(Protocol):
    """Observes a working node; one guard per visit."""

    @property
    def hold_seconds(self) -> float:
        """Seconds for which a stopped visit is held; 0 ends it at once."""
        ...

    def observe(self, event: AgentEvent) -> GuardFinding | None:
        """
        Observe one event of the visit, and return a finding if something is wrong.

        The events are STEP_COMPLETED, LLM_CALL_COMPLETED, TOOL_CALL_COMPLETED and CLIENT_INPUT_RECEIVED, in
        order. After a resume, a new guard is shown the earlier events of the visit with their original times,
        so read time from the events. Must be fast and must not raise.
        """
        ...

    def reset(self) -> None:
        """Forget earlier events: the node received something to read and gets another try."""
        ...


GuardFactory = Callable[[Origin, str], Guard]
"""Creates the guard of a visit from the run's origin and the node's id."""
