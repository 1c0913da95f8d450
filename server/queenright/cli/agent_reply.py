"""What a loaded agent answers to something that was said to it: waited for on the event stream, then read."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from queenright.api.loaded import Injected, Started
from queenright.instrumentation.errors import QueenrightError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queenright.api.events import Event
    from queenright.client import Queenright

_BEGINS: Final = frozenset({"execution_started", "execution_resumed", "client_input_received"})
_ENDS: Final = frozenset(
    {"client_input_requested", "execution_completed", "execution_failed", "execution_paused"}
)
_ROWS: Final = 200
"""Messages of a session that are looked at, the newest."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What an agent said, and how it went on."""

    text: str
    ended: str
    """The event that the reply ended with."""

    @property
    def failed(self) -> bool:
        """Whether there is no answer, as the run failed."""
        return self.ended == "execution_failed"


class NoReplyError(QueenrightError):
    """Raised when an agent has not answered in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer within {seconds:g} s; the agent goes on: see queenright agents sessions")


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """
    Interrupt what the main thread does after so many seconds; None is no limit.

    Raises:
        NoReplyError: The time was up.
    """
    if seconds is None:
        yield
        return

    def end(number: int, frame: object) -> None:
        raise NoReplyError(seconds)

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def newest_event(service: Queenright) -> str | None:
    """Return the id of the newest event in the log; None if that is empty."""
    return next((event.id for event in service.audit.list(limit=1)), None)


def wait_for_reply(service: Queenright, agent_id: str, done: Started | Injected, after: str | None) -> Reply:
    """
    Wait until an agent has answered, and return what it said.

    Args:
        service: Its client.
        agent_id: The agent.
        done: What became of what was said to it.
        after: The newest event before that; None if the log was empty.
    """
    since = 0.0
    if after is None:  # by now it is not: what somebody does with an agent is in it
        after = [event.id for event in service.audit.list()][-1]
    with service.events.stream(types=_BEGINS | _ENDS, agent=agent_id, last_event_id=after) as stream:
        for event in stream:
            if not _is_of(event, done):
                continue
            if event.type in _BEGINS and not since:
                since = datetime.fromisoformat(event.time).timestamp()
            # Of a run the beginning may be the first event of the log; what was injected ends after it came.
            if event.type in _ENDS and (since or isinstance(done, Started)):
                said = list(_said(service, agent_id, done.graph_id, event.session_id, since))
                said += _last_words(service, agent_id, event, said)
                return Reply("\n".join(said), event.type)
    return Reply("", "")


def _is_of(event: Event, done: Started | Injected) -> bool:
    if isinstance(done, Started):
        return event.execution_id == done.execution_id
    return (event.session_id, event.graph_id) == (done.session_id, done.graph_id)


def _said(service: Queenright, agent_id: str, graph_id: str, session_id: str, since: float) -> Iterator[str]:
    for row in service.agents.messages(agent_id, session_id, graph_id=graph_id, limit=_ROWS):
        # Times of events have milliseconds.
        if row.role == "assistant" and row.text.strip() and row.at >= since - 0.001:
            yield row.text


def _last_words(service: Queenright, agent_id: str, event: Event, said: list[str]) -> list[str]:
    """Return what the end of a reply adds to it: a question, what the run put out, or why it failed."""
    if event.type == "client_input_requested":
        question = str(event.data.get("question") or "")
        return [] if question in "\n".join(said) else [question]
    if event.type == "execution_failed":
        return [f"The run failed: {event.data.get('error') or event.data.get('error_type')}"]
    if event.type == "execution_paused":
        return [f"The run was paused; go on with: queenright agents resume {agent_id} {event.session_id}"]
    outputs = service.agents.execution(agent_id, event.execution_id).outputs
    return [] if said else [f"{name}: {value}" for name, value in outputs.items()]
