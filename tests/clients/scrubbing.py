"""Turns a recording into a fixture: ids, times, paths and names of the machine become constants."""

from __future__ import annotations

import base64
import getpass
import json
import platform
import re
import shutil
import socket
import sys
import time
import zlib
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.clients.clients import Client
from tests.clients.fixtures import BEGAN, Fixture, Record, move_times
from tests.clients.install import NODE, TOOLS, node_environment
from tests.clients.pruning import prune
from tests.clients.recorder import PROTOBUF, ReceivedRequest
from tests.clients.recording import Recording, Run
from tests.clients.scenarios import Scenario
from tests.isolation import ROOT

HOME: Final = "/home/user"
PROJECT: Final = f"{HOME}/project"
HOST: Final = "workstation"
PROVIDER: Final = "127.0.0.1:4000"
RECEIVER: Final = "127.0.0.1:4001"
"""The host that receives telemetry and hook calls."""
KERNEL: Final = "6.1.0"
_DATES: Final = {
    "%A, %B %-d, %Y": "Thursday, January 1, 2026",
    "%Y/%m/%d": "2026/01/01",
    "%Y-%m-%d": "2026-01-01",
}
"""The date of the recording in the formats of prompts and file names, and the constant for each."""
_EMAIL: Final = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+")
_UUID: Final = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-([0-9a-f])[0-9a-f]{3}-([0-9a-f])[0-9a-f]{3}-[0-9a-f]{12}\b"
)
_HEXADECIMAL: Final = re.compile(
    r"\b(?=\d*[a-f])(?:[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{32}|[0-9a-f]{16,17})\b"
)
_ID_FIELDS: Final = ("traceId", "spanId", "parentSpanId")
_MOST_TEXT: Final = 600
"""Maximum number of characters of a text that is not shortened."""
_KEPT_TEXT: Final = 100
_REQUESTS: Final = {"/v1/logs": ExportLogsServiceRequest, "/v1/traces": ExportTraceServiceRequest}


class Scrubber:
    """
    Replaces everything that identifies a machine, a person or a run; equal values become equal constants.

    Args:
        seed: The prefix of the fixture's ids is derived from it.
        texts: Texts to replace everywhere.
        names: Names to replace as whole words: a host may be called ``vm``.
    """

    def __init__(self, seed: str, texts: Mapping[str, str], names: Mapping[str, str]) -> None:
        self._prefix = f"{zlib.crc32(seed.encode()):08x}"
        self._constants = {**texts, **names}
        # Longest first: a path before its parent folder.
        found = sorted(map(re.escape, texts), key=len, reverse=True)
        found += [rf"\b{re.escape(name)}\b" for name in names]
        self._found = re.compile("|".join(found) or "(?!)")
        self._ids: dict[str, str] = {}

    def scrub(self, value: Any) -> Any:
        """Return ``value`` with all texts in it replaced."""
        if isinstance(value, dict):
            if value.get("key") == "process.owner":
                return {"key": "process.owner", "value": {"stringValue": "user"}}
            return {self._scrub_text(name): self.scrub(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self.scrub(item) for item in value]
        return shorten(self._scrub_text(value)) if isinstance(value, str) else value

    def _scrub_text(self, text: str) -> str:
        text = self._found.sub(lambda found: self._constants[found[0]], text)
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


def shorten(text: str) -> str:
    """Truncate a long text, such as a system prompt; in JSON, truncate the texts inside."""
    if len(text) <= _MOST_TEXT:
        return text
    try:
        return json.dumps(_shorten_inside(json.loads(text)), ensure_ascii=False)
    except ValueError:
        return f"{text[:_KEPT_TEXT]}... ({len(text)} characters)"


def _shorten_inside(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shorten_inside(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_shorten_inside(item) for item in value]
    return f"{value[:_KEPT_TEXT]}... ({len(value)} characters)" if _is_long(value) else value


def _is_long(value: Any) -> bool:
    return isinstance(value, str) and len(value) > _MOST_TEXT


def machine_texts(run: Run) -> dict[str, str]:
    """Return the texts that identify this machine and run, with the constant for each."""
    place = run.place
    texts = {
        str(place.home): HOME,
        str(place.project): PROJECT,
        str(place.home.parent): "/tmp/run",
        # Claude Code derives the name of its transcript folder from the project's path.
        re.sub(r"[^A-Za-z0-9]", "-", str(place.project)): PROJECT.replace("/", "-"),
        place.provider.removeprefix("http://"): PROVIDER,
        place.otlp.removeprefix("http://"): RECEIVER,
        str(TOOLS): "/opt/clients",
        str(TOOLS.resolve()): "/opt/clients",
        # In a worktree it is a link.
        str((ROOT / ".tools").resolve()): "/opt/tools",
        sys.executable: "python3",
        str(ROOT): "/opt/queenright",
        platform.release(): KERNEL,
        platform.version(): KERNEL,
        **{time.strftime(form, time.localtime(run.began)): text for form, text in _DATES.items()},
    }
    if (node := shutil.which(NODE, path=node_environment()["PATH"])) is not None:
        texts[node] = f"/usr/bin/{NODE}"
    return texts


def machine_names() -> dict[str, str]:
    """Return the names of the machine and the user, with the constants that replace them as words."""
    names = {socket.gethostname(): HOST, getpass.getuser(): "user"}
    return {name: constant for name, constant in names.items() if name not in {"localhost", "root"}}


def decode(received: ReceivedRequest) -> Any:
    """Return the body of a request as JSON; OTLP in its JSON mapping."""
    if received.headers.get("content-type") != PROTOBUF:
        return json.loads(received.body)
    request = _REQUESTS[received.path]()
    request.ParseFromString(received.body)
    return _hexadecimal_ids(MessageToDict(request))


def _hexadecimal_ids(value: Any) -> Any:
    """Return ``value`` with trace and span ids in hexadecimal, as OTLP's JSON requires unlike protobuf's."""
    if isinstance(value, dict):
        return {
            name: base64.b64decode(item).hex() if name in _ID_FIELDS else _hexadecimal_ids(item)
            for name, item in value.items()
        }
    return [_hexadecimal_ids(item) for item in value] if isinstance(value, list) else value


def make_fixture(
    client: Client,
    scenario: Scenario,
    variant: str,
    recording: Recording,
    *,
    version: str,
    is_pruned: bool = True,
) -> Fixture:
    """Return the recording as a fixture, without metrics."""
    run = recording.run
    scrubber = Scrubber(f"{client.name}/{scenario.name}/{variant}", machine_texts(run), machine_names())
    records = []
    for received in recording.received:
        if received.path == "/v1/metrics":
            continue
        body = move_times(decode(received), run.began, BEGAN - run.began)
        records.append(Record(round(received.at - run.began, 3), received.path, scrubber.scrub(body)))
    result, pruned = prune(records) if is_pruned else (tuple(records), None)
    return Fixture(
        client=client.name,
        version=version,
        scenario=scenario.name,
        variant=variant,
        description=scenario.description,
        pruned=pruned,
        ended_at=round(run.ended_at - run.began, 3),
        ended_by=run.ended_by,
        exit_codes=run.exit_codes,
        records=result,
    )
