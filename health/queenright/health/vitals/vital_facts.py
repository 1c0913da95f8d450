"""The value types of vital signs, and functions that parse them from events."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from queenright.instrumentation.error_class import classify_error
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.redaction import redact

EVIDENCE_LIMIT: Final = 500
"""The maximum number of characters of the last error or text."""

QUESTION_LIMIT: Final = 1000
"""The maximum number of characters of a question to a person."""

MAX_BREAKERS: Final = 32

_TEXT_LIMIT: Final = 200
_MAX_SECONDS: Final = 1e12
_NAME_LIMIT: Final = 80


CONTEXT_FULL: Final = "context window exceeded"
"""The LLM error of a worker whose conversation exceeds its model's context."""

# Matches the error names, codes and messages of providers.
_CONTEXT_FULL: Final = re.compile(
    r"context[ _-]?(?:window|length)|maximum context|prompt is too long", re.IGNORECASE
)


def is_context_full(error: str) -> bool:
    """Return whether an LLM call exceeded the model's context window."""
    return _CONTEXT_FULL.search(error) is not None


_CANCEL_TEXT: Final = re.compile(
    r"\b(?:\w*UserAbortError|AbortError|CancelledError|KeyboardInterrupt|OperationCanceledException|turn_aborted"
    r"|user_interrupt(?:ed)?)\b|\binterrupted by (?:the )?user|\b(?:aborted|cancell?ed) by (?:the )?user"
    r"|\b(?:request|response|operation|run|turn|query|generation) (?:was |has been )?(?:aborted|cancell?ed)\b"
    r"|^\W*(?:\w+[: ])?\W*(?:aborted|cancell?ed|interrupted)\b",
    re.IGNORECASE,
)
_USER_CANCELLED: Final = re.compile(
    r"\bby (?:the )?user\b|\w*UserAbortError\b|\bturn_aborted\b", re.IGNORECASE
)
# Failures of a provider, proxy or network. 499 is excluded, because the client closed the request.
_FAILED_REMOTELY: Final = re.compile(
    r"(?:^|\b(?:code|status|http)\W{0,3})(?:4(?!99)\d\d|5\d\d)\b|\w*ServerError\b|\bECONN"
    r"|\b(?:upstream|provider|backend|server|peer|remote|host|gateway|connection|overloaded|filter|shutdown)\b"
    r"|\bcontext cancell?ed|\b(?:unavailable|time(?:d )?-?out)\b|\bstream (?:was )?(?:aborted|cancell?ed)",
    re.IGNORECASE,
)
_CANCELLED_HEAD: Final = 400


def is_cancelled_call(error: str) -> bool:
    """Return whether a call ended because the agent or its user cancelled it."""
    head = error[:_CANCELLED_HEAD]
    if _CANCEL_TEXT.search(head) is None:
        return False
    return _USER_CANCELLED.search(head) is not None or _FAILED_REMOTELY.search(head) is None


# This is matched only at the start, because a result may quote these words.
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
"""Error type of a tool call that a person stopped."""


def is_stopped_by_user(data: Mapping[str, Any]) -> bool:
    """Return whether a person stopped or refused a tool call, according to its end event."""
    if data.get("error_type") == INTERRUPTED:
        return True
    return _is_refusal(str(data.get("error_type") or "")) or _is_refusal(str(data.get("error") or ""))


@lru_cache(256)
def _is_refusal(text: str) -> bool:
    return _STOPPED_BY_PERSON.match(text) is not None


# Errors of reads and searches whose target does not exist.
_MISSING: Final = re.compile(
    r"not[ _]?found\b|notfound|\bno such \w+|\b(?:do|does|did)(?: not|n.t) exist\b|\benoent\b|\b404\b"
    r"|\b(?:could|can)(?: ?not|n?.t) (?:find|locate|be found)\b|\bno \w+(?: \w+)? (?:found|exists?)\b"
)
_MISSING_WORDS: Final = ("found", "no such", "exist", "find", "locate", "404", "enoent")
"""Every match of ``_MISSING`` contains one of these words. Searching for them first is faster."""
# Errors that do not depend on the arguments.
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


