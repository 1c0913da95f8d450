"""The process that telemetry comes from, read off the resource that comes with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from queenright.instrumentation import names
from queenright.instrumentation.identity import NAME_LIMIT, clean_name
from queenright.server.telemetry.values import MAX_ATTRIBUTES, id_in, plain_of, text_of

_MAX_TEXTS: Final = 4_096

UNKNOWN_SERVICE: Final = "unknown_service"

RESOURCE_ATTRIBUTES: Final[Mapping[str, str]] = {
    "service": names.SERVICE_NAME,
    "instance": names.SERVICE_INSTANCE_ID,
    "agent": names.GEN_AI_AGENT_NAME,
    "incarnation": names.INCARNATION_ID,
    "version": "service.version",
    "user": "user.name",
    "host": "host.name",
    "repository": "vcs.repository.name",
}

PROCESS_ATTRIBUTES: Final[frozenset[str]] = frozenset(
    {
        "service.namespace",
        names.SERVICE_NAME,
        "host.id",
        "host.name",
        "container.id",
        "k8s.pod.uid",
        "k8s.pod.name",
        "process.pid",
        "process.creation.time",
    }
)
"""What tells one process from another where no ``service.instance.id`` is set."""


@dataclass(frozen=True, slots=True)
class Process:
    """The process that a record comes from, as its resource says."""

    service: str
    agent: str
    """An agent's name given to the whole process, or ""."""
    incarnation_id: str
    is_own: bool
    """It says that it is instrumented by Queenright."""
    version: str = ""
    owner: str = ""
    """The person and host that it says it belongs to: ``ada@laptop``, or one of them."""
    repository: str = ""
    _texts: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Names and ids of this request: most are on several of its spans, and cleaning one costs 0.5 µs."""

    def text_of(self, value: AnyValue) -> str:
        """Return a value as `values.text_of` does, and remember it for this request."""
        text = value.string_value
        found = self._texts.get(text)
        if found is None:
            found = text_of(value)
            if text and len(self._texts) < _MAX_TEXTS:
                self._texts[text] = found
        return found

    def id_in(self, value: Any) -> str:
        """Return a JSON value as `values.id_in` does, and remember it for this request."""
        if not isinstance(value, str):
            return ""
        found = self._texts.get(value)
        if found is None:
            found = id_in(value)
            if len(self._texts) < _MAX_TEXTS:
                self._texts[value] = found
        return found

    @classmethod
    def from_resource(cls, resource: Resource) -> Process:
        """Read the resource; a process that gives itself no instance id is known by its host, pod and pid."""
        found = {a.key: a.value for a in islice(resource.attributes, MAX_ATTRIBUTES)}
        texts = {name: text_of(found.get(key)) for name, key in RESOURCE_ATTRIBUTES.items()}
        incarnation = texts["incarnation"] or texts["instance"]
        if not incarnation:
            marks = sorted((k, str(plain_of(v))) for k, v in found.items() if k in PROCESS_ATTRIBUTES)
            incarnation = blake2b(repr(marks).encode(errors="replace"), digest_size=8).hexdigest()
        return cls(
            service=texts["service"] or UNKNOWN_SERVICE,
            agent=texts["agent"],
            incarnation_id=incarnation,
            is_own=bool(texts["incarnation"]),
            version=texts["version"],
            owner="@".join(name for name in (texts["user"], texts["host"]) if name),
            repository=texts["repository"],
        )

    def name_of(self, client: str) -> str:
        """Return a name that says whose a coding agent is: ``claude-code/ada@laptop/website``."""
        return client_name(client, self.owner, self.repository)


def client_name(client: str, owner: str, repository: str) -> str:
    """Return what the sessions of a coding agent are called, of what is known."""
    name = "/".join(part for part in (client, owner, repository) if part)
    return name if len(name) <= NAME_LIMIT else clean_name(name)
