"""
All settings, in one table.

Precedence: argument > ``QUEENRIGHT_*`` environment > ``queenright.yaml`` > default.

In the environment a nested name is joined by two underscores:
``QUEENRIGHT_HEALTH_MONITORING__STALL__IDLE_SECONDS=300``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from difflib import get_close_matches
from json import JSONDecodeError
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, get_args
from urllib.parse import urlsplit, urlunsplit

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from queenright.alerting.settings import AlertingSettings
from queenright.health.settings import HealthSettings
from queenright.instrumentation.errors import InvalidValueError
from queenright.instrumentation.http_url import http_url
from queenright.instrumentation.redaction import MASK
from queenright.instrumentation.validation_messages import Fault, read_faults
from queenright.judge.settings import JudgeSettings

ENV_PREFIX = "QUEENRIGHT_"
DEFAULT_FILE = Path("queenright.yaml")
_NON_SETTING_VARIABLES = {
    "QUEENRIGHT_ENDPOINT",
    "QUEENRIGHT_TOKEN",
    "QUEENRIGHT_TOKEN_FILE",
    "QUEENRIGHT_TRACES",
    "QUEENRIGHT_URL",
}
"""Queenright's environment variables that are not settings: addresses, tokens and recorded runs."""

_SECRET_SETTINGS = frozenset({"database", "forward", "nats", "webhook_url", "prometheus_url", "tempo_url"})
"""Settings whose values are masked in messages, because they may hold a password or a token."""

_LOOPBACK_BY_WILDCARD: Mapping[str, str] = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The loopback address that reaches a service which listens on all addresses."""

_AnyBlock = TypeVar("_AnyBlock", bound=BaseModel)

Host = Annotated[str, Field(min_length=1)]
Port = Annotated[int, Field(ge=0, le=65_535)]


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HttpSettings(_Block):
    """Where the API and the console listen."""

    host: Host = "127.0.0.1"
    """Address to listen on. Any address other than loopback requires tokens."""
    port: Port = 8420
    """TCP port; 0: any free port."""


class AuthSettings(_Block):
    """Authentication. `queenright token create` makes tokens."""

    tokens_file: Path | None = None
    """File with the hashes of the tokens; None: ``tokens.json`` in ``storage``."""
    required: bool = False
    """Require a token on loopback too. Other addresses always require one."""


class AgentsSettings(_Block):
    """Agents that run inside the service."""

    roots: tuple[Path, ...] = (Path("agents"), Path("exports"))
    """Folders below which agents are found and loaded. Loading runs their code."""
    storage: Path | None = None
    """Folder for the sessions of agents; None: ``agents`` in ``storage`` for `queenright up`, else
    ``~/.queenright/agents``, as for `queenright run`."""
    load: tuple[Path, ...] = ()
    """Folders of agents to load at start, or their names below a root; empty: none."""


class OtlpSettings(_Block):
    """Where agents send telemetry."""

    host: Host = "127.0.0.1"
    """Address to listen on. Any address other than loopback requires tokens."""
    port: Port = 4318
    """TCP port; 0: any free port."""
    forward: Annotated[str | None, Field(repr=False)] = None
    """OTLP/HTTP base URL to which all telemetry is forwarded unchanged; None: do not forward."""

    @field_validator("forward")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        try:
            parts = urlsplit(url or "http://none")
            is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # the host or the port is invalid
            is_valid = False
        if not is_valid:
            raise ValueError("it must be a URL like https://collector.example.com:4318")
        return url

    @field_serializer("forward", when_used="json")
    def _remove_credentials(self, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class ClusterSettings(_Block):
    """Several processes that share one PostgreSQL database. If one fails, another takes over its workers."""

    nats: Annotated[str | None, Field(repr=False)] = None
    """Comma-separated addresses of NATS servers with JetStream, such as ``nats://host:4222``; None: a single
    process."""
    host: str | None = None
    """Name or address by which the other processes reach this one; None: the machine's name."""
    replicas: Annotated[int, Field(ge=1, le=5)] = 1
    """Copies of acknowledged telemetry among the NATS servers. With 3, it survives the loss of one server."""
    partitions: Annotated[int, Field(ge=1, le=64)] = 1
    """Parts of the fleet, which the processes share. All processes need the same number."""
    max_backlog_bytes: Annotated[int, Field(ge=1 << 20)] = 1 << 30
    """Bytes of acknowledged telemetry that may wait to be stored. Above this, telemetry is refused."""

    @field_validator("nats")
    @classmethod
    def _check_addresses(cls, addresses: str | None) -> str | None:
        for address in (addresses or "nats://none").split(","):
            parts = urlsplit(address.strip())
            if parts.scheme not in ("nats", "tls") or not parts.hostname:
                raise ValueError("it must be addresses like nats://nats-1:4222,nats://nats-2:4222")
        return addresses

    @field_serializer("nats", when_used="json")
    def _mask_passwords(self, addresses: str | None) -> str | None:
        return addresses and re.sub(r"://[^,]*@", f"://{MASK}@", addresses)


