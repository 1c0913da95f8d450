"""
Recorded requests of real frameworks, scrubbed: one JSON Lines file per pair and scenario.

The first line of ``fixtures/<pair>/<scenario>.jsonl`` (``<scenario>-<variant>.jsonl`` for a variant)
describes the run and its end; each further line is one request. The fields are those of
``tests/clients/fixtures.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.clients.fixtures import Fixture, Record

FOLDER: Final = Path(__file__).with_name("fixtures")


def fixture_path(pair: str, name: str) -> Path:
    """Return the path of a pair's fixture."""
    return FOLDER / pair / f"{name}.jsonl"


def load_fixture(path: Path) -> Fixture:
    """Read a fixture."""
    header, *records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return Fixture(
        client=path.parent.name,
        version=header["version"],
        scenario=header["scenario"],
        variant=header["variant"],
        description=header["description"],
        pruned=None,
        ended_at=header["ended_at"],
        ended_by=header["ended_by"],
        exit_codes=tuple(header["exit_codes"]),
        records=tuple(Record(record["at"], record["path"], record["body"]) for record in records),
    )


def write_fixture(fixture: Fixture) -> None:
    """Write a fixture, replacing an earlier one."""
    header = {
        "version": fixture.version,
        "scenario": fixture.scenario,
        "variant": fixture.variant,
        "description": fixture.description,
        "ended_at": fixture.ended_at,
        "ended_by": fixture.ended_by,
        "exit_codes": list(fixture.exit_codes),
    }
    path = fixture_path(fixture.client, fixture.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in _format_lines(header, fixture.records)), encoding="utf-8")


def _format_lines(header: dict[str, Any], records: tuple[Record, ...]) -> Iterator[str]:
    yield json.dumps(header)
    for record in records:
        request = {"at": record.at, "path": record.path, "body": record.body}
        yield json.dumps(request, ensure_ascii=False, separators=(",", ":"))
