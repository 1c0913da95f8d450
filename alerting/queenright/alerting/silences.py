"""
Silences: of which notifications nobody hears, until when and by whose word. What every peer says of itself.

Which alerts a silence is about, Alertmanager says; we do not play its matchers, which are regular expressions
of Go, on labels of our own. A peer that cannot be asked is unknown, and what it said last holds meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, FailFast, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from queenright.alerting.callbacks.names import person
from queenright.instrumentation.faults import fault_message
from queenright.instrumentation.redaction import redact

MOST_ITEMS: Final = 10_000
"""Silences, or alerts that are silenced, in one answer; one with more is not believed."""

_COMMENT: Final = 500
_PARTS: Final = 1000
"""Matchers of a silence, labels of an alert, silences on one alert."""
_OPERATORS: Final = {(True, False): "=", (False, False): "!=", (True, True): "=~", (False, True): "!~"}


class InvalidAnswerError(ValueError):
    """Raised when what a peer answers is no list of silences or alerts; names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """One silence that holds or will. Times in seconds since the epoch; texts are masked and can be shown."""

    id: str
    by: str
    comment: str
    state: str
    """``active`` or ``pending``."""
    starts_at: float
    ends_at: float
    matchers: tuple[str, ...]
    """As Alertmanager writes them, such as ``agent="researcher"``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSilences:
    """What one peer said."""

    silences: tuple[Silence, ...] = ()
    silenced: Mapping[frozenset[tuple[str, str]], tuple[str, ...]] = field(default_factory=dict)
    """By the labels of each of our alerts that is silenced, the ids of the silences that do it."""

    def ids_of(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Return the ids of the silences that an alert's labels fall under."""
        return self.silenced.get(frozenset(labels.items()), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerView:
    """What is known of one peer."""

    peer: str
    said: PeerSilences | None = None
    """What it said last; None if it never answered."""
    read_at: float | None = None
    error: str = ""
    """Why it could not be asked the last time; empty if it could."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silenced:
    """That nobody hears of a notification. Times in seconds since the epoch."""

    silence_id: str
    by: str
    comment: str
    until: float


class _Read(BaseModel):
    model_config = ConfigDict(extra="ignore", alias_generator=to_camel)


class _Matcher(_Read):
    name: Annotated[str, Field(max_length=500)]
    value: Annotated[str, Field(max_length=10_000)]
    is_regex: bool = False
    is_equal: bool = True


class _Status(_Read):
    state: str
    silenced_by: Annotated[list[str], FailFast(), Field(max_length=_PARTS)] = []


class _Silence(_Read):
    id: Annotated[str, Field(max_length=200)]
    status: _Status
    matchers: Annotated[list[_Matcher], FailFast(), Field(max_length=_PARTS)]
    starts_at: AwareDatetime
    ends_at: AwareDatetime
    created_by: str = ""
    comment: str = ""


class _Alert(_Read):
    labels: Annotated[dict[str, str], Field(max_length=_PARTS)]
    status: _Status


# The first fault is enough: to list all of a large answer's takes minutes.
_SILENCES: Final = TypeAdapter(Annotated[list[_Silence], FailFast(), Field(max_length=MOST_ITEMS)])
_ALERTS: Final = TypeAdapter(Annotated[list[_Alert], FailFast(), Field(max_length=MOST_ITEMS)])


def read_answers(silences: bytes, alerts: bytes) -> PeerSilences:
    """
    Read what a peer answers for its silences and for its alerts; expired silences are left out.

    Raises:
        InvalidAnswerError: One is no such list; the first field that is wrong is named.
    """
    try:
        found = _SILENCES.validate_json(silences)
        known = _ALERTS.validate_json(alerts)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in fault["loc"]) or "the answer"
        raise InvalidAnswerError(f"{where}: {fault_message(fault)[:200]}") from None
    return PeerSilences(
        silences=tuple(_silence(one) for one in found if one.status.state in ("active", "pending")),
        silenced={
            frozenset(one.labels.items()): tuple(one.status.silenced_by)
            for one in known
            if one.status.silenced_by
        },
    )


def _silence(read: _Silence) -> Silence:
    return Silence(
        id=read.id,
        by=person(read.created_by, otherwise="somebody"),
        comment=redact(" ".join(read.comment.split()), _COMMENT),
        state=read.status.state,
        starts_at=read.starts_at.timestamp(),
        ends_at=read.ends_at.timestamp(),
        matchers=tuple(_written(one) for one in read.matchers),
    )


def _written(matcher: _Matcher) -> str:
    value = matcher.value.replace("\\", "\\\\").replace('"', '\\"')
    return redact(f'{matcher.name}{_OPERATORS[matcher.is_equal, matcher.is_regex]}"{value}"', _COMMENT)


def silenced(labels: Mapping[str, str], views: Sequence[PeerView], now: float) -> Silenced | None:
    """
    Return the silence that keeps an alert from people the longest; None if somebody would hear of it.

    Peers tell each other of silences. Where one knows of none, it tells people: so all that ever answered
    must have it silenced.

    Args:
        labels: The alert's.
        views: What is known of each peer.
        now: Seconds since the epoch.
    """
    found: list[Silenced] = []
    for view in views:
        if view.said is None:
            continue
        one = _silenced_at(labels, view.said, now)
        if one is None:
            return None
        found.append(one)
    return min(found, key=lambda one: one.until, default=None)


def _silenced_at(labels: Mapping[str, str], said: PeerSilences, now: float) -> Silenced | None:
    if not (ids := frozenset(said.ids_of(labels))):
        return None
    holding = [one for one in said.silences if one.id in ids and one.starts_at <= now < one.ends_at]
    if not holding:
        return None
    longest = max(holding, key=lambda one: one.ends_at)
    return Silenced(silence_id=longest.id, by=longest.by, comment=longest.comment, until=longest.ends_at)


def unknown(views: Sequence[PeerView]) -> str:
    """Return of whom it is not known what they silence, and why; empty if all answered."""
    return "; ".join(f"{view.peer} {view.error}" for view in views if view.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSilence:
    """A silence to be made. Times in seconds since the epoch."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """Each is matched by its value."""
    by: str
    comment: str
    starts_at: float
    ends_at: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as Alertmanager's v2 API wants it."""
        return {
            "matchers": [
                {"name": name, "value": value, "isRegex": False, "isEqual": True}
                for name, value in sorted(self.labels.items())
            ],
            "startsAt": _rfc3339(self.starts_at),
            "endsAt": _rfc3339(self.ends_at),
            "createdBy": self.by,
            "comment": self.comment,
        }


def _rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
