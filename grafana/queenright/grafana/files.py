"""Locate the dashboards' JSON and Grafana's provisioning, in a checkout or an installed wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).resolve().parent


def _find_folder(name: str) -> Path:
    # In a wheel the folders are next to this module, in a checkout below `grafana/`.
    candidates = (_HERE / name, _HERE.parents[1] / name)
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(
        f"Grafana's folder {name!r} is missing: neither {candidates[0]} nor {candidates[1]} exists; "
        "reinstall Queenright"
    )


def dashboards_folder() -> Path:
    """Return the folder of the dashboards with the default thresholds."""
    return _find_folder("dashboards")


def provisioning_folder() -> Path:
    """Return the folder of Grafana's provisioning."""
    return _find_folder("provisioning")
