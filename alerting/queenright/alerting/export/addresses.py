"""Where people follow the links of an export to: from what was said, and which lead to one machine only."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from urllib.parse import urlsplit

from queenright.alerting.rules import Links
from queenright.alerting.settings import AlertingSettings
from queenright.instrumentation.api_address import read_base_url


def reached_at(settings: AlertingSettings, service_url: str | None) -> AlertingSettings:
    """
    Return the settings with the console, and the runbooks in it, at the address of the service.

    Only where the settings themselves say nothing of a console; None changes nothing.

    Raises:
        ValueError: The address is none; the message repeats nothing of it.
    """
    if service_url is None:
        return settings
    name, _, _ = read_base_url(service_url, port=8420)  # a login is Alertmanager's, and no part of a link
    if "console_url" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"console_url": name})


def links_here(
    settings: AlertingSettings, links: Links, *, service_url: str | None, dashboards: bool
) -> Iterator[str]:
    """
    Yield a sentence for each link that leads to whichever machine it is followed on, with the way out.

    Args:
        settings: Those of ``reached_at``.
        links: Of the rules.
        service_url: Where Alertmanager reaches Queenright; None if there is no Alertmanager's part.
        dashboards: Whether dashboards are taken along.
    """
    if is_here(links.runbooks):
        yield (
            f"Runbooks of the alerts are linked at {links.runbooks}: name Queenright's address with "
            "--service-url or alerting.console_url, or another place with --runbooks."
        )
    if is_here(links.dashboards):
        yield (
            f"Dashboards of the alerts are linked at {links.dashboards}: name Grafana's with --dashboards or "
            "alerting.dashboard_url."
        )
    if dashboards and not links.dashboards:
        yield (
            "Alerts have no link to their dashboards: name Grafana's with --dashboards or "
            "alerting.dashboard_url."
        )
    if dashboards and is_here(settings.console_url):
        yield (
            f"Dashboards link to Queenright's pages at {settings.console_url}: name its address with "
            "--service-url or alerting.console_url."
        )
    if service_url is not None and is_here(service_url):
        yield "Alertmanager is to reach Queenright on its own machine: name another with --service-url."


def is_here(url: str) -> bool:
    """Return whether an address is each machine's own: 127.0.0.1, ::1, localhost, 0.0.0.0."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified
