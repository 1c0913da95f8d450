"""Value types of vital signs, and how they are read from events."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.redaction import redact

EVIDENCE_LIMIT: Final = 500
"""Characters of the last error or text that are kept."""

QUESTION_LIMIT: Final = 1000
"""Characters of what a person is asked that are kept."""

MOST_BREAKERS: Final = 32

_WORD_LIMIT: Final = 200
_LONGEST_SECONDS: Final = 1e12
_NAME_LIMIT: Final = 80


CONTEXT_FULL: Final = "context window exceeded"
"""The LLM error of a worker whose conversation exceeds its model's context."""

# By the providers' error names, codes or messages.
_CONTEXT_FULL: Final = re.compile(
    r"context[ _-]?(?:window|length)|maximum context|prompt is too long", re.IGNORECASE
)


def context_is_full(error: str) -> bool:
    """Return whether an LLM call was refused as it was longer than the model takes."""
    return _CONTEXT_FULL.search(error) is not None


_CALLED_OFF: Final = re.compile(
    r"\b(?:\w*UserAbortError|AbortError|CancelledError|KeyboardInterrupt|OperationCanceledException|turn_aborted"
    r"|user_interrupt(?:ed)?)\b|\binterrupted by (?:the )?user|\b(?:aborted|cancell?ed) by (?:the )?user"
    r"|\b(?:request|response|operation|run|turn|query|generation) (?:was |has been )?(?:aborted|cancell?ed)\b"
    r"|^\W*(?:\w+[: ])?\W*(?:aborted|cancell?ed|interrupted)\b",
    re.IGNORECASE,
)
_BY_USER: Final = re.compile(r"\bby (?:the )?user\b|\w*UserAbortError\b|\bturn_aborted\b", re.IGNORECASE)
# What a provider, a proxy or the network did; 499 is a client that closed its request.
_FAILED_REMOTELY: Final = re.compile(
    r"(?:^|\b(?:code|status|http)\W{0,3})(?:4(?!99)\d\d|5\d\d)\b|\w*ServerError\b|\bECONN"
    r"|\b(?:upstream|provider|backend|server|peer|remote|host|gateway|connection|overloaded|filter|shutdown)\b"
    r"|\bcontext cancell?ed|\b(?:unavailable|time(?:d )?-?out)\b|\bstream (?:was )?(?:aborted|cancell?ed)",
    re.IGNORECASE,
)
_CALLED_OFF_HEAD: Final = 400


def was_cancelled(error: str) -> bool:
    """Return whether a call ended because somebody on the agent's side stopped it."""
    head = error[:_CALLED_OFF_HEAD]
    if _CALLED_OFF.search(head) is None:
        return False
    return _BY_USER.search(head) is not None or _FAILED_REMOTELY.search(head) is None


# As clients begin it: a result may quote such words.
_STOPPED_BY_PERSON: Final = re.compile(
    r"\W*(?:(?:the |this )?(?:tool(?: use| call)?|command|request|action|operation|execution|run)\W+"
    r"(?:was |has been )?)?(?:abort|cancell?|declin|deni|interrupt|refus|reject|stopp)ed "
    r"by (?:the |an? )?(?:user|person|human)\b"
    r"|\W*(?:the )?user (?:has )?(?:aborted|cancell?ed|declined|denied|interrupted|refused|rejected|stopped)"
    r"(?: (?:the |this |to )?(?:tool|command|request|action|operation|execution|run|permission|it)\b|\W*$)"
    r"|\W*(?:the )?user (?:doesn.t|does not|didn.t|did not) want to (?:proceed|run|allow|continue)\b",
    re.IGNORECASE,
)
INTERRUPTED: Final = "interrupted"
"""The error of a tool call that a person stopped."""


def is_stopped_by_user(data: Mapping[str, Any]) -> bool:
    """Return whether a tool call ended because a person stopped or refused it, by what its end says."""
    if data.get("error_type") == INTERRUPTED:
        return True
    return _begins_stopped(str(data.get("error_type") or "")) or _begins_stopped(str(data.get("error") or ""))


@lru_cache(256)
def _begins_stopped(text: str) -> bool:
    return _STOPPED_BY_PERSON.match(text) is not None