_lower_sources: ContextVar[tuple[dict[str, Any], ...]] = ContextVar("_lower_sources", default=())
"""Values that the environment overrides, set while settings are read: from the file, then the defaults."""


@dataclass(frozen=True, slots=True, eq=False)
class _Origin:
    """Settings as they were read, and a function that reads them again."""

    settings: Settings
    read: Callable[[], Settings]


class Settings(BaseSettings):
    """All settings. Unknown keys and invalid values are rejected."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    storage: Path = Path(".queenright")
    """Folder of the database, generated configuration and logs."""
    database: Annotated[str | None, Field(repr=False)] = None
    """``postgresql://user:password@host/name``; None: a SQLite file in ``storage``."""
    http: HttpSettings = HttpSettings()
    auth: AuthSettings = AuthSettings()
    agents: AgentsSettings = AgentsSettings()
    otlp: OtlpSettings = OtlpSettings()
    cluster: ClusterSettings = ClusterSettings()
    health_monitoring: HealthSettings = HealthSettings()
    judging: JudgeSettings = JudgeSettings()
    alerting: AlertingSettings = AlertingSettings()
    step_logs: tuple[Path, ...] = ()
    """Folders with ``sessions/{id}/logs/tool_logs.jsonl`` of workers that send no telemetry; empty: none."""

    @model_validator(mode="after")
    def _require_distinct_ports(self) -> Self:
        hosts = {host.replace("localhost", "127.0.0.1") for host in (self.http.host, self.otlp.host)}
        # On two different addresses, both may have the same port.
        if self.http.port == self.otlp.port != 0 and (
            len(hosts) == 1 or hosts & _LOOPBACK_BY_WILDCARD.keys()
        ):
            raise ValueError(
                f"http.port and otlp.port are both {self.http.port}; give each its own port, or 0 for "
                "any free one"
            )
        return self

    @model_validator(mode="after")
    def _require_shared_database(self) -> Self:
        if self.cluster.nats is not None and not (self.database or "").startswith("postgres"):
            raise ValueError(
                "cluster.nats needs a database that the processes share; set database to an address like "
                "postgresql://user:password@host/queenright"
            )
        return self

    @field_validator("database")
    @classmethod
    def _check_address(cls, url: str | None) -> str | None:
        if url is not None:
            # Imported here: it needs SQLAlchemy.
            from queenright.health.store.database import StoreError
            from queenright.health.store.engines import parse_address

            try:
                parse_address(url)
            except StoreError as error:
                raise ValueError(str(error)) from None
        return url

    @field_serializer("database", when_used="json")
    def _mask_password(self, url: str | None) -> str | None:
        if url is None:
            return None
        shown_url = re.sub(r"://([^:/@]*):.*@", rf"://\1:{MASK}@", url)
        return re.sub(r"(?i)([?&][^=&]*passw[^=&]*=)[^&]*", rf"\1{MASK}", shown_url)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources, highest precedence first. Pydantic merges nested blocks key by key."""
        lower_sources = (InitSettingsSource(settings_cls, values) for values in _lower_sources.get())
        return init_settings, env_settings, *lower_sources

    _origin: _Origin | None = PrivateAttr(default=None)

    @property
    def as_read(self) -> Settings | None:
        """The settings as read, even if this is a changed copy. None unless ``load_settings`` read them."""
        return self._origin.settings if self._origin else None

    def read_again(self) -> Settings | None:
        """
        Return settings read from the current file and environment, with the same arguments as before.

        Return None unless ``load_settings`` read these. Raises ``InvalidSettingsError`` as it does.
        """
        return self._origin.read() if self._origin else None

    def with_console_url(self) -> Settings:
        """Return the settings with ``console_url`` set to the service's own URL, unless it is set."""
        if "console_url" in self.alerting.model_fields_set or self.http.port == 0:
            return self
        host = _LOOPBACK_BY_WILDCARD.get(self.http.host, self.http.host)
        url = http_url(host, self.http.port)
        return self.model_copy(update={"alerting": self.alerting.model_copy(update={"console_url": url})})

    @property
    def database_url(self) -> str:
        """The store's SQLAlchemy URL."""
        return self.database or f"sqlite:///{self.storage / 'queenright.db'}"


