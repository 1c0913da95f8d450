"""Derive the links of rules from the links of notifications."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from queenright.alerting.rules import Links
from queenright.alerting.settings import AlertingSettings


def rule_links(
    settings: AlertingSettings, *, runbooks: str | None = None, dashboards: str | None = None
) -> Links:
    """
    Return the base URLs of the links in the rules' annotations.

    Args:
        settings: The base URL of the dashboards is taken from ``dashboard_url``. Without it, alerts have no
            link to a dashboard.
        runbooks: Base URL of the runbooks; overrides the settings.
        dashboards: Base URL of the dashboards, without the uid; overrides the settings.
    """
    return Links(
        runbooks=runbooks or settings.runbooks,
        dashboards=dashboards or _dashboard_base(settings.dashboard_url),
    )


def _dashboard_base(template: str) -> str:
    """
    Return the part of a dashboard's URL before its uid, such as ``https://host/d``; "" if there is none.
    """
    parts = urlsplit(template)
    prefix, separator, _ = parts.path.partition("/d/")
    if not separator or not parts.netloc:
        return ""
    return urlunsplit((parts.scheme, parts.netloc, f"{prefix}/d", "", ""))
