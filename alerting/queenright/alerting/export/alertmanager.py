"""Alertmanager configuration for export: a complete file, or a section for an existing configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from queenright.alerting.config import render_alertmanager

_PREFIX: Final = "queenright-"
_SECRETS: Final = Path("/etc/alertmanager/secrets/queenright-alerting")
_TEMPLATES: Final = Path("/etc/alertmanager/config")

UNSET_DEADMAN_URL: Final = "http://deadman-url-is-not-set.invalid/"
"""Placeholder for a missing dead man's switch. Its host does not exist, so every ping fails visibly."""

DEADMAN_WARNING: Final = (
    "The receiver deadman has no URL: a failure of Prometheus or Alertmanager would go unnoticed.",
    "Export again with --deadman-url set to the URL of a check that expects a ping every minute.",
)
"""Warning about a missing dead man's switch, for the file and the command's output."""


def render_config(
    service_url: str,
    *,
    deadman_url: str = UNSET_DEADMAN_URL,
    secrets: Path = _SECRETS,
    templates: Path = _TEMPLATES,
) -> str:
    """
    Render a complete ``alertmanager.yml``.

    Args:
        service_url: URL at which Alertmanager reaches Queenright.
        deadman_url: Dead man's switch that alerts when the Watchdog's pings stop.
        secrets: Folder with the files ``slack_api_url`` and ``pagerduty_routing_key``.
        templates: Folder with the notification templates.
    """
    return render_alertmanager(
        service_url=service_url,
        slack_api_url_file=secrets / "slack_api_url",
        pagerduty_routing_key_file=secrets / "pagerduty_routing_key",
        deadman_url=deadman_url,
        templates=templates,
        header="\n".join(
            f"# {line}"
            for line in (
                "Written by `queenright rules export` as an example. Copy the parts that you need.",
                *deadman_warning(deadman_url),
            )
        ),
    )


def deadman_warning(url: str) -> tuple[str, ...]:
    """Return the lines of the warning about a missing dead man's switch; empty if a URL is set."""
    return DEADMAN_WARNING if url == UNSET_DEADMAN_URL else ()


def queenright_section(config: str) -> dict[str, Any]:
    """
    Return the section for an existing configuration, with the keys ``route``, ``inhibit_rules`` and
    ``receivers``.

    The route matches only Queenright's alerts. Receivers are named ``queenright-…`` and have their own
    setting ``api_url_file`` for Slack, so no global setting is needed.
    """
    document: dict[str, Any] = yaml.safe_load(config)
    root: dict[str, Any] = document["route"]
    slack_url_file = document["global"]["slack_api_url_file"]
    return {
        "route": _prefix_receivers({"matchers": ['alertname=~"Queenright.+"'], **root}),
        "inhibit_rules": document["inhibit_rules"],
        "receivers": [_prefix_receiver(receiver, slack_url_file) for receiver in document["receivers"]],
    }


def _prefix_receivers(route: Mapping[str, Any]) -> dict[str, Any]:
    """Return a route with prefixed receiver names, including those of its child routes."""
    renamed_route = dict(route)
    if "receiver" in renamed_route:
        renamed_route["receiver"] = _PREFIX + renamed_route["receiver"]
    if "routes" in renamed_route:
        renamed_route["routes"] = [_prefix_receivers(child) for child in renamed_route["routes"]]
    return renamed_route


def _prefix_receiver(receiver: Mapping[str, Any], slack_url_file: str) -> dict[str, Any]:
    renamed_receiver = {**receiver, "name": _PREFIX + receiver["name"]}
    if "slack_configs" in renamed_receiver:
        renamed_receiver["slack_configs"] = [
            {"api_url_file": slack_url_file, **config} for config in renamed_receiver["slack_configs"]
        ]
    return renamed_receiver
