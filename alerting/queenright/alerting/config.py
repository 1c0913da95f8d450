"""
Render the configuration files of Prometheus and Alertmanager from templates.

The committed reference files are rendered from the same templates, with the addresses of the Compose file.
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

_PLACEHOLDER: Final = re.compile(r"@([A-Z_]+)@")

GROUP_INTERVAL: Final = "45s"
"""
Short enough that a group's second ticket is sent within a minute, even by the second of two Alertmanagers.
"""

WEBHOOK_PATH: Final = "/api/alertmanager/webhook"
DELIVERED_PATH: Final = "/api/alertmanager/notifications"
"""Path that receives a copy of each notification that Alertmanager sends to people."""

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
        slack_api_url_file: File with Slack's incoming webhook URL. Alertmanager reads it for every message.
        pagerduty_routing_key_file: File with the integration key for PagerDuty's Events API v2.
        deadman_url: URL of a dead man's switch, which gets a ping every minute and must alert when the pings
            stop.
        pagerduty_url: Endpoint to use instead of PagerDuty's own.
        group_wait: How long a new group collects alerts before its first message. A value other than the
            default also applies to the severity info (otherwise five minutes), storms (45 seconds) and
            fleet-wide alerts (30 seconds).
        group_interval: How long Alertmanager waits before it sends a change of a group. A value other than
            the default also applies to storms (otherwise five minutes).
        slack_interactive: Whether the button Acknowledge acts directly in Slack instead of opening the
            ticket's page. This requires a Slack app whose interactivity URL points to Queenright.
        token_file: File with an API token of the role reporter; None if Queenright needs no token.
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
            "TOKEN": _render_http_config(token_file),
            # Send the token only to the service.
            "DEADMAN_TOKEN": _render_http_config(
                token_file if _is_within(deadman_url, service_url) else None
            ),
            "GROUP_WAIT": group_wait,
            "GROUP_INTERVAL": group_interval,
            "REPEAT_INTERVAL": "4h",
            "INFO_GROUP_WAIT": "5m" if is_default else group_wait,
            # Longer than the window of storm detection, so that the first message contains the whole storm.
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
    Return an ``alertmanager.yml`` without the channels that are not set up, because every delivery to them
    would fail.

    Routes are kept. A receiver that has lost all its channels no longer reports to Queenright, because its
    tickets would say that somebody was notified.

    Args:
        config: The text from ``render_alertmanager``.
        slack: Whether Slack is not set up.
        pagerduty: Whether PagerDuty is not set up.
        deadman: Whether the dead man's switch is not set up.
    """
    document = yaml.safe_load(config)
    if slack:
        del document["global"]["slack_api_url_file"]
    for receiver in document["receivers"]:
        people_configs = {"slack_configs", "pagerduty_configs"} & receiver.keys()
        for is_off, key in ((slack, "slack_configs"), (pagerduty, "pagerduty_configs")):
            if is_off:
                receiver.pop(key, None)
        reaches_nobody = people_configs and not {"slack_configs", "pagerduty_configs"} & receiver.keys()
        if reaches_nobody or (deadman and receiver["name"] == "deadman"):
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
        alertmanager_url: URLs of all Alertmanagers; None if there is none.
        interval: Scrape and evaluation interval. It does not affect the thresholds in the rules.
        workers: ``host:port`` of agents that serve their own ``/metrics``. The service exports the metrics of
            all others.
        token_file: File with an API token; None if Queenright needs no token.
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
            "ALERTMANAGERS": _list_alertmanagers(alertmanager_url),
            "SERVICE": _quote([service.netloc]),
            "SCHEME": _quote(service.scheme),
            "TOKEN": "" if token_file is None else _render_authorization(token_file, indent=4),
            "WORKERS": _render_workers_job(workers),
        },
    )


def _render_workers_job(workers: Sequence[str]) -> str:
    if not workers:
        return ""
    return (
        "\n  # Agents that serve their own /metrics.\n"
        "  - job_name: queenright-workers\n"
        f"    static_configs:\n      - targets: {_quote(list(workers))}\n"
    )


def _render_http_config(file: Path | None) -> str:
    return "" if file is None else "        http_config:\n" + _render_authorization(file, indent=10)


def _render_authorization(file: Path, *, indent: int) -> str:
    space = " " * indent
    return f"{space}authorization:\n{space}  credentials_file: {_quote(file)}\n"


def _is_within(url: str, service_url: str) -> bool:
    url_parts, service_parts = urlsplit(url), urlsplit(service_url)
    return (url_parts.scheme, url_parts.netloc) == (service_parts.scheme, service_parts.netloc)


def _list_alertmanagers(urls: str | Sequence[str] | None) -> str:
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
    return _PLACEHOLDER.sub(lambda placeholder: values[placeholder[1]], text).replace("\n\n\n", "\n\n")
