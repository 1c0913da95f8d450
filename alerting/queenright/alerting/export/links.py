"""Derive the links of rules from the links of notifications."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from queenright.alerting.rules import Links
from queenright.alerting.settings import AlertingSettings


def rule_links(
    settings: AlertingSettings, *, runbooks: str | None = None, dashboards: str | None = None
) -> Links:
    """
    Return the link bases for the annotations of rules.

    Args:
        settings: Settings of notifications. The base of the dashboards comes from ``dashboard_url``; without
            it, alerts have no dashboard link.
        runbooks: Base URL of the runbooks, instead of the settings.
        dashboards: Base URL of the dashboards (before the uid), instead of the settings.
    """
    return Links(
        runbooks=runbooks or settings.runbooks,
        dashboards=dashboards or _dashboard_base(settings.dashboard_url),
    )


def _dashboard_base(template: str) -> str:
    """Return the part of a dashboard URL before its uid, ``https://host/d``; empty if there is none."""
    parts = urlsplit(template)
    prefix, separator, _ = parts.path.partition("/d/")
    if not separator or not parts.netloc:
        return ""
    return urlunsplit((parts.scheme, parts.netloc, f"{prefix}/d", "", ""))
