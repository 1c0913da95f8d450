"""The thresholds of a ``queenright.yaml``: its block ``health_monitoring``, as the service reads it."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import ValidationError

from queenright.health.settings import HealthSettings
from queenright.instrumentation.errors import QueenrightError


class InvalidConfigError(QueenrightError):
    """Raised when a file of settings cannot be used; says the file, the place in it and what is wrong."""


def health_settings(file: Path) -> HealthSettings:
    """
    Return the block ``health_monitoring`` of ``file``, defaults if it has none.

    Raises:
        InvalidConfigError: If the file cannot be read, is no YAML, or holds a setting that is none.
    """
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise InvalidConfigError(
            f"{file} cannot be read ({error.strerror}); name another with --config."
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"{file} is not valid YAML: {error}") from None
    if not isinstance(content, dict):
        raise InvalidConfigError(
            f"{file} holds a {type(content).__name__}; it should be a mapping of settings."
        )
    try:
        return HealthSettings.model_validate(content.get("health_monitoring") or {})
    except ValidationError as error:
        faults = (
            f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" for fault in error.errors()
        )
        raise InvalidConfigError(
            f"health_monitoring in {file} is refused ({'; '.join(faults)}); "
            "`queenright config check` says more."
        ) from None