class InvalidSettingsError(InvalidValueError):
    """Raised when a setting is invalid. The message has its path, its value and the allowed values."""


def load_settings(
    file: Path | None = None, *, defaults: Mapping[str, Any] | None = None, **arguments: Any
) -> Settings:
    """
    Read the settings.

    Args:
        file: The YAML file; by default ``queenright.yaml`` in the current folder, if it exists.
        defaults: Override the built-in defaults.
        arguments: Values from the command line, nested like the settings.

    Returns:
        The settings. Paths are absolute, so they stay valid if the process changes its working folder.

    Raises:
        InvalidSettingsError: A setting is invalid. The message has a line for each fault.
    """
    return _load(Path.cwd(), file, defaults, arguments)


def _load(
    folder: Path, file_argument: Path | None, defaults: Mapping[str, Any] | None, arguments: dict[str, Any]
) -> Settings:
    """Read the settings relative to a folder, because an agent in this process may have changed directory."""
    file = file_argument
    if file is None and (folder / DEFAULT_FILE).is_file():
        file = DEFAULT_FILE
    # Read once: a pipe, such as the shell's <(...), is empty the second time.
    content = {} if file is None else _read_settings_file(folder / file, file)
    is_pipe = file is not None and (folder / file).is_fifo()
    _reject_unknown_variables()

    def read() -> Settings:
        if file is not None and is_pipe:
            raise InvalidSettingsError(
                f"{file} is a pipe that was read when the service started; to change settings, restart "
                "the service, or start it with a file."
            )
        return _load(folder, file_argument, defaults, arguments)

    context_token = _lower_sources.set((content, dict(defaults or {})))
    try:
        settings = _resolve_paths(Settings(**arguments), folder)
    except ValidationError as error:
        raise InvalidSettingsError(_explain_errors(error, file)) from None
    except SettingsError as error:
        raise InvalidSettingsError(_explain_environment(error)) from None
    finally:
        _lower_sources.reset(context_token)
    # Copies share the origin, because their changes were not read.
    settings._origin = _Origin(settings, read)
    return settings


def _explain_environment(error: SettingsError) -> str:
    """Return which variable is not valid JSON, and why. The value is left out: it may have a password."""
    cause = error.__cause__ or error.__context__
    if not isinstance(cause, JSONDecodeError):
        return f"The environment holds a setting that cannot be read: {error}."
    name = next((name for name, value in os.environ.items() if value == cause.doc), f"{ENV_PREFIX}...")
    return (
        f"The environment variable {name} is not valid JSON ({cause.msg}, character {cause.pos + 1}); "
        'write a mapping as {"name": "value"} and a list as ["value"], or set one setting of a block by its '
        f"own variable, such as {ENV_PREFIX}HTTP__PORT=8420."
    )