# Output of a shell tool for a command that failed and printed nothing.
_BARE_EXIT: Final = re.compile(
    r"[\W_]*(?:(?:error|failed|failure|command|process|exit|exited|with|code|status|exitcode|returncode|stdout|stderr"
    r"|output|1|is|true|false|interrupted|null|none)(?:[\W_]+|\Z))*",
    re.IGNORECASE,
)


def is_bare_exit(data: Mapping[str, Any]) -> bool:
    """Return whether a command failed without output, with exit code 1 or an unknown one."""
    error_type = str(data.get("error_type") or "")[:_NAME_LIMIT]
    text = str(data.get("error") or "")[:EVIDENCE_LIMIT]
    return _is_bare_exit(text) and (bool(text) or _is_bare_exit(error_type))


@lru_cache(256)
def _is_bare_exit(text: str) -> bool:
    return _BARE_EXIT.fullmatch(text) is not None


# A word that may be a secret. Cutting inside it could leave part of the secret unmasked.
_WORD: Final = re.compile(r"[A-Za-z0-9_.~+/=-]+")


def cut_to_tail(text: object) -> str:
    """Return the last 500 characters of a text, without a word that is cut in two."""
    text = str(text)
    if len(text) <= EVIDENCE_LIMIT:
        return text
    start = len(text) - EVIDENCE_LIMIT
    if _WORD.match(text, start - 1) and (half := _WORD.match(text, start)):
        start = half.end()
    return text[start:]


@lru_cache(4096)
def _clean_display_name(text: str) -> str:
    return sys.intern(redact(" ".join(text.split()), _NAME_LIMIT))


def clean_display_name(value: object) -> str:
    """Return a tool name or error class as one line of at most 80 characters, with secrets masked."""
    return _clean_display_name(str(value)[: 4 * _NAME_LIMIT]) if value else ""


class OpenTool(NamedTuple):
    """A running tool call. ``timeout`` is the declared timeout in seconds, or None."""

    call_id: str
    tool: str
    node_id: str
    started: float
    timeout: float | None
    source_started: float = 0.0
    """When the call started, in seconds on the clock of its source."""
    began: float = 0.0
    """When the call began, in seconds since the epoch by the worker's own clock."""


class Refusal(NamedTuple):
    """Edits, submissions or commands that were refused with the same error class."""

    error: str
    times: int
    since: float
    last_call: int
    """The number of the last refused call."""
    recent: int
    """The refused calls in the window, one bit for each call. The lowest bit is the last call."""

    def count_recent(self, call: int, window: int) -> int:
        """Return how many of the ``window`` calls that end with number ``call`` were refused."""
        return _shift_window(self.recent, call - self.last_call, window).bit_count()


Refusals = tuple[Refusal, ...]
_MAX_REFUSALS: Final = 4


def add_refusal(refusals: Refusals, error: str, at: float, *, call: int, window: int, limit: int) -> Refusals:
    """
    Return the refusals with another one, the newest class first.

    Refusals outside the window expire. While at least ``limit`` are within it, ``times`` also counts expired
    refusals.

    Args:
        refusals: Earlier refusals.
        error: The class of the error.
        at: The time of the refusal, in seconds since the epoch.
        call: The number of the refused call.
        window: The number of calls within which refusals count.
        limit: The number of refusals of one class that opens a finding.
    """
    current = [refusal for refusal in refusals if refusal.count_recent(call, window)]
    previous = next(
        (refusal for refusal in current if refusal.error == error), Refusal(error, 0, at, call, 0)
    )
    recent = _shift_window(previous.recent, call - previous.last_call, window) | 1
    times = previous.times + 1 if previous.count_recent(call, window) >= limit else recent.bit_count()
    new_refusal = Refusal(error, times, previous.since, call, recent)
    return (new_refusal, *(refusal for refusal in current if refusal is not previous))[:_MAX_REFUSALS]


