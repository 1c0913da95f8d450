"""
Reload the settings while the service runs.

Reloadable settings are those that are read at each use: thresholds, ticket deadlines, retention, and links in
messages. Other changes are reported and require a restart, so that no setting is applied partially.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from queenright.instrumentation.errors import ConflictError, QueenrightError
from queenright.server.ops.settings_files import check_files
from queenright.server.service import Service
from queenright.server.settings import Settings

Sleep = Callable[[float], Awaitable[None]]

_log = logging.getLogger(__name__)

_READ_SECONDS: Final = 60.0
"""Seconds between reads of the settings files, to compare them with those of other processes."""

RELOADABLE: Final = (
    "alerting.dashboard_url",
    "alerting.runbook_url",
    "alerting.trace_url",
    "health_monitoring.bands",
    "health_monitoring.detectors",
    "health_monitoring.health_check",
    "health_monitoring.heartbeat",
    "health_monitoring.retention",
    "health_monitoring.stall",
    "health_monitoring.tickets",
)
"""Paths of reloadable settings. Everything below them is reloadable."""


class NoSettingsFileError(ConflictError):
    """Raised when the settings were not read from a file."""

    def __init__(self) -> None:
        super().__init__(
            "these settings were not read from a file and cannot be reloaded; restart the service"
        )


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """The result of a reload: paths of settings."""

    applied: tuple[str, ...]
    needs_restart: tuple[str, ...]

    @property
    def is_unchanged(self) -> bool:
        """Whether the settings are unchanged."""
        return not (self.applied or self.needs_restart)

    def __str__(self) -> str:
        """Return a line for the log."""
        if self.is_unchanged:
            return "the settings have not changed"
        parts = (("applied", self.applied), ("require a restart", self.needs_restart))
        return "; ".join(f"{what}: {', '.join(paths)}" for what, paths in parts if paths)


async def reload(service: Service) -> ReloadResult:
    """
    Reload the settings of a service, and apply the reloadable ones.

    Raises:
        NoSettingsFileError: The settings were not read from a file.
        InvalidSettingsError, InvalidSecretError, ModelUnavailableError, InvalidPromptError: The settings are
            not valid; nothing is changed.
    """
    before = service.settings_read
    if before is None:
        raise NoSettingsFileError
    after = await asyncio.to_thread(_read_again, before)
    changed_paths = sorted(_differences(before, after))
    applied_paths = tuple(path for path in changed_paths if _is_reloadable(path))
    # Settings that require a restart are reported on each reload until the restart.
    service.settings_read = _merge(before, after, applied_paths)
    if applied_paths:
        await service.replace_settings(_merge(service.settings, after, applied_paths))
    outcome = ReloadResult(applied_paths, tuple(path for path in changed_paths if path not in applied_paths))
    _log.info("settings reloaded: %s", outcome)
    return outcome


def read_reloadable(settings: Settings) -> tuple[Settings, str]:
    """
    Return settings with what a reload would apply to them now, and why it would be refused.

    The reason is empty if it would not be. A partition that is taken over gets what its former owner had.
    Invalid files change nothing.
    """
    before = settings.as_read
    if before is None:
        return settings, ""
    try:
        after = _read_again(before)
    except QueenrightError as error:
        return settings, f"the settings are those of the start of this process: {error}"
    return _merge(settings, after, tuple(filter(_is_reloadable, _differences(before, after)))), ""


async def watch_reloadable(settings: Settings, sleep: Sleep = asyncio.sleep) -> AsyncIterator[Settings]:
    """Yield `read_reloadable` every minute; log when the files become invalid."""
    known_fault = ""
    while True:
        await sleep(_READ_SECONDS)
        current, fault = await asyncio.to_thread(read_reloadable, settings)
        if fault and fault != known_fault:
            _log.warning("%s", fault)
        known_fault = fault
        yield current


def _read_again(before: Settings) -> Settings:
    after = before.read_again()
    if after is None:
        raise NoSettingsFileError
    check_files(after)
    return after


def _is_reloadable(path: str) -> bool:
    return any(path == reloadable or path.startswith(f"{reloadable}.") for reloadable in RELOADABLE)


def _differences(before: BaseModel, after: BaseModel, where: str = "") -> Iterator[str]:
    """Yield the paths of changed settings."""
    for name in type(before).model_fields:
        old, new = getattr(before, name), getattr(after, name)
        path = f"{where}{name}"
        if isinstance(old, BaseModel) and isinstance(new, BaseModel):
            yield from _differences(old, new, f"{path}.")
        elif old != new:
            yield path


def _merge(settings: Settings, after: Settings, paths: tuple[str, ...]) -> Settings:
    """Return settings with the values of ``after`` at these paths."""
    merged_settings: BaseModel = settings
    for path in paths:
        merged_settings = _replace_at(merged_settings, after, path.split("."))
    assert isinstance(merged_settings, Settings)
    return merged_settings


def _replace_at(block: BaseModel, after: BaseModel, path: list[str]) -> BaseModel:
    name, *rest = path
    new = getattr(after, name)
    if rest:
        new = _replace_at(getattr(block, name), new, rest)
    update: Mapping[str, Any] = {name: new}
    return block.model_copy(update=update)
