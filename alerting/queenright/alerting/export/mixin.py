"""An archive with all files for an existing monitoring stack, the same for the same settings."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from queenright.alerting.export.alertmanager import UNSET_DEADMAN_URL, render_config
from queenright.alerting.export.extra_files import Extras

NAME: Final = "queenright-mixin"

_README: Final = """\
# Queenright for your Prometheus, Alertmanager and Grafana

These files were written by `queenright rules export --format mixin`. Do not edit them; change the
settings and export again.

| folder | content | destination |
| --- | --- | --- |
| `prometheus/rules/` | recording rules and alerts | a folder in `rule_files` of `prometheus.yml` |
| `alertmanager/alertmanager.yml` | a complete example | copy its routes, inhibitions and receivers |
| `alertmanager/templates/` | notification templates | a folder in `templates` of `alertmanager.yml` |
| `grafana/dashboards/` | dashboards | import them, or a folder that provisioning reads |
| `grafana/provisioning/` | data sources and dashboard folder | Grafana's provisioning folder |
| `runbooks/` | one runbook per alert | anywhere; pass its URL with `--runbooks` |

Prometheus must scrape the service as the job `queenright` (or the one given with `--service-selector`) and
each worker's own `/metrics`. Prometheus' external label `cluster` must equal the service's
`alerting.cluster`.

The receiver `deadman` gets a ping every minute from the alert QueenrightWatchdog. It must be a check that
runs elsewhere and alerts when the pings stop; set its URL with
`queenright rules export --deadman-url URL`.

```sh
promtool check rules prometheus/rules/*.yml
amtool check-config alertmanager/alertmanager.yml
queenright rules diff prometheus/rules
```
"""


def mixin_files(
    rules: Mapping[str, str], extras: Extras, *, service_url: str, deadman_url: str = UNSET_DEADMAN_URL
) -> dict[str, str]:
    """
    Return the files of the archive, by path.

    Args:
        rules: Rule files by name.
        service_url: URL at which Alertmanager reaches Queenright.
        deadman_url: Dead man's switch that alerts when the Watchdog's pings stop.
    """
    config = render_config(
        service_url,
        deadman_url=deadman_url,
        secrets=Path("/etc/alertmanager/secrets"),
        templates=Path("/etc/alertmanager/templates"),
    )
    return {
        "README.md": _README,
        "alertmanager/alertmanager.yml": config,
        **_add_folder("prometheus/rules", rules),
        **_add_folder("alertmanager/templates", extras.templates),
        **_add_folder("grafana/dashboards", extras.dashboards),
        **_add_folder("grafana/provisioning", extras.provisioning),
        **_add_folder("runbooks", extras.runbooks),
    }


def archive(files: Mapping[str, str]) -> bytes:
    """Return a reproducible ``.tar.gz`` of texts by path, without times and owners."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as writer:
        for path in sorted(files):
            data = files[path].encode()
            entry = tarfile.TarInfo(f"{NAME}/{path}")
            entry.size, entry.mode = len(data), 0o644
            writer.addfile(entry, io.BytesIO(data))
    return gzip.compress(tar.getvalue(), compresslevel=9, mtime=0)


def _add_folder(folder: str, files: Mapping[str, str]) -> dict[str, str]:
    return {f"{folder}/{name}": text for name, text in files.items()}
