"""
The configuration of Prometheus and Alertmanager, rendered from one template each.

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
"""With it a second ticket in a group is told within a minute, also by the second of two Alertmanagers."""

WEBHOOK_PATH: Final = "/api/alertmanager/webhook"
TOLD_PATH: Final = "/api/alertmanager/told"
"""Where Alertmanager says what it told people."""

_ACKNOWLEDGE_LINK: Final = """\
            text: '{{ template "queenright.button2.text" . }}'
            url: '{{ template "queenright.button2.url" . }}'"""
_ACKNOWLEDGE_BUTTON: Final = """\
            text: Acknowledge
            name: acknowledge
            value: '{{ template "queenright.tickets" . }}'"""

REFERENCE_HEADER: Final = "# Written by `python -m queenright.alerting --write`; edit {name}.in instead."
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
    repeat_interval: str = "4h",
    info_group_wait: str | None = None,
    storm_group_wait: str | None = None,
    storm_group_interval: str | None = None,
    fleet_group_wait: str | None = None,
    slack_interactive: bool = False,
    token_file: Path | None = None,
    header: str = _RENDERED_HEADER,
) -> str:
    """
    Return an ``alertmanager.yml``.

    Args:
        service_url: Where Alertmanager reaches Queenright, to wake the judge and to say who was told.
        slack_api_url_file: Holds Slack's incoming webhook URL; read for every message.
        pagerduty_routing_key_file: Holds the integration key of PagerDuty's Events API v2.
        deadman_url: Who is told every minute that the whole chain works, and raises the alarm when it is not.
        templates: The folder of the notification templates.
        pagerduty_url: Another endpoint in place of PagerDuty's own.
        group_wait: How long a new group gathers alerts before its first message.
        group_interval: How long until a change of the group is told.
        repeat_interval: How long until a group that has not changed is told again; of tickets always four
            days, as reminders are the queen's.
        info_group_wait: ``group_wait`` of what only informs; five minutes, or ``group_wait`` if that was set.
        storm_group_wait: ``group_wait`` of a storm; 45 seconds, or ``group_wait`` if that was set.
        storm_group_interval: ``group_interval`` of a storm; five minutes, or that if it was set.
        fleet_group_wait: ``group_wait`` of what is about the whole fleet; 30 seconds, or ``group_wait`` if
            that was set.
        slack_interactive: Whether Acknowledge acts in Slack, in place of leading to the ticket's page. That
            needs a Slack app whose interactivity points at Queenright.
        token_file: Holds the token that Queenright is shown, of the role reporter; None: none is needed.
        header: The first line, a comment.
    """
    if info_group_wait is None:
        info_group_wait = "5m" if group_wait == "10s" else group_wait
    if storm_group_wait is None:
        # Longer than the window in which a storm is seen, so that its first message has all of it.
        storm_group_wait = "45s" if group_wait == "10s" else group_wait
    if storm_group_interval is None:
        storm_group_interval = "5m" if group_interval == GROUP_INTERVAL else group_interval
    if fleet_group_wait is None:
        # As long as one cause takes to make a second alert fire, so that the first message has both.
        fleet_group_wait = "30s" if group_wait == "10s" else group_wait
    return _render(
        alertmanager_folder() / "alertmanager.yml.in",
        {
            "HEADER": header,
            "SLACK_API_URL_FILE": _quoted(slack_api_url_file),
            "PAGERDUTY_URL": f"  pagerduty_url: {_quoted(pagerduty_url)}\n" if pagerduty_url else "",
            "PAGERDUTY_ROUTING_KEY_FILE": _quoted(pagerduty_routing_key_file),
            "TEMPLATES": _quoted(templates / "*.tmpl"),
            "SLACK_CALLBACK_ID": "        callback_id: queenright\n" if slack_interactive else "",
            "ACKNOWLEDGE": _ACKNOWLEDGE_BUTTON if slack_interactive else _ACKNOWLEDGE_LINK,
            "TOLD_URL": _quoted(service_url.rstrip("/") + TOLD_PATH),
            "WEBHOOK_URL": _quoted(service_url.rstrip("/") + WEBHOOK_PATH),
            "DEADMAN_URL": _quoted(deadman_url),
            "TOKEN": _http_token(token_file),
            # Nobody but the service is shown its token.
            "DEADMAN_TOKEN": _http_token(token_file if _within(deadman_url, service_url) else None),
            "GROUP_WAIT": group_wait,
            "GROUP_INTERVAL": group_interval,
            "REPEAT_INTERVAL": repeat_interval,
            "INFO_GROUP_WAIT": info_group_wait,
            "STORM_GROUP_WAIT": storm_group_wait,
            "STORM_GROUP_INTERVAL": storm_group_interval,
            "FLEET_GROUP_WAIT": fleet_group_wait,
        },
    )


def without_receivers(
    config: str, *, slack: bool = False, pagerduty: bool = False, deadman: bool = False
) -> str:
    """
    Return an ``alertmanager.yml`` without the channels that are not set up, which would fail each delivery.

    Routes stay. A receiver that is left with nobody to notify does not report to Queenright either: its
    tickets would say that somebody was notified.

    Args:
        config: What ``render_alertmanager`` returned.
        slack: Leave out Slack.
        pagerduty: Leave out PagerDuty.
        deadman: Leave out the dead-man check.
    """
    loaded = yaml.safe_load(config)
    if slack:
        del loaded["global"]["slack_api_url_file"]
    for receiver in loaded["receivers"]:
        notifies = {"slack_configs", "pagerduty_configs"} & receiver.keys()
        for is_off, key in ((slack, "slack_configs"), (pagerduty, "pagerduty_configs")):
            if is_off:
                receiver.pop(key, None)
        has_nobody = notifies and not {"slack_configs", "pagerduty_configs"} & receiver.keys()
        if has_nobody or (deadman and receiver["name"] == "deadman"):
            receiver.pop("webhook_configs", None)
    return config.partition("\n")[0] + "\n" + yaml.safe_dump(loaded, sort_keys=False, width=120)


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
    Return a ``prometheus.yml``.

    Args:
        service_url: Where Prometheus reaches Queenright's ``/metrics``.
        alertmanager_url: Every Alertmanager; None if there is none.
        rules: The folder of the rule files.
        interval: Between scrapes and between evaluations. Thresholds in the rules are not moved by it.
        cluster: External label ``cluster``.
        workers: ``host:port`` of agents that serve ``/metrics`` themselves; the service has all others.
        token_file: Holds the token that Queenright is shown; None: none is needed.
        header: The first line, a comment.
    """
    service = urlsplit(service_url)
    return _render(
        prometheus_folder() / "prometheus.yml.in",
        {
            "HEADER": header,
            "INTERVAL": interval,
            "CLUSTER": _quoted(cluster),
            "RULES": _quoted(rules / "*.yml"),
            "ALERTMANAGERS": _alertmanagers(alertmanager_url),
            "SERVICE": _quoted([service.netloc]),
            "SCHEME": _quoted(service.scheme),
            "TOKEN": "" if token_file is None else _authorization(token_file, indent=4),
            "WORKERS": _workers_job(workers),
        },
    )


