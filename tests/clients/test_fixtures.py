from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from queenright.server.otlp.encoding import MediaType, parse_message
from tests.clients.clients import CLIENTS, list_runs
from tests.clients.fixtures import (
    BEGAN,
    FOLDER,
    Record,
    list_fixture_paths,
    load_fixture,
    move_times,
)
from tests.clients.install import pinned_version
from tests.clients.pruning import prune
from tests.clients.recording import FOLDER_PREFIX
from tests.clients.scenarios import SCENARIOS
from tests.clients.scrubbing import HOST, KERNEL, Scrubber

PATHS = list_fixture_paths()
REQUESTS = {"/v1/logs": ExportLogsServiceRequest, "/v1/traces": ExportTraceServiceRequest}
ABSOLUTE = re.compile(r"(?<![\w.:/~*<-])/[A-Za-z][\w./-]*")
HARMLESS = re.compile(
    r"/(?:home/user|tmp/run|opt/clients|opt/queenright|usr|bin|dev/null|v1|hooks|responses)(?:/|$|\W)"
)
KEYS = re.compile(
    r"\b(?:sk-(?!ant-scripted)[\w-]{8,}|AIza[\w-]{8,}|gh[pousr]_\w{8,}|AKIA\w{8,}|eyJ[\w-]{8,})"
)
EMAILS = re.compile(r"[\w.+-]+@[\w-]+\.[a-z]{2,}")
URLS = re.compile(r"[a-z]+://([\w.-]+)")


def list_texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(text for item in value.values() for text in list_texts(item))]
    if isinstance(value, list):
        return [text for item in value for text in list_texts(item)]
    return [value] if isinstance(value, str) else []


def list_attributes(value: Any) -> list[tuple[str, Any]]:
    """Return the key and text of every attribute in an OTLP body."""
    if isinstance(value, list):
        return [pair for item in value for pair in list_attributes(item)]
    if not isinstance(value, dict):
        return []
    attribute = [(value["key"], value["value"].get("stringValue"))] if {"key", "value"} == set(value) else []
    return attribute + [pair for item in value.values() for pair in list_attributes(item)]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}/{path.stem}")
