"""Where the dashboards' JSON and Grafana's provisioning are: in a checkout or in an installed wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).resolve().parent


def _folder(name: str) -> Path:
    # The wheel carries a copy beside this module; in a checkout they are where Grafana mounts them from.
    for candidate in (_HERE / name, _HERE.parents[1] / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(
        f"Queenright's folder {name!r} for Grafana is missing beside {_HERE}; install Queenright again."
    )


def dashboards_folder() -> Path:
    """Return the folder of the dashboards with the default thresholds."""
    return _folder("dashboards")


def provisioning_folder() -> Path:
    """Return the folder of Grafana's provisioning."""
    return _folder("provisioning")