def render_rules(text: str, base: str) -> str:
    """Return the text of a rule file with its runbooks at ``base``, in place of the default address."""
    return text.replace("http://127.0.0.1:8420/runbooks/", f"{base.rstrip('/')}/")


def _workers_job(workers: Sequence[str]) -> str:
    if not workers:
        return ""
    return (
        "\n  # Agents that serve /metrics themselves.\n"
        "  - job_name: queenright-workers\n"
        f"    static_configs:\n      - targets: {_quoted(list(workers))}\n"
    )


def _http_token(file: Path | None) -> str:
    return "" if file is None else "        http_config:\n" + _authorization(file, indent=10)


def _authorization(file: Path, *, indent: int) -> str:
    space = " " * indent
    return f"{space}authorization:\n{space}  credentials_file: {_quoted(file)}\n"


def _within(url: str, service_url: str) -> bool:
    one, other = urlsplit(url), urlsplit(service_url)
    return (one.scheme, one.netloc) == (other.scheme, other.netloc)


def _alertmanagers(urls: str | Sequence[str] | None) -> str:
    listed = [urls] if isinstance(urls, str) else list(urls or ())
    configs = []
    for url in listed:
        parts = urlsplit(url)
        config: dict[str, object] = {"scheme": parts.scheme, "static_configs": [{"targets": [parts.netloc]}]}
        if prefix := parts.path.rstrip("/"):
            config["path_prefix"] = prefix
        configs.append(config)
    return _quoted(configs)


def _quoted(value: object) -> str:
    # JSON is YAML: whatever is in a path or an address stays inside its quotes.
    return json.dumps(str(value) if isinstance(value, Path) else value)


def _render(template: Path, values: Mapping[str, str]) -> str:
    text = template.read_text(encoding="utf-8")
    return _MARK.sub(lambda mark: values[mark[1]], text).replace("\n\n\n", "\n\n")
