"""Makes a fixture of a recording: ids, times, paths and names of the machine become harmless constants."""

from __future__ import annotations

import base64
import getpass
import json
import platform
import re
import socket
import sys
import zlib
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.clients.clients import Client
from tests.clients.fixtures import BEGAN, Fixture, Record, move_times
from tests.clients.install import TOOLS, pinned_version
from tests.clients.recorder import PROTOBUF, Received
from tests.clients.recording import Recording
from tests.clients.scenarios import Scenario
from tests.isolation import ROOT

HOME: Final = "/home/user"
PROJECT: Final = f"{HOME}/project"
HOST: Final = "workstation"
ADDRESS: Final = "127.0.0.1:4000"
"""What the provider's and the recorder's address becomes."""
_KERNEL: Final = "6.1.0"
_EMAIL: Final = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+")
_UUID: Final = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-([0-9a-f])[0-9a-f]{3}-([0-9a-f])[0-9a-f]{3}-[0-9a-f]{12}\b"
)
_HEXADECIMAL: Final = re.compile(r"\b(?=\d*[a-f])(?:[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{32}|[0-9a-f]{16})\b")
_ID_FIELDS: Final = ("traceId", "spanId", "parentSpanId")
_REQUESTS: Final = {"/v1/logs": ExportLogsServiceRequest, "/v1/traces": ExportTraceServiceRequest}


class Scrubber:
    """Replaces what identifies a machine, a person or a run, the same thing always by the same constant."""

    def __init__(self, seed: str, texts: Mapping[str, str]) -> None:
        self._prefix = f"{zlib.crc32(seed.encode()):08x}"
        # The longest first: a path before the folder that it is in.
        self._texts = dict(sorted(texts.items(), key=lambda item: -len(item[0])))
        self._ids: dict[str, str] = {}

    def scrub(self, value: Any) -> Any:
        """Return ``value`` with every text in it replaced."""
        if isinstance(value, dict):
            return {self._scrub_text(name): self.scrub(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self.scrub(item) for item in value]
        return self._scrub_text(value) if isinstance(value, str) else value

    def _scrub_text(self, text: str) -> str:
        for found, constant in self._texts.items():
            text = text.replace(found, constant)
        text = _EMAIL.sub("user@example.com", text)
        text = _UUID.sub(self._uuid, text)
        return _HEXADECIMAL.sub(self._hexadecimal, text)

    def _uuid(self, found: re.Match[str]) -> str:
        version, variant = found[1], found[2]
        number = len(self._ids) + 1
        constant = f"{self._prefix}-0000-{version}000-{variant}000-{number:012x}"
        return self._ids.setdefault(found[0], constant)

    def _hexadecimal(self, found: re.Match[str]) -> str:
        digits = len(found[0]) - len(self._prefix)
        return self._ids.setdefault(found[0], f"{self._prefix}{len(self._ids) + 1:0{digits}x}")


def machine_texts(recording: Recording) -> dict[str, str]:
    """Return the texts that tell this machine and this run, and what each becomes."""
    place = recording.place
    texts = {
        str(place.home): HOME,
        str(place.project): PROJECT,
        str(place.home.parent): "/tmp/run",
        # Claude Code names the folder of its transcripts after the project's path.
        re.sub(r"[^A-Za-z0-9]", "-", str(place.project)): PROJECT.replace("/", "-"),
        place.url.removeprefix("http://"): ADDRESS,
        str(TOOLS): "/opt/clients",
        str(TOOLS.resolve()): "/opt/clients",
        sys.executable: "python3",
        str(ROOT): "/opt/queenright",
        platform.release(): _KERNEL,
        platform.version(): _KERNEL,
    }
    if socket.gethostname() != "localhost":
        texts[socket.gethostname()] = HOST
    if getpass.getuser() != "root":
        texts[getpass.getuser()] = "user"
    return texts


def decode(received: Received) -> Any:
    """Return the body of a request as JSON; OTLP in its JSON mapping."""
    if received.headers.get("content-type") != PROTOBUF:
        return json.loads(received.body)
    request = _REQUESTS[received.path]()
    request.ParseFromString(received.body)
    return _hexadecimal_ids(MessageToDict(request))


def _hexadecimal_ids(value: Any) -> Any:
    """Return ``value`` with trace and span ids in hexadecimal: OTLP's JSON differs there from protobuf's."""
    if isinstance(value, dict):
        return {
            name: base64.b64decode(item).hex() if name in _ID_FIELDS else _hexadecimal_ids(item)
            for name, item in value.items()
        }
    return [_hexadecimal_ids(item) for item in value] if isinstance(value, list) else value


def make_fixture(client: Client, scenario: Scenario, variant: str, recording: Recording) -> Fixture:
    """Return the recording as a fixture, without metrics."""
    scrubber = Scrubber(f"{client.name}/{scenario.name}/{variant}", machine_texts(recording))
    records = []
    for received in recording.received:
        if received.path == "/v1/metrics":
            continue
        body = move_times(decode(received), recording.began, BEGAN - recording.began)
        records.append(Record(round(received.at - recording.began, 3), received.path, scrubber.scrub(body)))
    return Fixture(
        client=client.name,
        version=pinned_version(client),
        scenario=scenario.name,
        variant=variant,
        description=scenario.description,
        ended_at=round(recording.ended_at - recording.began, 3),
        ended_by=recording.ended_by,
        exit_codes=tuple(recording.exit_codes),
        records=tuple(records),
    )