def _resolve_paths(block: _AnyBlock, folder: Path) -> _AnyBlock:
    """Return settings whose relative paths are made absolute. The set of explicit fields is unchanged."""
    changes: dict[str, Any] = {}
    for name in type(block).model_fields:
        value = getattr(block, name)
        if isinstance(value, BaseModel):
            changes[name] = _resolve_paths(value, folder)
        elif isinstance(value, Path):
            changes[name] = folder / value
        elif isinstance(value, tuple) and any(isinstance(item, Path) for item in value):
            # `agents.load` may hold names below a root, which are not relative to this folder.
            may_be_name = name == "load"
            changes[name] = tuple(
                item if may_be_name and not (folder / item).exists() else folder / item for item in value
            )
    resolved_block = block.model_copy(update=changes)
    resolved_block.__pydantic_fields_set__ = set(block.model_fields_set)
    return resolved_block


def _read_settings_file(path: Path, display_name: Path) -> dict[Any, Any]:
    """Return the settings in a file. Error messages name it ``display_name``."""
    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
        root = loader.get_single_node()
        _reject_ambiguous_yaml(root, display_name)
        content = None if root is None else loader.construct_document(root)
    except OSError as error:
        raise InvalidSettingsError(
            f"{display_name} cannot be read ({error.strerror}); pass another file with --config."
        ) from None
    except RecursionError:
        raise InvalidSettingsError(
            f"{display_name} is nested too deeply; settings have four levels."
        ) from None
    except UnicodeDecodeError:
        raise InvalidSettingsError(f"{display_name} is not UTF-8 text; save it as UTF-8.") from None
    except yaml.YAMLError as error:
        raise InvalidSettingsError(_explain_yaml_error(error, display_name)) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        kind = "list" if isinstance(content, list) else "single value"
        raise InvalidSettingsError(
            f"{display_name} contains a {kind}; it must be a mapping of settings, such as "
            "`http: {port: 8420}`."
        )
    return content


def _explain_yaml_error(error: yaml.YAMLError, file: Path) -> str:
    """Return the position of an error and its cause. The line is left out, because it may have a password."""
    position, problem = "", "it contains a character that YAML does not allow"
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        position = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        parts = (error.context, error.problem)
        # PyYAML quotes names and values of the file, such as anchors and tags, and single characters.
        text = ", ".join(part for part in parts if part)
        problem = re.sub(r"""(['"])(.*?)\1""", lambda match: match[0] if len(match[2]) < 2 else "...", text)
    return f"{file} is not valid YAML{position}: {problem}; check quotes, brackets and indentation there."


def _reject_ambiguous_yaml(root: yaml.Node | None, file: Path) -> None:
    """
    Reject valid YAML that the author probably did not intend.

    These are duplicate keys in a mapping, of which YAML uses the last; `on` or `yes` as a name or a number;
    and NUL characters.
    """
    pending_nodes: list[tuple[yaml.Node | None, tuple[str, ...]]] = [(root, ())]
    visited: set[int] = set()
    while pending_nodes:
        node, path = pending_nodes.pop()
        if id(node) in visited:  # an alias
            continue
        visited.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            pending_nodes += [(item, path) for item in node.value]
        elif isinstance(node, yaml.MappingNode):
            lines: dict[str, int] = {}
            for key, value in node.value:
                key_text = key.value if isinstance(key, yaml.ScalarNode) else "a list or mapping"
                key_path, line = (*path, key_text), key.start_mark.line + 1
                name = ".".join(key_path)
                if not path and key.tag != "tag:yaml.org,2002:str":
                    raise InvalidSettingsError(
                        f"{file}, line {line}: {name} is not a name in YAML; the settings here are "
                        f"{', '.join(_list_setting_names(()))}."
                    )
                if name in lines:
                    raise InvalidSettingsError(
                        f"{file}, line {line}: {name} is already set in line {lines[name]}; "
                        "keep one of the two."
                    )
                lines[name] = line
                pending_nodes.append((value, key_path))
        elif isinstance(node, yaml.ScalarNode):
            location = f"{file}, line {node.start_mark.line + 1}: {'.'.join(path)}"
            if "\0" in node.value:
                raise InvalidSettingsError(f"{location} contains a NUL character; remove it.")
            if node.tag == "tag:yaml.org,2002:bool" and _is_numeric_setting(path):
                raise InvalidSettingsError(f"{location} is {node.value}; it must be a number.")


