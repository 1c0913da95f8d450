"""
Silences as reported by each Alertmanager peer. ``silencing`` creates them, and the API limits their length.

Alertmanager itself reports which alerts a silence matches, because matchers may be Go regular expressions. If
a peer does not answer, its last answer is kept and marked with the error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, FailFast, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from queenright.alerting.callbacks.display_name import display_name
from queenright.instrumentation.redaction import redact
from queenright.instrumentation.validation_messages import describe_faults

MAX_ITEMS: Final = 10_000
"""Maximum number of silences, or of silenced alerts, in one response."""

_TEXT_LIMIT: Final = 500
_MAX_PARTS: Final = 1000
"""Maximum number of a silence's matchers, an alert's labels, and an alert's silences."""
_OPERATORS: Final = {(True, False): "=", (False, False): "!=", (True, True): "=~", (False, True): "!~"}


class InvalidAnswerError(ValueError):
    """Raised for a response that is not a list of silences or alerts. The message names the invalid field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """An active or pending silence, with secrets masked for display. Times are in seconds since the epoch."""

    id: str
    by: str
    comment: str
    state: str
    """``active`` or ``pending``."""
    starts_at: float
    ends_at: float
    matchers: tuple[str, ...]
    """Matchers in Alertmanager's syntax, such as ``agent="researcher"``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSilences:
    """The silences of one peer."""

    silences: tuple[Silence, ...] = ()
    silence_ids_by_labels: Mapping[frozenset[tuple[str, str]], tuple[str, ...]] = field(default_factory=dict)
    """Ids of the matching silences, by the labels of each silenced Queenright alert."""

    def silence_ids(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Return the ids of the silences that match an alert's labels."""
        return self.silence_ids_by_labels.get(frozenset(labels.items()), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerView:
    """What is known about the silences of one peer."""

    peer: str
    answer: PeerSilences | None = None
    """The peer's last answer; None if it has never answered."""
    read_at: float | None = None
    error: str = ""
    """Why the last request failed; "" if it succeeded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveSilence:
    """The silence that mutes a notification. Times are in seconds since the epoch."""

    silence_id: str
    by: str
    comment: str
    until: float


class _ResponseModel(BaseModel):
    model_config = ConfigDict(extra="ignore", alias_generator=to_camel)


class _Matcher(_ResponseModel):
    name: Annotated[str, Field(max_length=500)]
    value: Annotated[str, Field(max_length=10_000)]
    is_regex: bool = False
    is_equal: bool = True


class _Status(_ResponseModel):
    state: str
    silenced_by: Annotated[list[str], FailFast(), Field(max_length=_MAX_PARTS)] = []


class _Silence(_ResponseModel):
    id: Annotated[str, Field(max_length=200)]
    status: _Status
    matchers: Annotated[list[_Matcher], FailFast(), Field(max_length=_MAX_PARTS)]
    starts_at: AwareDatetime
    ends_at: AwareDatetime
    created_by: str = ""
    comment: str = ""


class _Alert(_ResponseModel):
    labels: Annotated[dict[str, str], Field(max_length=_MAX_PARTS)]
    status: _Status


# Validation stops at the first error, because listing all errors of a large response takes minutes.
_SILENCES: Final = TypeAdapter(Annotated[list[_Silence], FailFast(), Field(max_length=MAX_ITEMS)])
_ALERTS: Final = TypeAdapter(Annotated[list[_Alert], FailFast(), Field(max_length=MAX_ITEMS)])


def read_answers(silences: bytes, alerts: bytes) -> PeerSilences:
    """
    Parse a peer's lists of silences and alerts. Skips expired silences.

    Raises:
        InvalidAnswerError: A list is invalid. The message names the first invalid field.
    """
    try:
        parsed_silences = _SILENCES.validate_json(silences)
        parsed_alerts = _ALERTS.validate_json(alerts)
    except ValidationError as error:
        faults = describe_faults(error.errors(include_input=False), "the answer", limit=1)
        raise InvalidAnswerError(faults) from None
    return PeerSilences(
        silences=tuple(
            _to_silence(silence)
            for silence in parsed_silences
            if silence.status.state in ("active", "pending")
        ),
        silence_ids_by_labels={
            frozenset(alert.labels.items()): tuple(alert.status.silenced_by)
            for alert in parsed_alerts
            if alert.status.silenced_by
        },
    )


def _to_silence(response: _Silence) -> Silence:
    return Silence(
        id=response.id,
        by=display_name(response.created_by, fallback="somebody"),
        comment=redact(" ".join(response.comment.split()), _TEXT_LIMIT),
        state=response.status.state,
        starts_at=response.starts_at.timestamp(),
        ends_at=response.ends_at.timestamp(),
        matchers=tuple(_format_matcher(matcher) for matcher in response.matchers),
    )


def _format_matcher(matcher: _Matcher) -> str:
    value = matcher.value.replace("\\", "\\\\").replace('"', '\\"')
    return redact(f'{matcher.name}{_OPERATORS[matcher.is_equal, matcher.is_regex]}"{value}"', _TEXT_LIMIT)


def find_active_silence(
    labels: Mapping[str, str], views: Sequence[PeerView], now: float
) -> ActiveSilence | None:
    """
    Return the silence that mutes an alert at all peers; None if some peer would notify people.

    Peers replicate silences, but a peer that does not have a silence yet sends notifications. So the alert
    must be silenced at every peer that has ever answered.

    Args:
        views: What is known about each peer.
    """
    active_silences: list[ActiveSilence] = []
    for view in views:
        if view.answer is None:
            continue
        silence = _find_longest_silence(labels, view.answer, now)
        if silence is None:
            return None
        active_silences.append(silence)
    return min(active_silences, key=lambda silence: silence.until, default=None)


def _find_longest_silence(
    labels: Mapping[str, str], answer: PeerSilences, now: float
) -> ActiveSilence | None:
    if not (silence_ids := frozenset(answer.silence_ids(labels))):
        return None
    matching_silences = [
        silence
        for silence in answer.silences
        if silence.id in silence_ids and silence.starts_at <= now < silence.ends_at
    ]
    if not matching_silences:
        return None
    longest = max(matching_silences, key=lambda silence: silence.ends_at)
    return ActiveSilence(silence_id=longest.id, by=longest.by, comment=longest.comment, until=longest.ends_at)


def describe_unknown_peers(views: Sequence[PeerView]) -> str:
    """Return a text with the peers whose silences are unknown, and why; "" if all answered."""
    return "; ".join(f"{view.peer} {view.error}" for view in views if view.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSilence:
    """A silence to create. Times are in seconds since the epoch."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that an alert must have exactly to be silenced."""
    by: str
    comment: str
    starts_at: float
    ends_at: float

    def to_dict(self) -> dict[str, Any]:
        """Return the silence in the format of Alertmanager's v2 API."""
        return {
            "matchers": [
                {"name": name, "value": value, "isRegex": False, "isEqual": True}
                for name, value in sorted(self.labels.items())
            ],
            "startsAt": rfc3339(self.starts_at),
            "endsAt": rfc3339(self.ends_at),
            "createdBy": self.by,
            "comment": self.comment,
        }


def rfc3339(timestamp: float) -> str:
    """Format a time, in seconds since the epoch, for Alertmanager's API."""
    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