class TestFixture:
    def test_content_matches_the_file_name(self, path: Path) -> None:
        fixture = load_fixture(path)

        assert fixture.path == path
        assert fixture.scenario in SCENARIOS
        assert fixture.variant in CLIENTS[fixture.client].variants
        assert fixture.version == pinned_version(CLIENTS[fixture.client])
        assert fixture.records
        assert [record.at for record in fixture.records] == sorted(record.at for record in fixture.records)

    def test_bodies_are_otlp_or_hook_calls(self, path: Path) -> None:
        for record in load_fixture(path).records:
            if record.path in REQUESTS:
                message = parse_message(
                    json.dumps(record.body).encode(), MediaType.JSON, REQUESTS[record.path]
                )
                assert message.ByteSize()
            else:
                assert record.path == f"/hooks/{path.parent.name}"
                assert record.body["hook_event_name"]
                assert record.body["session_id"]

    def test_times_are_those_of_the_recording(self, path: Path) -> None:
        fixture = load_fixture(path)

        iso_times = re.findall(r"\b20\d\d-\d\d-\d\dT[\d:.]+Z", path.read_text(encoding="utf-8"))
        seconds = [datetime.fromisoformat(text).timestamp() - BEGAN for text in iso_times]

        assert all(-1 <= second <= fixture.ended_at + 30 for second in seconds)

    def test_moves_to_another_time_as_a_whole(self, path: Path) -> None:
        fixture = load_fixture(path)

        moved = list(fixture.moved(BEGAN + 3_600))

        assert [record.at for record in moved] == [record.at for record in fixture.records]
        assert "2026-01-01T00:" not in json.dumps([record.body for record in moved])
        moved_back = [move_times(record.body, BEGAN + 3_600, -3_600) for record in moved]
        assert moved_back == [record.body for record in fixture.records]

    def test_contains_nothing_of_the_recording_machine(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        strings = list_texts(json.loads(text))

        # "/root" alone is the name of Codex's main agent.
        strings = [string for string in strings if string != "/root"]
        assert [
            absolute_path
            for string in strings
            for absolute_path in ABSOLUTE.findall(string)
            if not HARMLESS.match(absolute_path)
        ] == []
        assert FOLDER_PREFIX not in text
        assert KEYS.findall(text) == []
        assert set(EMAILS.findall(text)) <= {"user@example.com"}
        assert {host for string in strings for host in URLS.findall(string)} <= {
            "127.0.0.1",
            "json-schema.org",
        }
        attributes = list_attributes(json.loads(text))
        assert {value for key, value in attributes if key == "host.name"} <= {HOST}
        assert {value for key, value in attributes if key == "os.version"} <= {KERNEL}
        assert {value for key, value in attributes if key == "process.owner"} <= {"user"}


def test_every_client_is_recorded_in_every_scenario() -> None:
    assert set(PATHS) == {
        FOLDER / client / f"{f'{scenario}-{variant}' if variant else scenario}.json"
        for client, scenario, variant in list_runs(CLIENTS, SCENARIOS)
    }


@given(
    seconds=st.integers(-80_000, 80_000),
    offset=st.integers(-(10**9), 10**9),
    unit=st.sampled_from([1, 10**3, 10**6, 10**9]),
)
def test_times_move_in_every_unit_and_back(seconds: int, offset: int, unit: int) -> None:
    time = round((BEGAN + seconds) * unit)
    body = {"timeUnixNano": str(time), "at": [time], "duration_ms": 1234, "is": True, "text": "12 lines"}

    moved_body = move_times(body, BEGAN, offset)

    assert moved_body == {**body, "timeUnixNano": str(time + offset * unit), "at": [time + offset * unit]}
    assert move_times(moved_body, BEGAN + offset, -offset) == body


def test_written_times_move_and_those_of_other_days_do_not() -> None:
    times = ["2026-01-01T00:00:01.250Z", "since 2026-01-01T00:00:01Z", "2024-05-01T00:00:00.000Z"]

    moved = move_times(times, BEGAN, 60)

    assert moved == ["2026-01-01T00:01:01.250Z", "since 2026-01-01T00:01:01.000Z", times[2]]


def test_scrubbing_replaces_identifiers_with_constants_of_equal_format() -> None:
    session, trace, user = (
        "03ddecdb-7e38-4ef1-b25f-be242c405954",
        "4bf92f3577b34da6a3ce929d0e0e4736",
        "ab" * 32,
    )
    replaced_texts = {"/data/ada": "/home/user", "/data/ada/project": "/home/user/code"}
    scrubber = Scrubber("client/scenario", replaced_texts, {"vm": "workstation"})

    scrubbed = scrubber.scrub(
        [
            session,
            {"trace": trace, user: f"cat /data/ada/project/x; ls /data/ada # {session}"},
            "ada@hive.org",
            "vm: svm",
            7,
        ]
    )

    assert re.fullmatch(r"\w{8}-0000-4000-b000-000000000001", scrubbed[0])
    assert scrubbed[1] == {
        "trace": f"{scrubbed[0][:8]}{2:024x}",
        f"{scrubbed[0][:8]}{3:056x}": f"cat /home/user/code/x; ls /home/user # {scrubbed[0]}",
    }
    assert scrubbed[2:] == ["user@example.com", "workstation: svm", 7]
    assert Scrubber("client/other", {}, {}).scrub(session)[:8] != scrubbed[0][:8]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_fixture_is_pruned_and_has_one_record_per_line(path: Path) -> None:
    fixture = load_fixture(path)

    assert len(path.read_text(encoding="utf-8").splitlines()) == len(fixture.records) + 2
    assert prune(fixture.records) == (fixture.records, None)


def log_record(name: str, **attributes: str) -> dict[str, Any]:
    pairs = {"event.name": name, **attributes}.items()
    return {"attributes": [{"key": key, "value": {"stringValue": value}} for key, value in pairs]}


def test_pruning_keeps_first_client_report_and_the_whole_run() -> None:
    noise, work = log_record("hook_registered"), log_record("tool_result", tool_name="Bash")

    def request(*items: dict[str, Any]) -> Record:
        return Record(1.0, "/v1/logs", {"resourceLogs": [{"scopeLogs": [{"logRecords": list(items)}]}]})

    pruned, note = prune([request(noise, work, noise), request(noise), request(work)])

    assert pruned == (request(noise, work), request(work))
    assert note is not None
    assert note.startswith("2 of 5 records and spans")
