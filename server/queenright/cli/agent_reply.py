"""The reply of a loaded agent to a message: wait for it on the event stream, then read it."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from queenright.api.loaded_agents import Injected, Started
from queenright.instrumentation.errors import QueenrightError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queenright.api.events import Event
    from queenright.client import Queenright

_START_TYPES: Final = frozenset({"execution_started", "execution_resumed", "client_input_received"})
_END_TYPES: Final = frozenset(
    {"client_input_requested", "execution_completed", "execution_failed", "execution_paused"}
)
_MAX_MESSAGES: Final = 200
"""How many of a session's newest messages are searched for the reply."""


@dataclass(frozen=True, slots=True)
class AgentReply:
    """The reply of an agent."""

    text: str
    end_type: str
    """Type of the event that ended the reply."""

    @property
    def has_failed(self) -> bool:
        """Whether the run failed."""
        return self.end_type == "execution_failed"


class NoReplyError(QueenrightError):
    """Raised when an agent has not replied in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"no reply within {seconds:g} s; the agent keeps running, see queenright agents sessions"
        )


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """
    Interrupt the main thread after ``seconds``; None sets no limit.

    Raises:
        NoReplyError: The time has passed.
    """
    if seconds is None:
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise NoReplyError(seconds)

    previous_handler = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)


def get_newest_event_id(service: Queenright) -> str | None:
    """Return the id of the newest event in the log; None if the log is empty."""
    return next((event.id for event in service.audit.list(limit=1)), None)


def wait_for_reply(
    service: Queenright, agent_id: str, run: Started | Injected, after: str | None
) -> AgentReply:
    """
    Wait until an agent has replied, and return the reply.

    Args:
        service: Client of the service.
        agent_id: The agent.
        run: The service's answer to the message.
        after: The newest event before the message; None if the log was empty.
    """
    start_time = 0.0
    if after is None:  # the message itself has added events to the log
        after = [event.id for event in service.audit.list()][-1]
    types = _START_TYPES | _END_TYPES
    with service.events.stream(types=types, agent_id=agent_id, last_event_id=after) as stream:
        for event in stream:
            if not _belongs_to(event, run):
                continue
            if event.type in _START_TYPES and not start_time:
                start_time = event.time
            # If the log was empty, the stream begins after the first event, which may be the start of this
            # run. An injected message is always followed by its own start event.
            if event.type in _END_TYPES and (start_time or isinstance(run, Started)):
                texts = list(
                    _read_assistant_texts(service, agent_id, run.graph_id, event.session_id, start_time)
                )
                texts += _read_closing_texts(service, agent_id, event, texts)
                return AgentReply("\n".join(texts), event.type)
    return AgentReply("", "")


def _belongs_to(event: Event, run: Started | Injected) -> bool:
    if isinstance(run, Started):
        return event.execution_id == run.execution_id
    return (event.session_id, event.graph_id) == (run.session_id, run.graph_id)


def _read_assistant_texts(
    service: Queenright, agent_id: str, graph_id: str, session_id: str, since: float
) -> Iterator[str]:
    for row in service.agents.messages(agent_id, session_id, graph_id=graph_id, limit=_MAX_MESSAGES):
        if row.role == "assistant" and row.text.strip() and row.at >= since:
            yield row.text


def _read_closing_texts(service: Queenright, agent_id: str, event: Event, texts: list[str]) -> list[str]:
    """Return the texts that follow the agent's messages: a question, the outputs of the run, or its error."""
    if event.type == "client_input_requested":
        question = str(event.data.get("question") or "")
        return [] if question in "\n".join(texts) else [question]
    if event.type == "execution_failed":
        return [f"The run failed: {event.data.get('error') or event.data.get('error_type')}"]
    if event.type == "execution_paused":
        return [f"The run was paused. Resume it: queenright agents resume {agent_id} {event.session_id}"]
    outputs = service.agents.execution(agent_id, event.execution_id).outputs
    return [] if texts else [f"{name}: {value}" for name, value in outputs.items()]
