"""The console's address in an export, and warnings about links that only work on one machine."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from urllib.parse import urlsplit

from queenright.alerting.rules import Links
from queenright.alerting.settings import AlertingSettings
from queenright.instrumentation.api_address import read_base_url


def with_service_url(settings: AlertingSettings, service_url: str | None) -> AlertingSettings:
    """
    Return the settings with ``service_url`` as the console's URL, unless the settings contain a console URL.

    Raises:
        ValueError: The URL is invalid. The message does not contain it.
    """
    if service_url is None:
        return settings
    name, _, _ = read_base_url(
        service_url, port=8420
    )  # without the credentials that Alertmanager uses, which links must not contain
    if "console_url" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"console_url": name})


def find_local_links(
    settings: AlertingSettings, links: Links, *, service_url: str | None, dashboards: bool
) -> Iterator[str]:
    """
    Yield a warning for each link that points to the local machine. It says which option or setting to set.

    Args:
        settings: Settings from ``with_service_url``.
        service_url: URL at which Alertmanager reaches Queenright; None if no Alertmanager configuration is
            exported.
        dashboards: Whether dashboards are exported.
    """
    if is_local_url(links.runbooks):
        yield (
            f"Alerts link to their runbooks at {links.runbooks}: set Queenright's URL with "
            "--service-url or alerting.console_url, or another base URL with --runbooks."
        )
    if is_local_url(links.dashboards):
        yield (
            f"Alerts link to their dashboards at {links.dashboards}: set Grafana's URL with --dashboards "
            "or alerting.dashboard_url."
        )
    if dashboards and not links.dashboards:
        yield (
            "Alerts have no links to their dashboards: set Grafana's URL with --dashboards or "
            "alerting.dashboard_url."
        )
    if dashboards and is_local_url(settings.console_url):
        yield (
            f"Dashboards link to Queenright's pages at {settings.console_url}: set its URL with "
            "--service-url or alerting.console_url."
        )
    if service_url is not None and is_local_url(service_url):
        yield (
            "Alertmanager would look for Queenright on its own machine: set Queenright's URL with "
            "--service-url."
        )


def is_local_url(url: str) -> bool:
    """Return whether a URL points to the local machine, such as 127.0.0.1, ::1, localhost or 0.0.0.0."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified
