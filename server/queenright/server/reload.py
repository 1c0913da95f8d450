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

_READ_INTERVAL_SECONDS: Final = 60.0
"""Seconds between reads of the settings file, to compare it with those of other processes."""

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
"""Paths of reloadable settings. All settings below these are reloadable too."""


class NoSettingsFileError(ConflictError):
    """Raised when the settings were not read from a file."""

    def __init__(self) -> None:
        super().__init__(
            "these settings were not read from a file and cannot be reloaded; restart the service"
        )


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """The paths of settings that a reload has applied, and of those that need a restart."""

    applied: tuple[str, ...]
    needs_restart: tuple[str, ...]

    @property
    def is_unchanged(self) -> bool:
        """Whether no setting has changed."""
        return not (self.applied or self.needs_restart)

    def __str__(self) -> str:
        """Return a line for the log."""
        if self.is_unchanged:
            return "the settings have not changed"
        parts = (("applied", self.applied), ("require a restart", self.needs_restart))
        return "; ".join(f"{label}: {', '.join(paths)}" for label, paths in parts if paths)


async def reload_service_settings(service: Service) -> ReloadResult:
    """
    Reload the settings of a service, and apply the reloadable ones.

    Raises:
        NoSettingsFileError: The settings were not read from a file.
        InvalidSettingsError, InvalidSecretError, ModelUnavailableError, InvalidPromptError: The settings are
            not valid; nothing is changed.
    """
    old_settings = service.settings_read
    if old_settings is None:
        raise NoSettingsFileError
    new_settings = await asyncio.to_thread(_reread_settings, old_settings)
    changed_paths = sorted(_list_changed_paths(old_settings, new_settings))
    applied_paths = tuple(path for path in changed_paths if _is_reloadable(path))
    # Settings that require a restart are reported on each reload until the restart.
    service.settings_read = _merge(old_settings, new_settings, applied_paths)
    if applied_paths:
        await service.replace_settings(_merge(service.settings, new_settings, applied_paths))
    outcome = ReloadResult(applied_paths, tuple(path for path in changed_paths if path not in applied_paths))
    _log.info("settings reloaded: %s", outcome)
    return outcome


def read_reloadable(settings: Settings) -> tuple[Settings, str]:
    """
    Return the settings that a reload would apply now, and the reason why it would fail, or "".

    A partition that is taken over thus gets the same settings as its former owner had. Invalid files change
    nothing.
    """
    old_settings = settings.as_read
    if old_settings is None:
        return settings, ""
    try:
        new_settings = _reread_settings(old_settings)
    except QueenrightError as error:
        return settings, f"this process keeps the settings that it started with: {error}"
    return _merge(
        settings, new_settings, tuple(filter(_is_reloadable, _list_changed_paths(old_settings, new_settings)))
    ), ""


async def watch_reloadable(settings: Settings, sleep: Sleep = asyncio.sleep) -> AsyncIterator[Settings]:
    """Yield the settings of `read_reloadable` every minute. Log when the files become invalid."""
    known_fault = ""
    while True:
        await sleep(_READ_INTERVAL_SECONDS)
        current, fault = await asyncio.to_thread(read_reloadable, settings)
        if fault and fault != known_fault:
            _log.warning("%s", fault)
        known_fault = fault
        yield current


def _reread_settings(old_settings: Settings) -> Settings:
    new_settings = old_settings.read_again()
    if new_settings is None:
        raise NoSettingsFileError
    check_files(new_settings)
    return new_settings


def _is_reloadable(path: str) -> bool:
    return any(path == reloadable or path.startswith(f"{reloadable}.") for reloadable in RELOADABLE)


def _list_changed_paths(old_block: BaseModel, new_block: BaseModel, prefix: str = "") -> Iterator[str]:
    """Yield the paths of changed settings."""
    for name in type(old_block).model_fields:
        old_value, new_value = getattr(old_block, name), getattr(new_block, name)
        path = f"{prefix}{name}"
        if isinstance(old_value, BaseModel) and isinstance(new_value, BaseModel):
            yield from _list_changed_paths(old_value, new_value, f"{path}.")
        elif old_value != new_value:
            yield path


def _merge(settings: Settings, new_settings: Settings, paths: tuple[str, ...]) -> Settings:
    """Return settings with the values of ``new_settings`` at these paths."""
    merged_settings: BaseModel = settings
    for path in paths:
        merged_settings = _replace_at(merged_settings, new_settings, path.split("."))
    assert isinstance(merged_settings, Settings)
    return merged_settings


def _replace_at(block: BaseModel, new_block: BaseModel, path: list[str]) -> BaseModel:
    name, *rest = path
    new_value = getattr(new_block, name)
    if rest:
        new_value = _replace_at(getattr(block, name), new_value, rest)
    update: Mapping[str, Any] = {name: new_value}
    return block.model_copy(update=update)
