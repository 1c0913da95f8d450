"""The process that sent telemetry, read from its OpenTelemetry resource."""

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
from queenright.server.telemetry.values import (
    MAX_ATTRIBUTES,
    clean_id,
    get_folder_name,
    read_text,
    to_json_value,
)

_MAX_CACHED_TEXTS: Final = 4_096

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
    "repository_url": "vcs.repository.url.full",
    "email": "user.email",
    "end_user": "enduser.id",
    "namespace": "service.namespace",
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
"""Attributes that identify a process that has no ``service.instance.id``."""


@dataclass(frozen=True, slots=True)
class Process:
    """The process that sent a record, according to its resource."""

    service: str
    agent: str
    """The agent's name in the resource, which applies to the whole process, or ""."""
    incarnation_id: str
    is_own: bool
    """Whether it is instrumented by Queenright."""
    version: str = ""
    owner: str = ""
    """User and host, such as ``ada@laptop``, or one of them."""
    user: str = ""
    """The user: ``ada@laptop``, an email address, an end user's id or a namespace; or ""."""
    repository: str = ""
    _texts: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Cache of cleaned names and ids of this request. Most repeat, and cleaning one takes 0.5 µs."""

    def read_text(self, value: AnyValue) -> str:
        """Return the result of `values.read_text`, cached for this request."""
        text = value.string_value
        cached_text = self._texts.get(text)
        if cached_text is None:
            cached_text = read_text(value)
            if text and len(self._texts) < _MAX_CACHED_TEXTS:
                self._texts[text] = cached_text
        return cached_text

    def clean_id(self, value: Any) -> str:
        """Return the result of `values.clean_id`, cached for this request."""
        if not isinstance(value, str):
            return ""
        cached_text = self._texts.get(value)
        if cached_text is None:
            cached_text = clean_id(value)
            if len(self._texts) < _MAX_CACHED_TEXTS:
                self._texts[value] = cached_text
        return cached_text

    @classmethod
    def from_resource(cls, resource: Resource) -> Process:
        """Read a resource. A process without an instance id is identified by its host, pod and pid."""
        attributes = {a.key: a.value for a in islice(resource.attributes, MAX_ATTRIBUTES)}
        texts = {name: read_text(attributes.get(key)) for name, key in RESOURCE_ATTRIBUTES.items()}
        incarnation = texts["incarnation"] or texts["instance"]
        if not incarnation:
            identifying_attributes = sorted(
                (k, str(to_json_value(v))) for k, v in attributes.items() if k in PROCESS_ATTRIBUTES
            )
            incarnation = blake2b(
                repr(identifying_attributes).encode(errors="replace"), digest_size=8
            ).hexdigest()
        owner = "@".join(name for name in (texts["user"], texts["host"]) if name)
        return cls(
            service=texts["service"] or UNKNOWN_SERVICE,
            agent=texts["agent"],
            incarnation_id=incarnation,
            is_own=bool(texts["incarnation"]),
            version=texts["version"],
            owner=owner,
            user=(texts["user"] and owner) or texts["email"] or texts["end_user"] or texts["namespace"],
            repository=texts["repository"] or get_folder_name(texts["repository_url"]).removesuffix(".git"),
        )

    def get_client_name(self, client: str) -> str:
        """Return a coding agent's name, such as ``claude-code/ada@laptop/website``."""
        return make_client_name(client, self.owner, self.repository)


def make_origin(user: str, repository: str) -> dict[str, str]:
    """Return the user and repository of an agent, as in events. Unknown parts are absent."""
    return {key: value for key, value in (("owner", user), ("repository", repository)) if value}


def make_client_name(client: str, owner: str, repository: str) -> str:
    """Return the agent name for sessions of a coding agent, from its known parts."""
    name = "/".join(part for part in (client, owner, repository) if part)
    return name if len(name) <= NAME_LIMIT else clean_name(name)
