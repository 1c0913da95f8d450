"""
Render the configuration of Prometheus and Alertmanager from templates.

The committed reference files are rendered from the same templates, with the addresses of the compose file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import yaml

from queenright.alerting.files import alertmanager_folder, prometheus_folder

_MARK: Final = re.compile(r"@([A-Z_]+)@")

GROUP_INTERVAL: Final = "45s"
"""Sends a second ticket of a group within a minute, even from the second of two Alertmanagers."""

WEBHOOK_PATH: Final = "/api/alertmanager/webhook"
DELIVERED_PATH: Final = "/api/alertmanager/notifications"
"""Receives a copy of each notification that Alertmanager sends to people."""

_ACKNOWLEDGE_LINK: Final = """\
            text: '{{ template "queenright.button2.text" . }}'
            url: '{{ template "queenright.button2.url" . }}'"""
_ACKNOWLEDGE_BUTTON: Final = """\
            text: Acknowledge
            name: acknowledge
            value: '{{ template "queenright.tickets" . }}'"""

_RENDERED_HEADER: Final = "# Written by `queenright up` at every start; changes here are lost."


def render_alertmanager(
    *,
    service_url: str,
    slack_api_url_file: Path,
    pagerduty_routing_key_file: Path,
    deadman_url: str,
    templates: Path,
    pagerduty_url: str | None = None,
    group_wait: str = "10s",
    group_interval: str = GROUP_INTERVAL,
    slack_interactive: bool = False,
    token_file: Path | None = None,
    header: str = _RENDERED_HEADER,
) -> str:
    """
    Render ``alertmanager.yml``.

    Args:
        service_url: URL at which Alertmanager reaches Queenright's webhooks.
        slack_api_url_file: File with Slack's incoming webhook URL; read for every message.
        pagerduty_routing_key_file: File with the integration key for PagerDuty's Events API v2.
        deadman_url: Dead man's switch: receives a ping every minute and must alert when the pings stop.
        pagerduty_url: Endpoint to use instead of PagerDuty's.
        group_wait: How long a new group collects alerts before its first message. If set, also for severity
            info (else five minutes), storms (45 seconds) and fleet-wide alerts (30 seconds).
        group_interval: How long until a change of a group is sent. If set, also for storms (else 5 minutes).
        slack_interactive: Make Acknowledge act directly in Slack instead of opening the ticket's page. Needs
            a Slack app whose interactivity URL points at Queenright.
        token_file: File with a token of the role reporter for Queenright; None if no token is needed.
        header: First line, a comment.
    """
    is_default = group_wait == "10s"
    return _render(
        alertmanager_folder() / "alertmanager.yml.in",
        {
            "HEADER": header,
            "SLACK_API_URL_FILE": _quote(slack_api_url_file),
            "PAGERDUTY_URL": f"  pagerduty_url: {_quote(pagerduty_url)}\n" if pagerduty_url else "",
            "PAGERDUTY_ROUTING_KEY_FILE": _quote(pagerduty_routing_key_file),
            "TEMPLATES": _quote(templates / "*.tmpl"),
            "SLACK_CALLBACK_ID": "        callback_id: queenright\n" if slack_interactive else "",
            "ACKNOWLEDGE": _ACKNOWLEDGE_BUTTON if slack_interactive else _ACKNOWLEDGE_LINK,
            "NOTIFICATIONS_URL": _quote(service_url.rstrip("/") + DELIVERED_PATH),
            "WEBHOOK_URL": _quote(service_url.rstrip("/") + WEBHOOK_PATH),
            "DEADMAN_URL": _quote(deadman_url),
            "TOKEN": _http_token(token_file),
            # Send the token only to the service.
            "DEADMAN_TOKEN": _http_token(token_file if _is_within(deadman_url, service_url) else None),
            "GROUP_WAIT": group_wait,
            "GROUP_INTERVAL": group_interval,
            "REPEAT_INTERVAL": "4h",
            "INFO_GROUP_WAIT": "5m" if is_default else group_wait,
            # Longer than the storm detection window, so that the first message contains the whole storm.
            "STORM_GROUP_WAIT": "45s" if is_default else group_wait,
            "STORM_GROUP_INTERVAL": "5m" if group_interval == GROUP_INTERVAL else group_interval,
            # Long enough for one cause to trigger a second alert, so that the first message contains both.
            "FLEET_GROUP_WAIT": "30s" if is_default else group_wait,
        },
    )


def without_receivers(
    config: str, *, slack: bool = False, pagerduty: bool = False, deadman: bool = False
) -> str:
    """
    Return an ``alertmanager.yml`` without the channels that are not set up, which would fail each delivery.

    Routes stay. A receiver without any integration left does not report to Queenright either: its
    tickets would say that somebody was notified.

    Args:
        config: What ``render_alertmanager`` returned.
    """
    document = yaml.safe_load(config)
    if slack:
        del document["global"]["slack_api_url_file"]
    for receiver in document["receivers"]:
        notifies = {"slack_configs", "pagerduty_configs"} & receiver.keys()
        for is_off, key in ((slack, "slack_configs"), (pagerduty, "pagerduty_configs")):
            if is_off:
                receiver.pop(key, None)
        has_nobody = notifies and not {"slack_configs", "pagerduty_configs"} & receiver.keys()
        if has_nobody or (deadman and receiver["name"] == "deadman"):
            receiver.pop("webhook_configs", None)
    return config.partition("\n")[0] + "\n" + yaml.safe_dump(document, sort_keys=False, width=120)


def render_prometheus(
    *,
    service_url: str,
    alertmanager_url: str | Sequence[str] | None,
    rules: Path,
    interval: str = "15s",
    cluster: str = "default",
    workers: Sequence[str] = (),
    token_file: Path | None = None,
    header: str = _RENDERED_HEADER,
) -> str:
    """
    Render ``prometheus.yml``.

    Args:
        service_url: URL at which Prometheus reaches Queenright's ``/metrics``.
        alertmanager_url: All Alertmanagers; None if there is none.
        interval: Scrape and evaluation interval. It does not affect the thresholds in the rules.
        workers: ``host:port`` of agents that serve their own ``/metrics``; the service exports all others.
        token_file: File with a token for Queenright; None if no token is needed.
        header: First line, a comment.
    """
    service = urlsplit(service_url)
    return _render(
        prometheus_folder() / "prometheus.yml.in",
        {
            "HEADER": header,
            "INTERVAL": interval,
            "CLUSTER": _quote(cluster),
            "RULES": _quote(rules / "*.yml"),
            "ALERTMANAGERS": _alertmanagers(alertmanager_url),
            "SERVICE": _quote([service.netloc]),
            "SCHEME": _quote(service.scheme),
            "TOKEN": "" if token_file is None else _authorization(token_file, indent=4),
            "WORKERS": _workers_job(workers),
        },
    )


def _workers_job(workers: Sequence[str]) -> str:
    if not workers:
        return ""
    return (
        "\n  # Agents that serve their own /metrics.\n"
        "  - job_name: queenright-workers\n"
        f"    static_configs:\n      - targets: {_quote(list(workers))}\n"
    )


def _http_token(file: Path | None) -> str:
    return "" if file is None else "        http_config:\n" + _authorization(file, indent=10)


def _authorization(file: Path, *, indent: int) -> str:
    space = " " * indent
    return f"{space}authorization:\n{space}  credentials_file: {_quote(file)}\n"


def _is_within(url: str, service_url: str) -> bool:
    url_parts, service_parts = urlsplit(url), urlsplit(service_url)
    return (url_parts.scheme, url_parts.netloc) == (service_parts.scheme, service_parts.netloc)


def _alertmanagers(urls: str | Sequence[str] | None) -> str:
    url_list = [urls] if isinstance(urls, str) else list(urls or ())
    configs = []
    for url in url_list:
        parts = urlsplit(url)
        config: dict[str, object] = {"scheme": parts.scheme, "static_configs": [{"targets": [parts.netloc]}]}
        if prefix := parts.path.rstrip("/"):
            config["path_prefix"] = prefix
        configs.append(config)
    return _quote(configs)


def _quote(value: object) -> str:
    # JSON is valid YAML and quotes any special character in a path or URL.
    return json.dumps(str(value) if isinstance(value, Path) else value)


def _render(template: Path, values: Mapping[str, str]) -> str:
    text = template.read_text(encoding="utf-8")
    return _MARK.sub(lambda mark: values[mark[1]], text).replace("\n\n\n", "\n\n")
