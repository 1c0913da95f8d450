"""Links to other dashboards, with the same variables and time range, and to pages of the console."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models

UIDS: Final = {
    name: f"queenright-{name}"
    for name in ("fleet", "agent", "judge", "interventions", "breakers", "monitor", "cost", "cluster")
}
"""The uid of each dashboard. Do not change them: links use them."""

_PARAMETERS: Final = "${datasource:queryparam}&${job:queryparam}&${instance:queryparam}&${__url_time_range}"


def data_link(title: str, url: str, *, new_tab: bool) -> dict[str, object]:
    """Return a data link in Grafana's JSON format."""
    return {"title": title, "url": url, "targetBlank": new_tab}


def agent_dashboard(label: str = "agent") -> dict[str, object]:
    """Return a data link to the dashboard of the agent in this label."""
    # Data links do not inherit variables and the time range, so the URL includes them.
    value = _label_value(label)
    url = f"/d/{UIDS['agent']}?var-agent={value}&{_PARAMETERS}&${{console:queryparam}}"
    return data_link("Agent dashboard", url, new_tab=False)


def agent_page(title: str, label: str = "agent") -> dict[str, object]:
    """Return a link to the agent's page in the console."""
    return console(title, f"agents/{_label_value(label)}")


def breaker_page(title: str) -> dict[str, object]:
    """Return a link to the breaker's page in the console."""
    return console(title, f"console/operate/breakers?search={_label_value('breaker')}")


def console(title: str, path: str) -> dict[str, object]:
    """Return a data link to a page of the console."""
    return data_link(title, _console_url(path), new_tab=True)


def panel_link(title: str, path: str) -> builders.DashboardLink:
    """Return a panel link to a page of the console."""
    link = builders.DashboardLink(title).type(models.DashboardLinkType.LINK)
    return link.url(_console_url(path)).target_blank(True)


def dashboard_links(tag: str) -> list[Builder[models.DashboardLink]]:
    """Return the links at the top of every dashboard: the other dashboards, and the console."""
    dashboards = builders.DashboardLink("Queenright").type(models.DashboardLinkType.DASHBOARDS).tags([tag])
    dashboards.include_vars(True).keep_time(True).as_dropdown(True)
    console_link = (
        panel_link("Console", "").icon("external link").tooltip("Agents, tickets, breakers, recoveries")
    )
    return [dashboards.tooltip("Other dashboards with the same variables and time range"), console_link]


def _console_url(path: str) -> str:
    # `raw`, because other formats escape the colon and slashes of the URL.
    return f"${{console:raw}}/{path}"


def _label_value(label: str) -> str:
    return f'${{__data.fields["{label}"]:percentencode}}'
