"""One archive with everything that an existing stack takes, the same bytes for the same settings."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from queenright.alerting.export.alertmanager import NO_DEADMAN, whole_config
from queenright.alerting.export.taken import Extras

NAME: Final = "queenright-mixin"

_README: Final = """\
# Queenright for your Prometheus, Alertmanager and Grafana

Written by `queenright rules export --format mixin`; change the settings and write it again, not these files.

| folder | what it is | where it goes |
| --- | --- | --- |
| `prometheus/rules/` | recording rules and alerts | a folder that `rule_files` of `prometheus.yml` names |
| `alertmanager/alertmanager.yml` | an example of a whole one | take its routes, inhibitions, receivers |
| `alertmanager/templates/` | what people read | a folder that `templates` of `alertmanager.yml` names |
| `grafana/dashboards/` | the dashboards | import them, or a folder that provisioning reads |
| `grafana/provisioning/` | data sources and the folder of the dashboards | Grafana's provisioning folder |
| `runbooks/` | one an alert | anywhere; say where with `--runbooks` |

Prometheus has to scrape the service as the job `queenright` (or what `--service-selector` said), and each
worker's own `/metrics`. Its external label `cluster` is to be the same as `alerting.cluster` of the service.

The receiver `deadman` gets a ping every minute, from the alert QueenrightWatchdog. It has to be a check that
runs elsewhere and raises the alarm when the pings stop: `queenright rules export --deadman-url URL`.

```sh
promtool check rules prometheus/rules/*.yml
amtool check-config alertmanager/alertmanager.yml
queenright rules diff prometheus/rules
```
"""


def mixin_files(
    rules: Mapping[str, str], extras: Extras, *, service_url: str, deadman_url: str = NO_DEADMAN
) -> dict[str, str]:
    """
    Return every file of the archive by its path.

    Args:
        rules: Rule files by name.
        extras: Dashboards, provisioning, runbooks and templates.
        service_url: Where Alertmanager reaches Queenright.
        deadman_url: Who counts the Watchdog's pings.
    """
    config = whole_config(
        service_url,
        deadman_url=deadman_url,
        secrets=Path("/etc/alertmanager/secrets"),
        templates=Path("/etc/alertmanager/templates"),
    )
    return {
        "README.md": _README + (f"\n{extras.dashboards_note}\n" if extras.dashboards_note else ""),
        "alertmanager/alertmanager.yml": config,
        **_under("prometheus/rules", rules),
        **_under("alertmanager/templates", extras.templates),
        **_under("grafana/dashboards", extras.dashboards),
        **_under("grafana/provisioning", extras.provisioning),
        **_under("runbooks", extras.runbooks),
    }


def archive(files: Mapping[str, str]) -> bytes:
    """Return a ``.tar.gz`` of texts by path; no times, no owners: equal files make equal bytes."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as writer:
        for path in sorted(files):
            data = files[path].encode()
            entry = tarfile.TarInfo(f"{NAME}/{path}")
            entry.size, entry.mode = len(data), 0o644
            writer.addfile(entry, io.BytesIO(data))
    return gzip.compress(tar.getvalue(), compresslevel=9, mtime=0)


def _under(folder: str, files: Mapping[str, str]) -> dict[str, str]:
    return {f"{folder}/{name}": text for name, text in files.items()}
