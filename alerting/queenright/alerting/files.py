"""Locate the files for Prometheus and Alertmanager, in a checkout or an installed wheel."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).resolve().parent
_NAME: Final = re.compile(r"[A-Za-z]{1,80}")


def _folder(name: str) -> Path:
    # In a wheel they are next to this module, in a checkout below `alerting/`.
    candidates = (_HERE / name, _HERE.parents[1] / name)
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(
        f"the alerting folder {name!r} is missing: neither {candidates[0]} nor {candidates[1]} exists; "
        "reinstall Queenright"
    )


def rules_folder() -> Path:
    """Return the folder of Prometheus' rule files."""
    return _folder("prometheus") / "rules"


def templates_folder() -> Path:
    """Return the folder of Alertmanager's notification templates."""
    return _folder("alertmanager") / "templates"


def alertmanager_folder() -> Path:
    """Return the folder of Alertmanager's configuration."""
    return _folder("alertmanager")


def prometheus_folder() -> Path:
    """Return the folder of Prometheus' configuration."""
    return _folder("prometheus")


def runbooks_folder() -> Path:
    """Return the folder of the runbooks."""
    return _folder("runbooks")


def read_runbook(name: str) -> str | None:
    """Return an alert's runbook as Markdown; None if there is none of this name."""
    if not _NAME.fullmatch(name):
        return None
    path = runbooks_folder() / f"{name}.md"
    return path.read_text(encoding="utf-8") if path.is_file() else None