def _reject_unknown_variables() -> None:
    setting_names = sorted(name.upper() for name in Settings.model_fields)
    for name in sorted(os.environ):
        top, *below = name.upper().removeprefix(ENV_PREFIX).split("__")
        variable = ENV_PREFIX + top
        if (
            name.upper().startswith(ENV_PREFIX)
            and top not in setting_names
            and variable not in _NON_SETTING_VARIABLES
        ):
            suggestion = _find_closest(top, setting_names)
            hint = f" Did you mean {ENV_PREFIX}{'__'.join((suggestion, *below))}?" if suggestion else ""
            raise InvalidSettingsError(
                f"The environment variable {name} is not a setting.{hint or ' Unset it.'}"
            )


def _find_closest(name: str, setting_names: Sequence[str]) -> str | None:
    """Return the known name that is closest to a misspelled one, or None."""
    matches = get_close_matches(name, setting_names, 1, cutoff=0.8)
    # Names of four letters have a ratio of 0.75 with one letter changed or two swapped.
    if not matches and len(name) <= 4:
        matches = get_close_matches(name, setting_names, 1, cutoff=0.75)
    return matches[0] if matches else None


def _explain_errors(error: ValidationError, file: Path | None) -> str:
    """Return a line for each fault: path, value and allowed values. Secrets are masked."""
    lines = [f"Settings refused ({file or 'environment and arguments'}):"]
    lines += (f"  {_explain_fault(fault)}" for fault in read_faults(error.errors(include_url=False)))
    return "\n".join(lines)


def _explain_fault(fault: Fault) -> str:
    location = fault.where
    if fault.kind == "extra_forbidden":
        allowed_names = _list_setting_names(fault.path[:-1])
        suggestion = _find_closest(str(fault.path[-1]), allowed_names)
        hint = f"Did you mean {suggestion}?" if suggestion else f"Known settings: {', '.join(allowed_names)}."
        return f"{location}: no such setting. {hint}"
    if not location:  # a fault in a combination of settings: the message has their names and values
        return f"{fault.message}."
    if fault.kind == "model_type":
        allowed_names = _list_setting_names(fault.path)
        options = f"; known settings: {', '.join(allowed_names)}" if allowed_names else ""
        fault = replace(fault, message=f"it must be a mapping of settings{options}")
    if _SECRET_SETTINGS.intersection(fault.path):
        fault = replace(fault, value=MASK)
    line = fault.describe()
    return line if line.endswith("?") else f"{line}."


def _find_block(path: Sequence[int | str]) -> type[BaseModel] | None:
    block: type[BaseModel] = Settings
    for part in path:
        field = block.model_fields.get(str(part))
        annotation = field.annotation if field else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return None
        block = annotation
    return block


def _list_setting_names(path: Sequence[int | str]) -> list[str]:
    block = _find_block(path)
    return [] if block is None else sorted(block.model_fields)


def _is_numeric_setting(path: Sequence[str]) -> bool:
    """Return whether a setting takes only numbers. For these, Pydantic would read true as 1."""
    block = _find_block(path[:-1])
    field = block.model_fields.get(path[-1]) if block is not None and path else None
    if field is None:
        return False
    types = set(get_args(field.annotation) or (field.annotation,))
    return bool(types & {int, float}) and bool not in types
