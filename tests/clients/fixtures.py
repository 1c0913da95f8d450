"""
Recorded requests of real clients, scrubbed: one JSON file per client and scenario, one line per request.

``fixtures/<client>/<scenario>.json`` (``<scenario>-<variant>.json`` for a variant) contains::

    {"client": ..., "version": ..., "scenario": ..., "variant": ..., "description": ..., "pruned": "...",
     "ended": {"at": 23.2, "by": "SIGTERM", "exit_codes": [143]},
     "records": [{"at": 1.2, "path": "/v1/logs", "body": {...}}, ...]}

``at`` is the arrival time in seconds since the clients were started. A body is the JSON of the request; OTLP
is in its JSON mapping (ids in hexadecimal). All times inside the bodies are moved so that the clients were
started at ``BEGAN``, 2026-01-01T00:00:00Z; ``Fixture.moved`` moves them to another time. Ids are replaced by
counters that start with a number unique to the fixture, so fixtures can be replayed together. Long texts,
such as system prompts, are truncated. Metrics, and repeated reports of clients about themselves
(``pruning``), are omitted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).with_name("fixtures")
BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
"""Unix time of the start of the clients in every fixture."""
_DAY_SECONDS: Final = 86_400.0
_UNITS_PER_SECOND: Final = (1, 10**3, 10**6, 10**9)
"""The clients write times in seconds, milliseconds, microseconds and nanoseconds."""
_ISO_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)")


@dataclass(frozen=True, slots=True)
class Record:
    """One request of a client."""

    at: float
    """Seconds since the clients were started."""
    path: str
    body: Any


@dataclass(frozen=True, slots=True)
class Fixture:
    """The requests of a client in a scenario."""

    client: str
    version: str
    scenario: str
    variant: str
    description: str
    pruned: str | None
    """A note about omitted records, if there are any."""
    ended_at: float
    """The time at which the clients were ended or exited, in seconds since the start."""
    ended_by: str | None
    """The signal that ended them, if any."""
    exit_codes: tuple[int, ...]
    records: tuple[Record, ...]

    @property
    def name(self) -> str:
        """Return the file name without the suffix."""
        return f"{self.scenario}-{self.variant}" if self.variant else self.scenario

    @property
    def path(self) -> Path:
        """Return the path of the fixture file."""
        return FOLDER / self.client / f"{self.name}.json"

    def moved(self, began: float) -> Iterator[Record]:
        """Yield the records with times as if the clients had started at ``began``, a Unix time."""
        for record in self.records:
            yield Record(record.at, record.path, move_times(record.body, BEGAN, began - BEGAN))


def load_fixture(path: Path) -> Fixture:
    """Read a fixture."""
    document = json.loads(path.read_text(encoding="utf-8"))
    end = document["ended"]
    return Fixture(
        client=document["client"],
        version=document["version"],
        scenario=document["scenario"],
        variant=document["variant"],
        description=document["description"],
        pruned=document["pruned"],
        ended_at=end["at"],
        ended_by=end["by"],
        exit_codes=tuple(end["exit_codes"]),
        records=tuple(Record(record["at"], record["path"], record["body"]) for record in document["records"]),
    )


def list_fixture_paths() -> list[Path]:
    """Return the paths of all fixtures."""
    return sorted(FOLDER.glob("*/*.json"))


def write_fixture(fixture: Fixture) -> None:
    """Write a fixture, replacing an earlier one."""
    header = {
        "client": fixture.client,
        "version": fixture.version,
        "scenario": fixture.scenario,
        "variant": fixture.variant,
        "description": fixture.description,
        "pruned": fixture.pruned,
        "ended": {"at": fixture.ended_at, "by": fixture.ended_by, "exit_codes": list(fixture.exit_codes)},
    }
    lines = [format_json(header)[:-1] + ',"records":[']
    records = [
        format_json({"at": record.at, "path": record.path, "body": record.body}) for record in fixture.records
    ]
    fixture.path.parent.mkdir(parents=True, exist_ok=True)
    fixture.path.write_text("\n".join([*lines, ",\n".join(records), "]}\n"]), encoding="utf-8")


def format_json(value: Any) -> str:
    """Return JSON on one line, without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def move_times(value: Any, reference: float, seconds: float) -> Any:
    """
    Return ``value`` with every time in it moved by ``seconds``.

    A time is an ISO 8601 date and time, or a number (or a string of digits) that is within a day of
    ``reference`` as seconds, milliseconds, microseconds or nanoseconds since 1970.
    """
    if isinstance(value, dict):
        return {name: move_times(item, reference, seconds) for name, item in value.items()}
    if isinstance(value, list):
        return [move_times(item, reference, seconds) for item in value]
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return _move_number(value, reference, seconds)
    if isinstance(value, str):
        if value.isascii() and value.isdigit():
            moved = _move_number(int(value), reference, seconds)
            return value if moved == int(value) else str(moved)  # an id may start with 0
        return _ISO_TIME.sub(lambda match: _move_iso_time(match[0], reference, seconds), value)
    return value


def _move_number(value: float, reference: float, seconds: float) -> float:
    for unit in _UNITS_PER_SECOND:
        if abs(value / unit - reference) < _DAY_SECONDS:
            return value + round(seconds * unit) if isinstance(value, int) else value + seconds * unit
    return value


def _move_iso_time(text: str, reference: float, seconds: float) -> str:
    time = datetime.fromisoformat(text)
    if abs(time.timestamp() - reference) >= _DAY_SECONDS:
        return text
    moved = (time + timedelta(seconds=seconds)).astimezone(UTC)
    has_microseconds = moved.microsecond % 1000 != 0
    return moved.isoformat(timespec="microseconds" if has_microseconds else "milliseconds").replace(
        "+00:00", "Z"
    )
