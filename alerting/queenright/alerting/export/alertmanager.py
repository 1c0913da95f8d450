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


def whole_config(service_url: str, *, secrets: Path = _SECRETS, templates: Path = _TEMPLATES) -> str:
    """
    Return a whole ``alertmanager.yml``.

    Args:
        service_url: Where Alertmanager reaches Queenright.
        secrets: The folder with the files ``slack_api_url`` and ``pagerduty_routing_key``.
        templates: The folder of the notification templates.
    """
    return render_alertmanager(
        service_url=service_url,
        slack_api_url_file=secrets / "slack_api_url",
        pagerduty_routing_key_file=secrets / "pagerduty_routing_key",
        deadman_url=f"{service_url.rstrip('/')}/api/deadman",
        templates=templates,
        header="# Written by `queenright rules export`: an example to take parts from.",
    )


def our_part(config: str) -> dict[str, Any]:
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
