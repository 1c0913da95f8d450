"""Where the links of rules lead, from where the links of notifications lead."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from queenright.alerting.rules import Links
from queenright.alerting.settings import AlertingSettings


def rule_links(
    settings: AlertingSettings, *, runbooks: str | None = None, dashboards: str | None = None
) -> Links:
    """
    Return where the annotations of rules lead.

    Args:
        settings: Runbooks are those of the notifications; dashboards are where ``dashboard_url`` has its own.
            Without one nobody has said that there is a Grafana, and alerts have no such link.
        runbooks: In place of what the settings say.
        dashboards: In place of what the settings say; the part of a dashboard's address before its uid.
    """
    return Links(
        runbooks=runbooks or settings.runbooks, dashboards=dashboards or _before_uid(settings.dashboard_url)
    )


def _before_uid(template: str) -> str:
    """Return what comes before a dashboard's uid, ``https://host/d``; empty if it is not told apart."""
    parts = urlsplit(template)
    before, found, _ = parts.path.partition("/d/")
    return urlunsplit((parts.scheme, parts.netloc, f"{before}/d", "", "")) if found and parts.netloc else ""
