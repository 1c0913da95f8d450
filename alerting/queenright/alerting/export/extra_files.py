"""Files that an export contains besides the rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from queenright.alerting.files import runbooks_folder, templates_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """File contents by name: dashboards, Grafana's provisioning, runbooks and Alertmanager's templates."""

    dashboards: Mapping[str, str]
    provisioning: Mapping[str, str] = field(default_factory=dict)
    runbooks: Mapping[str, str] = field(default_factory=lambda: read_texts(runbooks_folder(), "*.md"))
    templates: Mapping[str, str] = field(default_factory=lambda: read_texts(templates_folder(), "*.tmpl"))


def read_texts(folder: Path, pattern: str) -> dict[str, str]:
    """Return the text of every matching file in a folder, by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob(pattern))
        if path.is_file()
    }
