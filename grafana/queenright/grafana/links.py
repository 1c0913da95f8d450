"""Where a click leads: another dashboard with the same variables and time, or a page of the console."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models

CONSOLE: Final = "http://127.0.0.1:8420"
"""Where the console is if nothing else is said: what the variable ``console`` begins with."""

UIDS: Final = {
    name: f"queenright-{name}"
    for name in ("fleet", "agent", "judge", "interventions", "breakers", "monitor", "cost")
}
"""The uid of each dashboard: links to it must stay valid."""

_KEPT: Final = "${datasource:queryparam}&${job:queryparam}&${instance:queryparam}&${__url_time_range}"


def data_link(title: str, url: str, *, new_tab: bool) -> dict[str, object]:
    """Return a link behind a value, as Grafana stores it."""
    return {"title": title, "url": url, "targetBlank": new_tab}


def agent_dashboard(label: str = "agent") -> dict[str, object]:
    """Return a link behind a row or series with this label, to the agent's dashboard."""
    # Data links do not inherit variables and time, so the link spells them out.
    value = _value(label)
    url = f"/d/{UIDS['agent']}?var-agent={value}&{_KEPT}&${{console:queryparam}}"
    return data_link("What is it doing?", url, new_tab=False)


def agent_page(title: str, label: str = "agent") -> dict[str, object]:
    """Return a link to the agent's page in the console, where it is nudged, terminated or recovered."""
    return console(title, f"agents/{_value(label)}")


def breaker_page(title: str) -> dict[str, object]:
    """Return a link to the page of breakers in the console, where one is reset."""
    return console(title, f"breakers?name={_value('breaker')}")


def console(title: str, path: str) -> dict[str, object]:
    """Return a link behind a value, to a page of the console."""
    return data_link(title, _in_console(path), new_tab=True)


def panel_link(title: str, path: str) -> builders.DashboardLink:
    """Return a link in a panel's corner, to a page of the console."""
    link = builders.DashboardLink(title).type(models.DashboardLinkType.LINK)
    return link.url(_in_console(path)).target_blank(True)


def dashboard_links(tag: str) -> list[Builder[models.DashboardLink]]:
    """Return the links at the top of every dashboard: the other dashboards, and the console."""
    others = builders.DashboardLink("Queenright").type(models.DashboardLinkType.DASHBOARDS).tags([tag])
    others.include_vars(True).keep_time(True).as_dropdown(True)
    here = panel_link("Console", "").icon("external link").tooltip("Agents, tickets, breakers, recoveries")
    return [others.tooltip("The other dashboards, with the same variables and time"), here]


def _in_console(path: str) -> str:
    # Raw: another format would escape the colon and the slashes of the address.
    return f"${{console:raw}}/{path}"


def _value(label: str) -> str:
    return f'${{__data.fields["{label}"]:percentencode}}'
