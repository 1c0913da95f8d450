"""One worker's story: its stream of steps, its states, its numbers over time. No widgets here."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from queenright.tui.event_lines import Line, feed_line, work_line
from queenright.tui.values import Moment, Row, Worker

_LINES: Final = 1_000
_NUMBERS: Final = 200
_GOOD: Final = "ACCEPT"
_NEUTRAL: Final = frozenset({"CONTINUE"})


class Story:
    """
    What is known of one worker.

    Attributes:
        lines: Its stream, oldest first.
        states: When each of its states began, in seconds since the epoch, oldest first.
        bad: Bad steps since the last good one, a number a step.
        tokens: Tokens of each answer of its model.
    """

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self.lines: deque[Line] = deque(maxlen=_LINES)
        self.states: list[tuple[float, str]] = []
        self.bad: deque[int] = deque(maxlen=_NUMBERS)
        self.tokens: deque[int] = deque(maxlen=_NUMBERS)
        self._at = ""
        """The node that its stream is at."""

    def take_history(self, rows: Iterable[Row]) -> list[Line]:
        """Take over what happened before, oldest first, as ``GET …/history`` tells it; return its lines."""
        before = []
        for row in rows:
            if row["state"] and (not self.states or self.states[-1][1] != row["state"]):
                self.states.append((row["time"], row["state"]))
            event = Moment(
                type=str(row["type"]),
                time=row["time"],
                agent_id=self.agent_id,
                session_id=row["session_id"],
                data=row["data"],
            )
            if (said := feed_line(event)) is not None:
                before.append(self._own(said))
        self.lines.extendleft(reversed(before))
        return before

    def take_worker(self, worker: Worker) -> None:
        """Take over what is known of its latest steps, and of its state if nothing else is known of it."""
        if not self.bad:
            self.bad.extend(bad_steps(worker.verdicts, worker.bad_steps))
        if not self.states:
            self.states.append((worker.state_since, worker.state))

    def see(self, event: Moment) -> Line | None:
        """Take in one event; return its line, None if it has none or is another worker's."""
        if event.agent_id != self.agent_id:
            return None
        if event.type == "health_state_changed":
            self.states.append((event.time, str(event.data["to"])))
        elif event.type == "step_completed":
            last = self.bad[-1] if self.bad else 0
            self.bad.append(_next_bad(last, str(event.data.get("verdict") or ""), event.data))
        elif event.type == "llm_call_completed":
            spent = (event.data.get("input_tokens") or 0) + (event.data.get("output_tokens") or 0)
            self.tokens.append(spent)
        said = work_line(event, self._at)
        if said is not None:
            said = self._own(said)
            self._at = event.node_id or self._at
            self.lines.append(said)
        return said

    def _own(self, said: Line) -> Line:
        """Return a line without the worker's name: it is all about this one."""
        return replace(said, text=said.text.removeprefix(f"{self.agent_id}: "))


def bad_steps(verdicts: Sequence[str], now: int) -> list[int]:
    """Return how many bad steps there were since the last good one, after each verdict."""
    counts: list[int] = []
    for verdict in verdicts:
        counts.append(_next_bad(counts[-1] if counts else 0, verdict, {}))
    if counts and _GOOD not in verdicts:
        # Those before the first verdict that is known count, too.
        before = max(now - counts[-1], 0)
        counts = [count + before for count in counts]
    return counts


def _next_bad(last: int, verdict: str, data: Row) -> int:
    failed = bool(data.get("error") or data.get("error_type"))
    if verdict == _GOOD:
        return 0
    if verdict in _NEUTRAL or (not verdict and not failed):
        return last
    return last + 1