def _shift_window(calls: int, later: int, window: int) -> int:
    return 0 if later >= window else (calls << later) & ((1 << window) - 1)


class HeartbeatFields(NamedTuple):
    """Fields of a worker's last heartbeat. A missing or invalid field is None or empty."""

    phase: str = ""
    last_tool_call: float | None = None
    token_count: int | None = None
    error_count: int | None = None
    progress_indicator: str = ""


PROCESS_PREFIX: Final = "process "
"""The prefix of the names of breakers that the worker's own process reports."""


class OpenBreakers(NamedTuple):
    """
    The names of an agent's circuit breakers that are not closed.

    At most ``MAX_BREAKERS`` of each state are kept. All sessions of an agent share one value.
    """

    open: tuple[str, ...] = ()
    """Breakers that refuse calls."""
    half_open: tuple[str, ...] = ()
    """Breakers whose next call is a probe."""

    def __bool__(self) -> bool:
        return bool(self.open or self.half_open)

    def after(self, data: Mapping[str, Any]) -> OpenBreakers:
        """Return the breakers after the change in an event's ``data``."""
        name, to = clean_text(data.get("name")), data.get("to")
        if not name or to not in ("open", "half_open", "closed"):
            return self
        open_names, half_open = (
            tuple(open_name for open_name in names if open_name != name) for names in self
        )
        if to == "open" and len(open_names) < MAX_BREAKERS:
            open_names = (*open_names, sys.intern(name))
        if to == "half_open" and len(half_open) < MAX_BREAKERS:
            half_open = (*half_open, sys.intern(name))
        return OpenBreakers(open_names, half_open)

    def without_process_breakers(self) -> OpenBreakers:
        """Return a copy without the breakers of the worker's own process, which has ended."""
        if not self:
            return self
        return OpenBreakers(
            *(tuple(name for name in names if not name.startswith(PROCESS_PREFIX)) for names in self)
        )


NO_BREAKERS: Final = OpenBreakers()


class Output(NamedTuple):
    """The output counts that a worker reports. A count that it does not report is None."""

    files_changed: int | None
    tests_passed: int | None
    tests_failed: int | None
    since: float
    """When the counts last changed, in seconds since the epoch."""
    reports: int
    """The number of consecutive reports with these counts."""

    @property
    def counts(self) -> tuple[int | None, int | None, int | None]:
        """Files changed, tests passed and tests failed."""
        return (self.files_changed, self.tests_passed, self.tests_failed)

    def __str__(self) -> str:
        words = ("files changed", "tests passed", "tests failed")
        return ", ".join(f"{n} {word}" for n, word in zip(self.counts, words, strict=True) if n is not None)


MAX_MCP_SERVERS: Final = 32
_MAX_LOSSES: Final = 8


class McpLoss(NamedTuple):
    """A report that an MCP server is unavailable."""

    at: float
    """When the server became unavailable, in seconds since the epoch."""
    status: str
    """``failed``: the connection failed. ``disconnected``: an established connection ended."""
    error_type: str = ""
    where: str = ""
    """The server's transport and scope, if reported."""


class McpServerState(NamedTuple):
    """The state of an MCP server. Reports may arrive in any order."""

    name: str
    """
    The server's name; empty if unknown. Servers without a name count as one if transport and scope are equal.
    """
    where: str
    """The transport and scope of a server without a name; empty if it has a name."""
    losses: tuple[McpLoss, ...] = ()
    """Up to 8 losses since the last connection, oldest first."""
    connected_at: float = 0.0

    @property
    def has_failed(self) -> bool:
        """Whether a connection has failed since the last successful connection."""
        return any(loss.status == "failed" for loss in self.losses)

    def shift_times(self, seconds: float, latest: float = math.inf) -> McpServerState:
        """Return a copy with its times shifted by ``seconds``, capped at ``latest``."""
        losses = tuple(loss._replace(at=min(loss.at + seconds, latest)) for loss in self.losses)
        return self._replace(losses=losses, connected_at=min(self.connected_at + seconds, latest))


