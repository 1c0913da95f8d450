"""Our part of somebody's own Alertmanager: one route, our receivers and inhibitions, under names of ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from queenright.alerting.config import render_alertmanager

_PREFIX: Final = "queenright-"
_SECRETS: Final = Path("/etc/alertmanager/secrets/queenright-alerting")
_TEMPLATES: Final = Path("/etc/alertmanager/config")

NO_DEADMAN: Final = "http://deadman-url-is-not-set.invalid/"
"""In place of a dead man's receiver that nobody named: there is no such host, so each post fails in sight."""

NO_DEADMAN_SAID: Final = (
    "The receiver deadman leads nowhere: nobody would notice if Prometheus or Alertmanager died.",
    "Write this again with --deadman-url and the address of a check that expects a ping every minute.",
)
"""What is said of such a configuration, in it and by the command that writes it."""


def whole_config(
    service_url: str,
    *,
    deadman_url: str = NO_DEADMAN,
    secrets: Path = _SECRETS,
    templates: Path = _TEMPLATES,
) -> str:
    """
    Return a whole ``alertmanager.yml``.

    Args:
        service_url: Where Alertmanager reaches Queenright.
        deadman_url: Who counts the Watchdog's pings, and raises the alarm when they stop.
        secrets: The folder with the files ``slack_api_url`` and ``pagerduty_routing_key``.
        templates: The folder of the notification templates.
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
                "Written by `queenright rules export`: an example to take parts from.",
                *about_deadman(deadman_url),
            )
        ),
    )


def about_deadman(url: str) -> tuple[str, ...]:
    """Return what has to be said of a dead man's receiver: nothing of one that somebody named."""
    return NO_DEADMAN_SAID if url == NO_DEADMAN else ()


def queenright_section(config: str) -> dict[str, Any]:
    """
    Return what is to be put into somebody's own configuration: ``route``, ``inhibit_rules``, ``receivers``.

    The route takes alerts by their name and none of others; receivers are called ``queenright-…`` and bring
    their own Slack address, so that nothing global is touched.
    """
    whole: dict[str, Any] = yaml.safe_load(config)
    root: dict[str, Any] = whole["route"]
    slack = whole["global"]["slack_api_url_file"]
    return {
        "route": _named({"matchers": ['alertname=~"Queenright.+"'], **root}),
        "inhibit_rules": whole["inhibit_rules"],
        "receivers": [_receiver(receiver, slack) for receiver in whole["receivers"]],
    }


def _named(route: Mapping[str, Any]) -> dict[str, Any]:
    """Return a route whose receivers, and those below it, go by our names."""
    found = dict(route)
    if "receiver" in found:
        found["receiver"] = _PREFIX + found["receiver"]
    if "routes" in found:
        found["routes"] = [_named(child) for child in found["routes"]]
    return found


def _receiver(receiver: Mapping[str, Any], slack: str) -> dict[str, Any]:
    found = {**receiver, "name": _PREFIX + receiver["name"]}
    if "slack_configs" in found:
        found["slack_configs"] = [{"api_url_file": slack, **one} for one in found["slack_configs"]]
    return found
