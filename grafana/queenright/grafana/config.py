"""Read the thresholds of a ``queenright.yaml``: its block ``health_monitoring``."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import ValidationError

from queenright.health.settings import HealthSettings
from queenright.instrumentation.errors import QueenrightError


class InvalidConfigError(QueenrightError):
    """Raised for an unusable settings file; names the file, the setting and the problem."""


def health_settings(file: Path) -> HealthSettings:
    """
    Return the block ``health_monitoring`` of ``file``; defaults if there is none.

    Raises:
        InvalidConfigError: The file cannot be read, is not YAML, or contains an invalid setting.
    """
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise InvalidConfigError(
            f"{file} cannot be read ({error.strerror}); pass another file with --config."
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"{file} is not valid YAML: {error}") from None
    if not isinstance(content, dict):
        raise InvalidConfigError(
            f"{file} contains a {type(content).__name__}; it must be a mapping of settings."
        )
    try:
        return HealthSettings.model_validate(content.get("health_monitoring") or {})
    except ValidationError as error:
        faults = (
            f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" for fault in error.errors()
        )
        raise InvalidConfigError(
            f"health_monitoring in {file} is invalid ({'; '.join(faults)}); "
            "run `queenright config check` for details."
        ) from None