# What a read or a search fails with if its argument is not there.
_MISSING: Final = re.compile(
    r"not[ _]?found\b|notfound|\bno such \w+|\b(?:do|does|did)(?: not|n.t) exist\b|\benoent\b|\b404\b"
    r"|\b(?:could|can)(?: ?not|n?.t) (?:find|locate|be found)\b|\bno \w+(?: \w+)? (?:found|exists?)\b"
)
_MISSING_WORDS: Final = ("found", "no such", "exist", "find", "locate", "404", "enoent")
"""One of these is in what the pattern matches: to look for them is faster."""
# What is broken then, or closed to the caller: no other argument would help.
_BROKEN: Final = re.compile(
    r"(?:command|tool|function|method|module|package|plugin|host|server|address|database|endpoint|route|session"
    r"|driver|executable|program|api|service)(?: \S+)?(?: was| is)?[ _]?not[ _]?found"
    r"|\btime[ds]?[ _-]?out|\bdenied\b|\bforbidden\b|\bunauthori[sz]ed\b|\bauthenticat|\bconnect(?:ion)?\b"
    r"|\bunavailable\b|\bunreachable\b|\b5\d\d\b|\binternal (?:server )?error\b|\brate.?limit"
)


def is_missing(data: Mapping[str, Any]) -> bool:
    """Return whether a call failed because its target does not exist, judging by its error."""
    return _is_missing_error(
        str(data.get("error_type") or "")[:_NAME_LIMIT], str(data.get("error") or "")[-EVIDENCE_LIMIT:]
    )


@lru_cache(256)
def _is_missing_error(error_type: str, error: str) -> bool:
    text = f"{error_type}\n{error}".lower()
    if not any(word in text for word in _MISSING_WORDS):
        return False
    return _MISSING.search(text) is not None and _BROKEN.search(text) is None


# What a shell tool reports of a command that failed and printed nothing.
_BARE_EXIT: Final = re.compile(
    r"[\W_]*(?:(?:error|failed|failure|command|process|exit|exited|with|code|status|exitcode|returncode|stdout|stderr"
    r"|output|1|is|true|false|interrupted|null|none)(?:[\W_]+|\Z))*",
    re.IGNORECASE,
)


def is_bare_exit(data: Mapping[str, Any]) -> bool:
    """Return whether a command failed with exit code 1, as far as that is reported, and without output."""
    error_type = str(data.get("error_type") or "")[:_NAME_LIMIT]
    text = str(data.get("error") or "")[:EVIDENCE_LIMIT]
    return _is_bare_exit(text) and (bool(text) or _is_bare_exit(error_type))


@lru_cache(256)
def _is_bare_exit(text: str) -> bool:
    return _BARE_EXIT.fullmatch(text) is not None


# What secrets are written in: a cut within such a word may have left the half of one.
_WORD: Final = re.compile(r"[A-Za-z0-9_.~+/=-]+")


def tail(text: object) -> str:
    """Return the last 500 characters of a text, without a word that the cut would split."""
    text = str(text)
    if len(text) <= EVIDENCE_LIMIT:
        return text
    start = len(text) - EVIDENCE_LIMIT
    if _WORD.match(text, start - 1) and (halved := _WORD.match(text, start)):
        start = halved.end()
    return text[start:]


@lru_cache(4096)
def _name(text: str) -> str:
    return sys.intern(redact(" ".join(text.split()), _NAME_LIMIT))


def name(value: object) -> str:
    """Return a tool's name or an error's class for others to read: one line of 80 characters, no secrets."""
    return _name(str(value)[: 4 * _NAME_LIMIT]) if value else ""


class SessionStatus(StrEnum):
    """The status of a session; an unlisted one is ``unknown``."""

    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> SessionStatus:
        return cls.UNKNOWN


class OpenTool(NamedTuple):
    """A tool call that has begun and not ended; ``timeout`` in seconds, as declared, or None."""

    call_id: str
    tool: str
    node_id: str
    started: float
    timeout: float | None
    source_started: float = 0.0
    """Seconds on the clock of its source."""


