"""Read the thresholds of a ``queenright.yaml``: its block ``health_monitoring``."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import ValidationError

from queenright.health.settings import HealthSettings
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.faults import describe_faults


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
        kind = "list" if isinstance(content, list) else "single value"
        raise InvalidConfigError(f"{file} contains a {kind}; it must be a mapping of settings.")
    try:
        return HealthSettings.model_validate(content.get("health_monitoring") or {})
    except ValidationError as error:
        faults = describe_faults(error.errors(include_input=False), "the block")
        raise InvalidConfigError(
            f"health_monitoring in {file} is invalid ({faults}); run `queenright config check` for details."
        ) from None
