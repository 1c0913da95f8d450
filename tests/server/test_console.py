"""Pages outside the console: redirects to it, runbooks, sign-in and errors."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path

import httpx
import pytest

from queenright.server.serving import RunningService
from queenright.server.settings import Settings
from tests.server.conftest import demo_settings, looping
from tests.server.test_app import wait_for_ticket


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings with which only the test decides and acts, however long it takes."""
    base_settings = demo_settings(tmp_path / "storage", orchestrator="none")
    health = base_settings.health_monitoring
    calm_health = health.model_copy(
        update={"intervention": health.intervention.model_copy(update={"enabled": False})}
    )
    return base_settings.model_copy(update={"health_monitoring": calm_health})


@pytest.fixture
async def browser(running: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client that behaves like a browser: it accepts HTML, keeps cookies and sends Origin."""
    headers = {"Accept": "text/html", "Origin": running.url}
    async with httpx.AsyncClient(
        base_url=running.url, trust_env=False, headers=headers, follow_redirects=True, timeout=60
    ) as client:
        yield client


def read_error(response: httpx.Response) -> str:
    """Return the error text of a page."""
    return unescape("".join(re.findall(r'<p class="refusal"[^>]*>(.*?)</p>', response.text, re.DOTALL)))


async def test_missing_resource_is_a_page_for_browsers_and_json_for_programs(http: httpx.AsyncClient) -> None:
    for path in ("/nowhere", "/runbooks/None", "/tickets/none/nudge"):
        page = await http.get(path, headers={"Accept": "text/html,*/*;q=0.8"})
        program = await http.get(path)

        assert (page.status_code, program.status_code) == (404, 404)
        assert page.headers["content-type"].startswith("text/html")
        assert read_error(page).lower().startswith(program.json()["title"].lower().partition(";")[0])


REDIRECTS = {
    "/": "/console/",
    "/agents": "/console/",
    "/agents/looper": "/console/agents/looper",
    "/agents/looper?session=a%2Fb": "/console/agents/looper?session=a%2Fb",
    "/agents/bee%2F1%3F": "/console/agents/bee%2F1%3F",
    "/agents/bee/1": "/console/agents/bee%2F1",
    "/sessions": "/console/",
    "/tickets": "/console/tickets",
    "/tickets/t-1": "/console/tickets/t-1",
    "/tickets/t-1/acknowledge": "/console/tickets/t-1",
    "/tickets/..%5c%3Cb%3E": "/console/tickets/..%5C%3Cb%3E",
    "/incidents": "/console/incidents",
    "/approvals/a-1": "/console/operate/actions",
    "/permissions/p-1": "/console/",
    "/interventions": "/console/operate/actions",
    "/breakers": "/console/operate/breakers",
    "/breakers?search=bee": "/console/operate/breakers?search=bee",
    "/recoveries": "/console/operate/recoveries",
    "/telemetry": "/console/operate/telemetry",
    "/notifications": "/console/tickets",
    "/events": "/console/operate/audit",
    "/api": "/docs",
    "/agents/": "/console/",
    "/agents/looper/": "/console/agents/looper",
    "/agents/looper/?session=s": "/console/agents/looper?session=s",
    "/tickets/": "/console/tickets",
    "/tickets/t-1/": "/console/tickets/t-1",
    "/silences": "/console/operate/silences",
    "/silences/": "/console/operate/silences",
    "/settings": "/console/operate/settings",
    "/settings/": "/console/operate/settings",
    "/audit": "/console/operate/audit",
    "/talk": "/console/talk",
}


async def test_stable_url_redirects_to_its_console_page(idle_http: httpx.AsyncClient) -> None:
    locations = {address: await idle_http.get(address) for address in REDIRECTS}

    assert {answer.status_code for answer in locations.values()} == {307}
    assert {address: path.headers["location"] for address, path in locations.items()} == REDIRECTS


async def test_unknown_url_is_named_in_html_and_json(http: httpx.AsyncClient) -> None:
    page = await http.get("/nowhere", headers={"Accept": "text/html"})
    program = await http.get("/api/nowhere")

    assert "There is no &#39;/nowhere&#39;" in page.text
    assert program.json()["title"] == "there is no '/api/nowhere'; see /docs for the API"


async def test_get_requests_change_no_ticket(running: RunningService, browser: httpx.AsyncClient) -> None:
    """Otherwise the link preview of a chat program could acknowledge a ticket."""
    ticket_id = await wait_for_ticket(running)

    for path in (f"/tickets/{ticket_id}", f"/tickets/{ticket_id}/acknowledge?by=ada"):
        page = await browser.get(path)
        head = await browser.head(path)
        form = await browser.post(path, data={"by": "ada"})
        assert (page.status_code, head.status_code, head.content) == (200, 200, b"")
        assert form.status_code == 405

    [ticket] = running.service.tickets.open_tickets()
    assert (ticket.status.value, ticket.acknowledged_by) == ("intervening", "")
    assert dict(browser.cookies) == {}


async def test_console_without_scripts_names_the_command_line(
    running: RunningService, browser: httpx.AsyncClient
) -> None:
    await running.service.ingest(list(looping(running.service.clock(), times=1)))

    page = await browser.get("/agents/looper")

    assert "Without it, use the command line: queenright " in page.text


async def test_form_with_another_content_type_is_rejected(browser: httpx.AsyncClient) -> None:
    form = "application/x-www-form-urlencoded"
    for content, kind, status in (
        (b'{"token": "x"}', "application/json", 415),
        (b"token=x", "text/plain", 415),
        (b"token=%ff", form, 400),
        (b"\xff=x", form, 400),
        (b"&".join(b"token=x" for _ in range(31)), form, 400),
        (b"token=" + b"a" * (1 << 20), form, 413),
    ):
        response = await browser.post("/login", content=content, headers={"Content-Type": kind})

        assert response.status_code == status


async def test_pages_allow_only_own_scripts_and_cannot_be_framed(browser: httpx.AsyncClient) -> None:
    for path, scripts in (("/", "script-src 'self'"), ("/docs", ""), ("/login", ""), ("/nowhere", "")):
        policy = (await browser.get(path)).headers["content-security-policy"].split("; ")
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert [page for page in policy if page.startswith("script-src")] == ([scripts] if scripts else [])


# -- colours --------------------------------------------------------------------------------------


def compute_luminance(colour: str) -> float:
    """Return the relative luminance of a colour, as defined by WCAG."""
    digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
    channels = [int(digits[offset : offset + 2], 16) / 255 for offset in (0, 2, 4)]
    linear = [
        channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4 for channel in channels
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


async def test_text_has_enough_contrast(browser: httpx.AsyncClient) -> None:
    css = (await browser.get("/static/queenright.css")).text
    themes = [
        dict(re.findall(r"--([a-z]+): (#[0-9a-f]+)", root)) for root in re.findall(r":root \{([^}]*)", css)
    ]
    assert len(themes) == 2

    for theme in themes:
        for ink, paper in itertools.product(("ink", "muted"), ("paper", "card")):
            dark, light = sorted((compute_luminance(theme[ink]), compute_luminance(theme[paper])))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (ink, paper)
