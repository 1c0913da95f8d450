"""History of one worker, without widgets: its states, and numbers over time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from queenright.api.agents import AgentRow, HistoryRow
from queenright.api.events import Event
from queenright.tui.models import Row

_NUMBERS: Final = 200
_GOOD: Final = "ACCEPT"
_NEUTRAL: Final = frozenset({"CONTINUE"})


class WorkerHistory:
    """
    History of one worker.

    Attributes:
        states: Start time of each state, in seconds since the epoch, oldest first.
        bad_steps: Consecutive bad steps after each step.
        tokens: Tokens of each model call.
    """

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self.states: list[tuple[float, str]] = []
        self.bad_steps: deque[int] = deque(maxlen=_NUMBERS)
        self.tokens: deque[int] = deque(maxlen=_NUMBERS)

    def load_history(self, rows: Iterable[HistoryRow]) -> None:
        """Insert earlier states, oldest first."""
        for row in rows:
            if row.state and (not self.states or self.states[-1][1] != row.state):
                self.states.append((row.time, row.state))

    def load_worker(self, worker: AgentRow) -> None:
        """Fill in bad steps and state from the list of workers, where events have given none."""
        if not self.bad_steps:
            self.bad_steps.extend(count_bad_steps(worker.verdicts, worker.bad_steps))
        if not self.states:
            self.states.append((worker.state_since, worker.state))

    def handle_event(self, event: Event) -> bool:
        """Add an event; return whether it is from this worker."""
        if event.agent_id != self.agent_id:
            return False
        if event.type == "health_state_changed":
            self.states.append((event.time, str(event.data["to"])))
        elif event.type == "step_completed":
            last = self.bad_steps[-1] if self.bad_steps else 0
            self.bad_steps.append(_next_bad(last, str(event.data.get("verdict") or ""), event.data))
        elif event.type == "llm_call_completed":
            tokens = (event.data.get("input_tokens") or 0) + (event.data.get("output_tokens") or 0)
            self.tokens.append(tokens)
        return True


def count_bad_steps(verdicts: Sequence[str], now: int) -> list[int]:
    """Return the consecutive bad steps after each verdict."""
    counts: list[int] = []
    for verdict in verdicts:
        counts.append(_next_bad(counts[-1] if counts else 0, verdict, {}))
    if counts and _GOOD not in verdicts:
        # Count the steps before the first known verdict.
        earlier = max(now - counts[-1], 0)
        counts = [count + earlier for count in counts]
    return counts


def _next_bad(last: int, verdict: str, data: Row) -> int:
    failed = bool(data.get("error") or data.get("error_type"))
    if verdict == _GOOD:
        return 0
    if verdict in _NEUTRAL or (not verdict and not failed):
        return last
    return last + 1
