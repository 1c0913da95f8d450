"""Locate the files for Prometheus and Alertmanager, in a checkout or an installed wheel."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).resolve().parent
_RUNBOOK_NAME: Final = re.compile(r"[A-Za-z]{1,80}")


def _find_folder(name: str) -> Path:
    # In a wheel the folders are next to this module, in a checkout below `alerting/`.
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
    return _find_folder("prometheus") / "rules"


def templates_folder() -> Path:
    """Return the folder of Alertmanager's notification templates."""
    return _find_folder("alertmanager") / "templates"


def alertmanager_folder() -> Path:
    """Return the folder of Alertmanager's configuration."""
    return _find_folder("alertmanager")


def prometheus_folder() -> Path:
    """Return the folder of Prometheus' configuration."""
    return _find_folder("prometheus")


def runbooks_folder() -> Path:
    """Return the folder of the runbooks."""
    return _find_folder("runbooks")


def read_runbook(name: str) -> str | None:
    """Return an alert's runbook as Markdown; None if the alert has no runbook."""
    if not _RUNBOOK_NAME.fullmatch(name):
        return None
    path = runbooks_folder() / f"{name}.md"
    return path.read_text(encoding="utf-8") if path.is_file() else None