class Refusal(NamedTuple):
    """How often edits, submissions or commands were refused with one class of error."""

    error: str
    times: int
    since: float
    last: int
    """The number of the last refused call."""
    recent: int
    """Which calls of the window before it were refused: one bit for each call, the last call lowest."""

    def lately(self, call: int, window: int) -> int:
        """Return how many of the ``window`` calls up to number ``call`` were refused."""
        return _in_window(self.recent, call - self.last, window).bit_count()


Refusals = tuple[Refusal, ...]
_MOST_REFUSALS: Final = 4


def after_refusal(
    refusals: Refusals, error: str, at: float, *, call: int, window: int, limit: int
) -> Refusals:
    """
    Return refusals after another one, the newest class first.

    Refusals expire with the window. ``times`` counts beyond it once ``limit`` of them were in it.

    Args:
        refusals: What was refused before.
        error: The class of the error.
        at: When, in seconds since the epoch.
        call: The number of the call that was refused.
        window: How many calls back refusals count.
        limit: How many of one class are a finding.
    """
    still = [one for one in refusals if one.lately(call, window)]
    known = next((one for one in still if one.error == error), Refusal(error, 0, at, call, 0))
    lately = known.lately(call, window)
    recent = _in_window(known.recent, call - known.last, window) | 1
    times = known.times + 1 if lately >= limit else recent.bit_count()
    new = Refusal(error, times, known.since, call, recent)
    return (new, *(one for one in still if one is not known))[:_MOST_REFUSALS]


def _in_window(calls: int, later: int, window: int) -> int:
    return 0 if later >= window else (calls << later) & ((1 << window) - 1)


class Beat(NamedTuple):
    """The last heartbeat of a worker; fields are None or empty if missing or invalid."""

    phase: str = ""
    last_tool_call: float | None = None
    token_count: int | None = None
    error_count: int | None = None
    progress_indicator: str = ""


OWN: Final = "process "
"""Before the names of circuit breakers that a worker's own process reports."""


class OpenBreakers(NamedTuple):
    """
    Names of an agent's circuit breakers that are not closed.

    At most ``MOST_BREAKERS`` of each kind; more are not noted. All sessions of an agent share one value.
    """

    open: tuple[str, ...] = ()
    """Calls are refused."""
    on_trial: tuple[str, ...] = ()
    """Half open: the next call is a probe."""

    def __bool__(self) -> bool:
        return bool(self.open or self.on_trial)

    def after(self, data: Mapping[str, Any]) -> OpenBreakers:
        """Return the breakers after the change in an event's ``data``."""
        name, to = word(data.get("name")), data.get("to")
        if not name or to not in ("open", "half_open", "closed"):
            return self
        is_open, on_trial = (tuple(one for one in names if one != name) for names in self)
        if to == "open" and len(is_open) < MOST_BREAKERS:
            is_open = (*is_open, sys.intern(name))
        if to == "half_open" and len(on_trial) < MOST_BREAKERS:
            on_trial = (*on_trial, sys.intern(name))
        return OpenBreakers(is_open, on_trial)

    def without_own(self) -> OpenBreakers:
        """Return those that are not in a worker's own process: that has ended."""
        if not self:
            return self
        return OpenBreakers(*(tuple(one for one in names if not one.startswith(OWN)) for names in self))


NO_BREAKERS: Final = OpenBreakers()


class Output(NamedTuple):
    """What a worker's work has come to, as it counts itself; None for what it does not report."""

    files_changed: int | None
    tests_passed: int | None
    tests_failed: int | None
    since: float
    """Since when it has been so, in seconds since the epoch."""
    reports: int
    """Consecutive reports with these counts."""

    @property
    def counts(self) -> tuple[int | None, int | None, int | None]:
        """What is compared: files changed, tests passed, tests failed."""
        return (self.files_changed, self.tests_passed, self.tests_failed)

    def __str__(self) -> str:
        words = ("files changed", "tests passed", "tests failed")
        return ", ".join(f"{n} {word}" for n, word in zip(self.counts, words, strict=True) if n is not None)


MOST_MCP_SERVERS: Final = 32
_LOSSES: Final = 8


class McpLoss(NamedTuple):
    """A report that an MCP server is not there."""

    at: float
    """In seconds since the epoch."""
    status: str
    """``failed``: it could not be reached; ``disconnected``: it was there before."""
    error_type: str = ""
    where: str = ""
    """The server's transport and scope, as far as they are reported."""


