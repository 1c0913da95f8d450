"""The scenarios that every client runs: the model's turns, and the end of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HANG_SECONDS: Final = 20.0
"""Seconds for which a tool hangs, or a question waits, before the client is ended."""
ANSWERED_SECONDS: Final = 10.0
"""Seconds until a person answers a client."""
KILLED_SECONDS: Final = 8.0
"""Seconds after which the client is killed inside a tool call, when some of its telemetry has been sent."""
FAILED_SECONDS: Final = 300.0
"""Seconds for which a client may retry a failing provider; Gemini CLI gives up after more than 250."""
LOOP_CALLS: Final = 8
MODEL_SECONDS: Final = 0.2
"""Seconds until the scripted model answers."""

PROMPT: Final = "Say how many lines notes.txt has."
NOTES: Final = "one\ntwo\nthree\n"
MCP_SERVER: Final = "tickets"
HANG_SCRIPT: Final = "wait.py"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the client's shell tool."""

    command: str
    is_escalated: bool = False
    """Whether the model asks to run it without a sandbox, if the client has one."""


@dataclass(frozen=True, slots=True)
class Delegate:
    """A task that the model hands to a sub-agent with its own script, and waits for."""

    task: str
    turns: tuple[Call | Say, ...]


@dataclass(frozen=True, slots=True)
class Say:
    """An answer with text, which ends the turn."""

    text: str


@dataclass(frozen=True, slots=True)
class Fail:
    """An error of the provider for every request."""

    status: int


Turn = Call | Delegate | Say | Fail


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A situation for a client."""

    name: str
    description: str
    turns: tuple[Turn, ...]
    ends_after: float | None = None
    """Seconds from the last tool call or first failure until the client is ended; None: it ends by itself."""
    may_end: bool = False
    """Whether the client may exit before ``ends_after``."""
    is_killed: bool = False
    """Whether to end the client with SIGKILL instead of SIGTERM."""
    asks_permission: bool = False
    """Whether the client runs in a terminal, and asks for permission before the tool runs."""
    answered_after: float | None = None
    """Seconds until a person allows the tool call; None: nobody answers."""
    has_missing_mcp: bool = False
    """Whether an MCP server in the client's settings is missing."""
    copies: int = 1


_READ: Final = Call("cat notes.txt")
_HANG: Final = Call(f"python3 {HANG_SCRIPT}")
_DONE: Final = Say("notes.txt has 3 lines.")
_HEALTHY: Final = (_READ, Call("ls missing.txt"), Call("wc -l notes.txt"), _DONE)

SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="healthy", description="three tool calls, one of which fails; then an answer", turns=_HEALTHY
        ),
        Scenario(
            name="loop",
            description=f"the same call with the same result, {LOOP_CALLS} times; then an answer",
            turns=(*[_READ] * LOOP_CALLS, _DONE),
        ),
        Scenario(
            name="hang_first",
            description="the first tool call hangs",
            turns=(_HANG, _DONE),
            ends_after=HANG_SECONDS,
        ),
        Scenario(
            name="hang_later",
            description="the third tool call hangs",
            turns=(_READ, Call("wc -l notes.txt"), _HANG, _DONE),
            ends_after=HANG_SECONDS,
        ),
        Scenario(
            name="permission",
            description="the client asks for permission, and nobody answers",
            turns=(Call("touch new.txt", is_escalated=True), _DONE),
            ends_after=HANG_SECONDS,
            asks_permission=True,
        ),
        Scenario(
            name="permission_granted",
            description="a person allows the tool call, reads the answer and does nothing more",
            turns=(Call("touch new.txt", is_escalated=True), _DONE),
            ends_after=HANG_SECONDS,
            asks_permission=True,
            answered_after=ANSWERED_SECONDS,
        ),
        Scenario(
            name="subagent",
            description="a sub-agent runs one tool call; then one of the agent's own, and an answer",
            turns=(
                Delegate("Count the lines.", (Call("wc -l notes.txt"), Say("3 lines."))),
                _READ,
                _DONE,
            ),
        ),
        Scenario(
            name="mcp_missing",
            description="an MCP server that is configured cannot be started; otherwise healthy",
            turns=_HEALTHY,
            has_missing_mcp=True,
        ),
        *(
            Scenario(
                name=f"provider_{status}",
                description=f"the model provider answers every request with {status}",
                turns=(Fail(status),),
                ends_after=FAILED_SECONDS,
                may_end=True,
            )
            for status in (429, 500, 529)
        ),
        Scenario(
            name="killed",
            description="killed with SIGKILL inside the second tool call",
            turns=(_READ, _HANG, _DONE),
            ends_after=KILLED_SECONDS,
            is_killed=True,
        ),
        Scenario(
            name="two_at_once",
            description="two healthy runs at once, in the same folder",
            turns=_HEALTHY,
            copies=2,
        ),
    )
}
