"""Turn a recording into a fixture, with constants for ids, times, and the machine's paths and names."""

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
_MAX_TEXT_LENGTH: Final = 600
"""Texts with more characters are shortened."""
_KEPT_TEXT: Final = 100
_MESSAGE_TYPES: Final = {"/v1/logs": ExportLogsServiceRequest, "/v1/traces": ExportTraceServiceRequest}


class Scrubber:
    """
    Replaces everything that identifies a machine, a person or a run. Equal values become equal constants.

    Args:
        seed: The prefix of the fixture's ids is derived from it.
        texts: Texts to replace everywhere.
        names: Names to replace where they are whole words, because a host may be called ``vm``.
    """

    def __init__(self, seed: str, texts: Mapping[str, str], names: Mapping[str, str]) -> None:
        self._prefix = f"{zlib.crc32(seed.encode()):08x}"
        self._constants = {**texts, **names}
        # Longest first: a path before its parent folder.
        patterns = sorted(map(re.escape, texts), key=len, reverse=True)
        patterns += [rf"\b{re.escape(name)}\b" for name in names]
        self._pattern = re.compile("|".join(patterns) or "(?!)")
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
        text = self._pattern.sub(lambda match: self._constants[match[0]], text)
        text = _EMAIL.sub("user@example.com", text)
        text = _UUID.sub(self._replace_uuid, text)
        return _HEXADECIMAL.sub(self._replace_hexadecimal, text)

    def _replace_uuid(self, match: re.Match[str]) -> str:
        version, variant = match[1], match[2]
        number = len(self._ids) + 1
        constant = f"{self._prefix}-0000-{version}000-{variant}000-{number:012x}"
        return self._ids.setdefault(match[0], constant)

    def _replace_hexadecimal(self, match: re.Match[str]) -> str:
        digits = len(match[0]) - len(self._prefix)
        return self._ids.setdefault(match[0], f"{self._prefix}{len(self._ids) + 1:0{digits}x}")


def shorten(text: str) -> str:
    """Truncate a long text, such as a system prompt; in JSON, truncate the texts inside."""
    if len(text) <= _MAX_TEXT_LENGTH:
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
    return isinstance(value, str) and len(value) > _MAX_TEXT_LENGTH


def list_machine_texts(run: Run) -> dict[str, str]:
    """Return the texts that identify this machine and run, with the constant for each."""
    setup = run.setup
    texts = {
        str(setup.home): HOME,
        str(setup.project): PROJECT,
        str(setup.home.parent): "/tmp/run",
        # Claude Code derives the name of its transcript folder from the project's path.
        re.sub(r"[^A-Za-z0-9]", "-", str(setup.project)): PROJECT.replace("/", "-"),
        setup.provider.removeprefix("http://"): PROVIDER,
        setup.otlp.removeprefix("http://"): RECEIVER,
        str(TOOLS): "/opt/clients",
        str(TOOLS.resolve()): "/opt/clients",
        # In a Git worktree, this folder is a link.
        str((ROOT / ".tools").resolve()): "/opt/tools",
        sys.executable: "python3",
        str(ROOT): "/opt/queenright",
        platform.release(): KERNEL,
        platform.version(): KERNEL,
        **{time.strftime(form, time.localtime(run.started_at)): text for form, text in _DATES.items()},
    }
    if (node := shutil.which(NODE, path=node_environment()["PATH"])) is not None:
        texts[node] = f"/usr/bin/{NODE}"
    return texts


def list_machine_names() -> dict[str, str]:
    """Return the names of the machine and the user, with the constant for each."""
    names = {socket.gethostname(): HOST, getpass.getuser(): "user"}
    return {name: constant for name, constant in names.items() if name not in {"localhost", "root"}}


def decode_request(request: ReceivedRequest) -> Any:
    """Return the body of a request as a JSON value; OTLP is in its JSON mapping."""
    if request.headers.get("content-type") != PROTOBUF:
        return json.loads(request.body)
    message = _MESSAGE_TYPES[request.path]()
    message.ParseFromString(request.body)
    return _encode_ids_as_hexadecimal(MessageToDict(message))


def _encode_ids_as_hexadecimal(value: Any) -> Any:
    """Return ``value`` with trace and span ids in hexadecimal: OTLP's JSON differs from protobuf's here."""
    if isinstance(value, dict):
        return {
            name: base64.b64decode(item).hex() if name in _ID_FIELDS else _encode_ids_as_hexadecimal(item)
            for name, item in value.items()
        }
    return [_encode_ids_as_hexadecimal(item) for item in value] if isinstance(value, list) else value


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
    scrubber = Scrubber(
        f"{client.name}/{scenario.name}/{variant}", list_machine_texts(run), list_machine_names()
    )
    records = []
    for request in recording.requests:
        if request.path == "/v1/metrics":
            continue
        body = move_times(decode_request(request), run.started_at, BEGAN - run.started_at)
        records.append(Record(round(request.at - run.started_at, 3), request.path, scrubber.scrub(body)))
    result, pruned = prune(records) if is_pruned else (tuple(records), None)
    return Fixture(
        client=client.name,
        version=version,
        scenario=scenario.name,
        variant=variant,
        description=scenario.description,
        pruned=pruned,
        ended_at=round(run.ended_at - run.started_at, 3),
        ended_by=run.ended_by,
        exit_codes=run.exit_codes,
        records=result,
    )