McpServers = tuple[McpServerState, ...]


def apply_mcp_report(servers: McpServers, data: Mapping[str, Any], at: float) -> McpServers:
    """Return the MCP servers updated by a report about one of them. At most 32 are kept."""
    status = data.get("status")
    if status not in ("connected", "failed", "disconnected"):
        return servers
    server, transport, scope = (_clean_field(data.get(key)) for key in ("server", "transport", "scope"))
    where = ", ".join(text for text in (transport, scope) if text)
    unknown = McpServerState(server, "" if server else where)
    previous = next((known_server for known_server in servers if known_server[:2] == unknown[:2]), unknown)
    connected_at, losses = previous.connected_at, set(previous.losses)
    if status == "connected":
        # Servers without a name share an entry. An attempt that began before another one failed concerns a
        # different server.
        began = at if server else at - (parse_seconds(data.get("duration")) or 0.0)
        connected_at = max(connected_at, began)
    else:
        losses.add(McpLoss(at, status, _clean_field(data.get("error_type")), where))
    recent = sorted(loss for loss in losses if loss.at > connected_at)
    new_state = previous._replace(losses=tuple(recent[-_MAX_LOSSES:]), connected_at=connected_at)
    if previous in servers:
        return tuple(new_state if known_server is previous else known_server for known_server in servers)
    return (*servers, new_state) if len(servers) < MAX_MCP_SERVERS else servers


def _clean_field(value: object) -> str:
    return clean_name(value, _NAME_LIMIT) if isinstance(value, str) else ""


_NUMBER: Final = (int, float)
"""In ``isinstance``, a tuple is faster than ``int | float``, which each call would rebuild."""


def count_or_zero(value: object) -> int:
    """Return a valid count, otherwise 0."""
    if type(value) is int:  # the usual case
        return value if 0 <= value < 1e12 else 0
    return int(value) if isinstance(value, _NUMBER) and 0 <= value < 1e12 else 0


def parse_dollars(value: object) -> float | None:
    """Return a non-negative amount below 1e9 dollars, otherwise None."""
    if value is None or isinstance(value, bool) or not isinstance(value, _NUMBER) or not 0 <= value < 1e9:
        return None
    return float(value)


def parse_count(value: object) -> int | None:
    """Return a valid count, otherwise None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        return None
    return int(value)


def parse_seconds(value: object) -> float | None:
    """Return a positive number of seconds below 1e12, otherwise None."""
    if value is None or not isinstance(value, _NUMBER) or isinstance(value, bool):
        return None
    return float(value) if 0 < value < _MAX_SECONDS else None


def clean_text(value: object) -> str:
    """Return a text or number as one clean line of at most 200 characters, otherwise an empty string."""
    if isinstance(value, str):
        # Logs of older versions may contain terminal control sequences.
        return value[:_TEXT_LIMIT] if value.isprintable() else clean_name(value[:_TEXT_LIMIT])
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""


class SpentToday(NamedTuple):
    """The spending, in US dollars, on the day of a worker's last model call with a cost."""

    day: int
    """Days since the epoch."""
    agent: float
    """The spending of all sessions of the worker's agent."""
    fleet: float
    """The spending of all agents."""


def parse_question(data: Mapping[str, Any]) -> str:
    """Return the question of an event with secrets masked, or an empty string."""
    question = data.get("question")
    return redact(question, QUESTION_LIMIT) if isinstance(question, str) else ""


UNCLASSIFIED: Final = "error"
"""The class of a failure without a recognizable cause. Two such failures may be different."""


@lru_cache(256)
def classify_failure(error_type: str, error: str) -> str:
    """Return the class of a failed call's error, or ``UNCLASSIFIED`` if it has no recognizable class."""
    return clean_display_name(classify_error(clean_display_name(error_type), error)) or UNCLASSIFIED