class McpServer(NamedTuple):
    """What is known of one MCP server of a worker, in whatever order its reports arrive."""

    name: str
    """Empty where the client does not report it: then all servers of one transport and scope are one."""
    where: str
    """Transport and scope of servers without a name; empty for one that has a name."""
    losses: tuple[McpLoss, ...] = ()
    """Since it was last connected, the last 8, oldest first; empty while it is there."""
    connected_at: float = 0.0

    @property
    def has_failed(self) -> bool:
        """Return whether it could not be reached."""
        return any(loss.status == "failed" for loss in self.losses)

    def moved(self, seconds: float, latest: float = math.inf) -> McpServer:
        """Return the same with its times moved, and none of them after ``latest``."""
        losses = tuple(loss._replace(at=min(loss.at + seconds, latest)) for loss in self.losses)
        return self._replace(losses=losses, connected_at=min(self.connected_at + seconds, latest))


McpServers = tuple[McpServer, ...]


def after_mcp_change(servers: McpServers, data: Mapping[str, Any], at: float) -> McpServers:
    """Return MCP servers after a report about one of them; at most 32 are noted."""
    status = data.get("status")
    if status not in ("connected", "failed", "disconnected"):
        return servers
    server, transport, scope = (_clean(data.get(key)) for key in ("server", "transport", "scope"))
    where = ", ".join(text for text in (transport, scope) if text)
    unknown = McpServer(server, "" if server else where)
    known = next((each for each in servers if each[:2] == unknown[:2]), unknown)
    connected_at, losses = known.connected_at, set(known.losses)
    if status == "connected":
        # For servers that cannot be distinguished: an attempt that began before another one failed was not
        # made by the same server.
        began = at if server else at - (seconds(data.get("duration")) or 0.0)
        connected_at = max(connected_at, began)
    else:
        losses.add(McpLoss(at, status, _clean(data.get("error_type")), where))
    still = sorted(loss for loss in losses if loss.at > connected_at)
    new = known._replace(losses=tuple(still[-_LOSSES:]), connected_at=connected_at)
    if known in servers:
        return tuple(new if each is known else each for each in servers)
    return (*servers, new) if len(servers) < MOST_MCP_SERVERS else servers


def _clean(value: object) -> str:
    return clean_name(value, _NAME_LIMIT) if isinstance(value, str) else ""


_NUMBER: Final = (int, float)
"""Faster in ``isinstance`` than a union, which is made again for each call."""


def count(value: object) -> int:
    """Return a count if it is one, else 0."""
    if type(value) is int:  # as nearly always
        return value if 0 <= value < 1e12 else 0
    return int(value) if isinstance(value, _NUMBER) and 0 <= value < 1e12 else 0


def dollars(value: object) -> float | None:
    """Return an amount if it is one: a number of at least zero that somebody may have paid."""
    if value is None or isinstance(value, bool) or not isinstance(value, _NUMBER) or not 0 <= value < 1e9:
        return None
    return float(value)


def parse_count(value: object) -> int | None:
    """Return a valid count, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        return None
    return int(value)


def seconds(value: object) -> float | None:
    """Return a declared time if it is one: a finite number above zero."""
    if value is None or not isinstance(value, _NUMBER) or isinstance(value, bool):
        return None
    return float(value) if 0 < value < _LONGEST_SECONDS else None


def word(value: object) -> str:
    """Return a short text on one clean line, at most 200 characters; a number as its digits; else nothing."""
    if isinstance(value, str):
        # A log of before may hold what would move a terminal's cursor.
        return value[:_WORD_LIMIT] if value.isprintable() else clean_name(value[:_WORD_LIMIT])
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""


class SpentToday(NamedTuple):
    """What had been spent on a day when a worker last spent something, in US dollars."""

    day: int
    """Days since the epoch."""
    agent: float
    """By all sessions of the worker's agent."""
    fleet: float
    """By all agents."""


def question_in(data: Mapping[str, Any]) -> str:
    """Return the question of an event, with secrets masked; empty if it has none."""
    question = data.get("question")
    return redact(question, QUESTION_LIMIT) if isinstance(question, str) else ""
