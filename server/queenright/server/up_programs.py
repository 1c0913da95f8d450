"""Configure and start the Prometheus and Alertmanager of `queenright up`."""

from __future__ import annotations

import os
from pathlib import Path

from queenright.alerting.config import GROUP_INTERVAL, render_alertmanager, render_prometheus
from queenright.alerting.export.links import rule_links
from queenright.alerting.files import templates_folder
from queenright.alerting.rules import rule_files
from queenright.server.ops.child_processes import Child
from queenright.server.settings import Settings
from queenright.server.up_options import UpOptions


async def start_alertmanager(
    program: Path,
    settings: Settings,
    options: UpOptions,
    url: str,
    service_url: str,
    receiver_url: str,
    *,
    token_file: Path | None = None,
) -> Child:
    """Start Alertmanager at ``url``, with routes to the receivers and back to the service."""
    folder = settings.storage / "alertmanager"
    folder.mkdir(parents=True, exist_ok=True)
    slack = options.slack_url_file or write_secret(
        folder / "slack_url", f"{receiver_url}/slack/services/demo"
    )
    pagerduty = options.pagerduty_key_file or write_secret(folder / "pagerduty_key", "0" * 32)
    config = folder / "alertmanager.yml"
    config.write_text(
        render_alertmanager(
            service_url=service_url,
            slack_api_url_file=slack.resolve(),
            pagerduty_routing_key_file=pagerduty.resolve(),
            pagerduty_url=None if options.pagerduty_key_file else f"{receiver_url}/pagerduty/v2/enqueue",
            deadman_url=f"{receiver_url}/deadman",
            templates=templates_folder(),
            group_wait="1s" if options.fast else "10s",
            group_interval="5s" if options.fast else GROUP_INTERVAL,
            slack_interactive=settings.alerting.slack_signing_secret_file is not None,
            token_file=token_file,
        ),
        encoding="utf-8",
    )
    return await Child.start(
        "Alertmanager",
        [
            program,
            f"--config.file={config}",
            f"--storage.path={folder / 'data'}",
            f"--web.listen-address={url.removeprefix('http://')}",
            # Links in its messages use this URL; the default is the host name.
            f"--web.external-url={url}",
            "--cluster.listen-address=",
        ],
        folder / "alertmanager.log",
    )


async def start_prometheus(
    program: Path,
    settings: Settings,
    options: UpOptions,
    port: int,
    service_url: str,
    token_file: Path | None,
) -> Child:
    """Start Prometheus on ``port`` of loopback. It scrapes the service and evaluates the alert rules."""
    folder = settings.storage / "prometheus"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "prometheus.yml"
    config.write_text(
        render_prometheus(
            service_url=service_url,
            alertmanager_url=settings.alerting.alertmanager_urls or None,
            rules=write_rules(folder / "rules", settings),
            interval="1s" if options.fast else "15s",
            cluster=settings.alerting.cluster,
            token_file=token_file,
        ),
        encoding="utf-8",
    )
    return await Child.start(
        "Prometheus",
        [
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--storage.tsdb.retention.time=15d",
            f"--web.listen-address=127.0.0.1:{port}",
            "--enable-feature=exemplar-storage",
        ],
        folder / "prometheus.log",
    )


def write_rules(folder: Path, settings: Settings) -> Path:
    """Write the alert rules with the thresholds of the settings. Return their folder."""
    files = rule_files(
        settings.health_monitoring,
        links=rule_links(settings.alerting),
        header="Written by `queenright up` at every start; changes here are lost.",
    )
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def write_secret(path: Path, value: str) -> Path:
    """Write a secret file that only its owner can read. Return its path."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(value)
    return path
