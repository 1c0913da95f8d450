"""The console's pages over HTTP: what they show, what their forms do, what they refuse."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path

import httpx
import pytest

from queenright.server.console.forms import agent_page
from queenright.server.settings import Settings
from queenright.server.up import Running
from tests.isolation import ROOT
from tests.server.conftest import demo_settings, looping
from tests.server.test_app import lost_ticket_on, ticket_on
from tests.server.test_approvals import request_for_looper
from tests.server.test_cli_acting import WORKER

NAMES = [
    "\"><script>alert(1)</script>'../..",
    "bee/1",
    "bee/1/nudge",
    "a?b#c&d=e",
    "%2F",
    "☃ \u05d0\u05d1",
    "a\\b",
]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Only the test decides and acts, however long it takes."""
    found = demo_settings(tmp_path / "storage", orchestrator="none")
    health = found.health_monitoring
    calm = health.model_copy(
        update={"intervention": health.intervention.model_copy(update={"enabled": False})}
    )
    alerting = found.alerting.model_copy(update={"dashboard_url": "http://grafana.example/d/a?agent={agent}"})
    return found.model_copy(update={"alerting": alerting, "health_monitoring": calm})


@pytest.fixture
async def browser(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    """What a browser is to the service: it reads pages, keeps cookies, says where its forms are from."""
    headers = {"Accept": "text/html", "Origin": running.url}
    async with httpx.AsyncClient(
        base_url=running.url, trust_env=False, headers=headers, follow_redirects=True, timeout=60
    ) as client:
        yield client


def heading(response: httpx.Response) -> str:
    """The page's heading, as it is read."""
    [found] = re.findall(r"<h1[^>]*>(.*?)</h1>", response.text, re.DOTALL)
    return " ".join(unescape(re.sub("<[^>]*>", "", found)).split())


def flash_message(response: httpx.Response) -> str:
    """What the page says of the form before."""
    return unescape("".join(re.findall(r'<p class="said[^>]*>(.*?)</p>', response.text, re.DOTALL)))


def refusal(response: httpx.Response) -> str:
    """What the page says is wrong."""
    return unescape("".join(re.findall(r'<p class="refusal"[^>]*>(.*?)</p>', response.text, re.DOTALL)))


async def obey_until_stopped(running: Running) -> None:
    """Act as the worker: follow instructions until it is terminated."""
    path = "/api/agents/looper/instructions"
    async with httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False, timeout=60) as http:
        kind = ""
        while kind != "terminate":
            response = await http.get(path, params=WORKER | {"wait": 30})
            for one in response.json()["instructions"]:
                kind = one["kind"]
                answer = WORKER | {"outcome": "done"}
                if kind == "terminate":
                    answer |= {"checkpoint_id": "cp-7"}
                await http.post(f"{path}/{one['instruction_id']}/answer", json=answer)


# -- what pages show ------------------------------------------------------------------------------


async def test_worker_page_has_status_and_available_actions(
    running: Running, browser: httpx.AsyncClient
) -> None:
    ticket_id = await ticket_on(running)

    page = await browser.get("/agents/looper")

    assert (page.status_code, heading(page)) == (200, "looper stuck")
    for act in ("nudge", "escalate", "terminate"):
        assert f"/act/{act}?agent=looper&amp;session=looper-session" in page.text
    assert "/act/recover" not in page.text
    assert f"/tickets/{ticket_id}" in page.text
    assert "looper-session" in page.text
    assert "http://grafana.example/d/a?agent=looper" in page.text


async def test_recovery_is_offered_only_for_a_failed_ended_worker(
    running: Running, browser: httpx.AsyncClient
) -> None:
    await running.service.ingest(list(looping(running.service.clock(), times=1, ended=True)))
    well = await browser.get("/agents/looper")
    await lost_ticket_on(running)
    failed = await browser.get("/agents/looper")

    assert "/act/recover" not in well.text
    assert "It cannot be recovered now: it has ended (completed)" in well.text
    assert "/act/recover?agent=looper" in failed.text
    assert "/act/nudge" not in failed.text


async def test_a_worker_may_be_called_anything(running: Running, browser: httpx.AsyncClient) -> None:
    for name in NAMES:
        await running.service.ingest(list(looping(running.service.clock(), agent=name, times=2)))

    links = {agent_page(name) for name in NAMES}
    found = []
    for link in links:
        page = await browser.get(link)
        [nudge] = re.findall(r'href="(/act/nudge[^"]*)"', page.text)
        question = await browser.get(unescape(nudge))
        found.append(heading(page).rsplit(" ", 1)[0])
        for one in (page, question):
            assert one.status_code == 200
            assert "<script>alert" not in one.text
        assert heading(question) == f"Nudge {found[-1]}"

    assert sorted(found) == sorted(NAMES)


async def test_breakers_are_listed_found_by_name_and_reset(
    running: Running, browser: httpx.AsyncClient
) -> None:
    none = await browser.get("/breakers")
    breaker = running.service.breakers.get("external_api", "bee/1", "<b>x</b>")
    for _ in range(breaker.status.threshold):
        breaker.admit().record_failure("it is down")

    every = await browser.get("/breakers")
    one = await browser.get("/breakers", params={"name": breaker.name})
    part = await browser.get("/breakers", params={"name": "BEE"})
    other = await browser.get("/breakers", params={"name": "<i>wasp"})
    question = await browser.get("/breakers/reset", params={"name": breaker.name})
    assert breaker.state.value == "open"
    done = await browser.post("/breakers/reset", data={"name": breaker.name, "by": "ada"})

    assert "A breaker is created by the first call" in none.text
    for page in (every, one, part, question):
        assert "&lt;b&gt;x&lt;/b&gt;" in page.text
    assert "No circuit breaker has <b>&lt;i&gt;wasp</b>" in other.text
    assert flash_message(done) == f"{breaker.name} is closed."
    assert breaker.status.reason == "reset by ada"


async def test_recoveries_are_listed_with_their_tasks(running: Running, browser: httpx.AsyncClient) -> None:
    none = await browser.get("/recoveries")
    await lost_ticket_on(running)
    await running.service.health.initiate_recovery("looper-session", by="ada")
    page = await browser.get("/recoveries")

    assert "No recoveries yet" in none.text
    assert "looper-session" in page.text
    assert 'href="/agents/looper"' in page.text


async def test_missing_resource_is_a_page_for_browsers_and_json_for_programs(http: httpx.AsyncClient) -> None:
    for path in (
        "/agents/nobody",
        "/tickets/none",
        "/tickets/none/acknowledge",
        "/breakers/reset?name=none",
        "/act/nudge?agent=nobody",
        "/act/recover?task=none",
        "/approvals/none",
        "/escalations/none",
        "/runbooks/None",
        "/recoveries?cursor=none",
    ):
        page = await http.get(path, headers={"Accept": "text/html,*/*;q=0.8"})
        program = await http.get(path)

        assert page.status_code == program.status_code
        assert page.status_code in (400, 404)
        assert page.headers["content-type"].startswith("text/html")
        assert refusal(page).lower() == program.json()["title"].lower()


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("/", "/console/"),
        ("/agents", "/console/"),
        ("/sessions", "/console/"),
        ("/tickets", "/console/tickets"),
        ("/incidents", "/console/incidents"),
        ("/interventions", "/console/operate/acting"),
        ("/notifications", "/console/tickets"),
        ("/events", "/console/operate/audit"),
        ("/api", "/docs"),
    ],
)
async def test_index_addresses_lead_to_the_page_that_lists_them(
    idle_http: httpx.AsyncClient, address: str, place: str
) -> None:
    answer = await idle_http.get(address)

    assert (answer.status_code, answer.headers["location"]) == (307, place)


async def test_unknown_address_is_named_on_a_page_and_to_programs(http: httpx.AsyncClient) -> None:
    page = await http.get("/nowhere", headers={"Accept": "text/html"})
    program = await http.get("/api/nowhere")

    assert "There is no &#39;/nowhere&#39;" in page.text
    assert program.json()["title"] == "there is no '/api/nowhere'; the API is described at /docs"


@pytest.mark.parametrize("page", ["agent", "telemetry", "recoveries", "breakers"])
def test_headings_of_numbers_are_aligned_with_them(page: str) -> None:
    text = (ROOT / f"server/queenright/server/pages/{page}.html").read_text(encoding="utf-8")
    for table in re.findall(r"<table.*?</table>", text, re.DOTALL):
        head, body = table.split("<tbody>", 1)
        headings = re.findall(r"<th\b([^>]*)>", head)
        cells = re.findall(r"<t[dh]\b([^>]*)>", body.split("</tr>")[0])

        assert ["number" in one for one in headings] == ["number" in one for one in cells]


async def test_looking_changes_nothing(running: Running, browser: httpx.AsyncClient) -> None:
    """A chat that previews a link acknowledges, stops and resets nothing."""
    approval = await request_for_looper(running)
    ticket_id = approval.ticket_id

    for path in (
        f"/tickets/{ticket_id}",
        f"/tickets/{ticket_id}/acknowledge?by=ada",
        f"/tickets/{ticket_id}/resolve?by=ada&reason=x",
        "/act/terminate?agent=looper&by=ada&reason=x",
        "/act/nudge?agent=looper&by=ada&message=x",
        f"/approvals/{approval.approval_id}?answer=approve&by=ada",
        "/you?by=ada",
    ):
        page = await browser.get(path)
        head = await browser.head(path)
        assert (page.status_code, head.status_code, head.content) == (200, 200, b"")

    [ticket] = running.service.tickets.open_tickets()
    assert (ticket.status.value, ticket.acknowledged_by) == ("intervening", "")
    assert running.service.approvals.pending() == [approval]
    assert await running.service.health.interventions(10, "looper") == []
    assert dict(browser.cookies) == {}


# -- who it is ------------------------------------------------------------------------------------


async def test_operator_name_is_asked_once_and_remembered(
    running: Running, browser: httpx.AsyncClient
) -> None:
    path = f"/tickets/{await ticket_on(running)}"
    nameless = await browser.post(f"{path}/acknowledge", data={"by": " "})
    done = await browser.post(f"{path}/acknowledge", data={"by": " Zoë; <b>&,= "})
    next_question = await browser.get("/act/nudge?agent=looper")

    assert nameless.status_code == 422
    assert "this field is required" in refusal(nameless)
    assert flash_message(done).startswith("Acknowledged.")
    assert 'value="Zoë; &lt;b&gt;&amp;,="' in next_question.text
    [ticket] = running.service.tickets.open_tickets()
    assert ticket.acknowledged_by == "Zoë; <b>&,="


async def test_remembered_name_is_used_when_a_cross_site_link_left_the_field_empty(
    running: Running, browser: httpx.AsyncClient
) -> None:
    path = f"/tickets/{await ticket_on(running)}/acknowledge"
    await browser.post("/you", data={"by": "ada"})
    cookies = httpx.Cookies(browser.cookies)
    browser.cookies.clear()
    # A browser sends no strict cookie along with a link of another site's.
    question = await browser.get(path, headers={"Sec-Fetch-Site": "cross-site"})
    browser.cookies = cookies
    await browser.post(path, data={"by": ""})

    assert not re.search(r'name="by"[^>]* required', question.text)
    [ticket] = running.service.tickets.open_tickets()
    assert (ticket.acknowledged_by, ticket.acknowledged_via) == ("ada", "link")


async def test_cookies_go_to_our_own_pages_and_to_no_script(browser: httpx.AsyncClient) -> None:
    done = await browser.post("/you", data={"by": "ada"}, follow_redirects=False)

    assert done.status_code == 303
    for cookie in done.headers.get_list("set-cookie"):
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie


async def test_flash_message_is_shown_once_and_cannot_be_forged_by_a_link(
    browser: httpx.AsyncClient,
) -> None:
    first = await browser.post("/you", data={"by": "ada"})
    second = await browser.get("/you")
    browser.cookies.set("queenright_said", "no message of ours")
    third = await browser.get("/you?said=hello")

    assert [flash_message(page).count("ada") for page in (first, second, third)] == [1, 0, 0]


async def test_a_name_that_the_api_refuses_is_refused(browser: httpx.AsyncClient) -> None:
    for by in ("x" * 101, "\u202e", "a\0b"):
        page = await browser.post("/you", data={"by": by})

        assert page.status_code == 422
        assert refusal(page).startswith("By: ")


# -- what forms do --------------------------------------------------------------------------------


async def test_a_nudge_waits_for_the_worker(running: Running, browser: httpx.AsyncClient) -> None:
    await running.service.ingest(list(looping(running.service.clock(), times=2)))
    await browser.get("/api/agents/looper/instructions", params=WORKER)

    done = await browser.post(
        "/act/nudge", data={"agent": "looper", "message": "What blocks you?\r\nSay.", "by": "ada"}
    )

    assert "queued" in flash_message(done)
    assert heading(done).startswith("looper")
    [nudge] = await running.service.health.interventions(10, "looper")
    assert (nudge.by, nudge.message) == ("ada", "What blocks you?\nSay.")


async def test_failed_action_has_a_reason(running: Running, browser: httpx.AsyncClient) -> None:
    await running.service.ingest(list(looping(running.service.clock(), times=2)))

    done = await browser.post("/act/nudge", data={"agent": "looper", "by": "ada"})

    assert flash_message(done).startswith("Not done (unreachable): ")
    assert 'role="alert"' in done.text


async def test_worker_is_terminated_with_a_reason_and_only_in_the_viewed_incarnation(
    running: Running, browser: httpx.AsyncClient
) -> None:
    await running.service.ingest(list(looping(running.service.clock(), times=2)))
    await browser.get("/api/agents/looper/instructions", params=WORKER)
    form = {"agent": "looper", "session": "looper-session", "incarnation": "one", "by": "ada"}

    silent = await browser.post("/act/terminate", data=form | {"reason": " "})
    other = await browser.post("/act/terminate", data=form | {"reason": "It <loops>.", "incarnation": "two"})
    stopping = asyncio.create_task(obey_until_stopped(running))
    done = await browser.post("/act/terminate", data=form | {"reason": "It loops."})
    await stopping

    assert (silent.status_code, "Why" in refusal(silent)) == (422, True)
    assert other.status_code == 409
    assert "the worker was restarted in the meantime" in refusal(other)
    assert "It &lt;loops&gt;.</textarea>" in other.text
    assert "checkpoint cp-7" in flash_message(done)


async def test_worker_page_lists_interventions_and_their_requesters(
    running: Running, browser: httpx.AsyncClient
) -> None:
    await running.service.ingest(list(looping(running.service.clock(), times=2)))
    for _ in range(2):
        await browser.post("/act/nudge", data={"agent": "looper", "by": "ada"})
    await browser.get("/api/agents/looper/instructions", params=WORKER)  # from now on it is reached
    await browser.post("/act/nudge", data={"agent": "looper", "by": "bob"})
    await running.service.health.emergency_stop(True, by="ada", reason="provider is down")
    await browser.post("/act/terminate", data={"agent": "looper", "reason": "x", "by": "eve"})

    page = unescape((await browser.get("/agents/looper")).text)

    assert page.count("looper: nudge by ada: not done: ") == 2
    assert page.count("looper: nudge queued, by bob.") == 1
    assert "nudge by bob" not in page
    assert page.count("looper: terminate by eve: refused: ") == 1


async def test_silence_lasts_two_hours_by_default(running: Running, browser: httpx.AsyncClient) -> None:
    path = f"/tickets/{await ticket_on(running)}/silence"

    question = await browser.get(path)
    wrong = await browser.post(path, data={"by": "ada", "hours": "", "comment": "x"})

    [hours] = re.findall(r'<input id="hours"[^>]*>', question.text)
    assert 'value="2"' in hours
    assert "this field is required" in refusal(wrong)


async def test_nothing_is_offered_while_acting_is_frozen(
    running: Running, browser: httpx.AsyncClient
) -> None:
    await running.service.ingest(list(looping(running.service.clock(), times=2)))
    await running.service.health.emergency_stop(True, by="ada", reason="provider is down")

    page = await browser.get("/agents/looper")
    question = await browser.get("/act/terminate?agent=looper")
    done = await browser.post("/act/terminate", data={"agent": "looper", "reason": "x", "by": "ada"})

    assert "/act/" not in page.text
    for one in (page, question, done):
        assert "provider is down" in one.text
    assert "<button" not in question.text
    assert done.status_code == 409


async def test_a_request_to_stop_is_answered_once(running: Running, browser: httpx.AsyncClient) -> None:
    approval = await request_for_looper(running)
    path = f"/approvals/{approval.approval_id}"
    question = await browser.get(path)
    neither = await browser.post(path, data={"by": "ada"})
    denied = await browser.post(path, data={"by": "ada", "answer": "deny", "reason": "it nearly has it"})
    late = await browser.post(path, data={"by": "bob", "answer": "approve"})

    assert heading(question) == "Terminate looper?"
    assert "It loops." in question.text
    assert refusal(neither) == "Choose approve or deny."
    assert flash_message(denied).startswith("Denied.")
    assert late.status_code == 409
    assert "denied by ada: it nearly has it" in (await browser.get(path)).text


async def test_a_question_to_the_orchestrator_is_decided(
    running: Running, browser: httpx.AsyncClient
) -> None:
    await running.service.ingest(list(looping(running.service.clock(), times=2)))
    asked_for = {"agent": "looper", "by": "ada", "reason": "it gets nowhere"}
    await browser.post("/act/escalate", data=asked_for)
    [pending] = running.service.interventions.ledger.pending.values()
    path = f"/escalations/{pending.escalation_id}"
    attention = await browser.get("/api/attention")
    question = await browser.get(path)
    wrong = await browser.post(path, data={"answer": "more_time", "minutes": "many"})
    endless = await browser.post(path, data={"answer": "more_time", "minutes": "1e999"})
    done = await browser.post(path, data={"answer": "more_time", "minutes": "30"})
    over = await browser.post(path, data={"answer": "terminate"})

    assert pending.escalation_id in attention.text
    assert heading(question) == "Decide about looper"
    assert [page.status_code for page in (wrong, endless, over)] == [422, 422, 404]
    assert "enter a number" in refusal(wrong)
    assert flash_message(done) == "Decided: more time."
    [decided] = await running.service.health.escalations()
    assert (decided.decided_by, decided.more_time_seconds) == ("ada", 1800.0)


async def test_ticket_settled_by_a_person_is_resolved(running: Running, browser: httpx.AsyncClient) -> None:
    path = f"/tickets/{await lost_ticket_on(running)}"
    page = await browser.get(path)
    done = await browser.post(f"{path}/resolve", data={"by": "ada", "reason": "written by hand"})
    after = await browser.get(f"{path}/resolve")

    assert f"{path}/resolve" in page.text
    assert "resolved" in flash_message(done)
    assert "ada: written by hand" in done.text
    assert f"{path}/acknowledge" not in done.text
    assert "It is closed: resolved." in after.text


async def test_acknowledgement_is_taken_back(running: Running, browser: httpx.AsyncClient) -> None:
    path = f"/tickets/{await ticket_on(running)}"
    nobodys = await browser.get(f"{path}/unacknowledge")
    await browser.post(f"{path}/acknowledge", data={"by": "ada"})
    page = await browser.get(path)
    back = await browser.post(f"{path}/unacknowledge", data={"by": "ada"})

    assert "The ticket is not acknowledged." in nobodys.text
    assert f"{path}/unacknowledge" in page.text
    assert "withdrawn" in flash_message(back)
    [ticket] = running.service.tickets.open_tickets()
    assert ticket.acknowledged_by == ""


async def test_without_an_alertmanager_silencing_is_refused_with_a_reason(
    running: Running, browser: httpx.AsyncClient
) -> None:
    path = f"/tickets/{await ticket_on(running)}"
    question = await browser.get(f"{path}/silence")
    wrong = await browser.post(f"{path}/silence", data={"by": "ada", "hours": "long", "comment": "x"})
    short = await browser.post(f"{path}/silence", data={"by": "ada", "hours": "0", "comment": "x"})
    nobody = await browser.post(
        f"{path}/silence", data={"by": "ada", "hours": "2", "comment": "I look at it"}
    )
    none = await browser.get(f"{path}/unsilence")

    assert "acknowledge it instead" in question.text
    assert "enter a number" in refusal(wrong)
    assert (short.status_code, nobody.status_code) == (422, 409)
    assert "alertmanager_urls" in refusal(nobody)
    assert "I look at it</textarea>" in nobody.text
    assert "The ticket is not silenced." in none.text


async def test_acknowledged_ticket_names_its_owner(running: Running, browser: httpx.AsyncClient) -> None:
    path = f"/tickets/{await ticket_on(running)}"
    await browser.post(f"{path}/acknowledge", data={"by": "ada", "via": "page"})
    page, question = await browser.get(path), await browser.get(f"{path}/acknowledge")
    again = await browser.post(f"{path}/acknowledge", data={"by": "bob"})

    assert "<bdi>ada</bdi></b> acknowledged the ticket" in page.text
    assert f"{path}/acknowledge" not in page.text
    assert "by ada" in question.text
    assert again.status_code == 409
    [ticket] = running.service.tickets.open_tickets()
    assert (ticket.acknowledged_by, ticket.acknowledged_via) == ("ada", "page")


async def test_recovery_of_a_lost_task_is_requested(running: Running, browser: httpx.AsyncClient) -> None:
    await lost_ticket_on(running)
    question = await browser.get("/act/recover?agent=looper")
    done = await browser.post("/act/recover", data={"task": "looper-session", "by": "ada", "reviewed": "yes"})

    assert heading(question) == "Recover looper's task?"
    assert heading(done) == "Recoveries"
    assert flash_message(done)
    assert "by <bdi>ada</bdi>" in done.text


# -- what is refused ------------------------------------------------------------------------------


async def test_cross_site_form_is_refused(running: Running, browser: httpx.AsyncClient) -> None:
    ticket_id = await ticket_on(running)
    form = {"by": "eve", "agent": "looper", "reason": "x"}

    for origin in ("https://evil.example", "null"):
        for path in (f"/tickets/{ticket_id}/acknowledge", "/act/nudge", "/act/terminate", "/breakers/reset"):
            refused = await browser.post(path, data=form, headers={"Origin": origin})
            assert refused.status_code == 403

    [ticket] = running.service.tickets.open_tickets()
    assert ticket.acknowledged_by == ""
    assert await running.service.health.interventions(10, "looper") == []


async def test_unknown_form_field_is_refused(browser: httpx.AsyncClient) -> None:
    form = "application/x-www-form-urlencoded"
    for content, kind, status in (
        (b'{"by": "ada"}', "application/json", 415),
        (b"by=ada", "text/plain", 415),
        (b"by=%ff", form, 400),
        (b"\xff=ada", form, 400),
        (b"&".join(b"by=a" for _ in range(31)), form, 400),
        (b"by=" + b"a" * (1 << 20), form, 413),
    ):
        refused = await browser.post("/you", content=content, headers={"Content-Type": kind})

        assert refused.status_code == status


async def test_pages_run_no_script_but_ours_and_are_in_nobodys_frame(browser: httpx.AsyncClient) -> None:
    for path in ("/", "/breakers", "/you", "/agents/nobody"):
        policy = (await browser.get(path)).headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy


# -- colours --------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """How bright a colour is, as WCAG reckons it."""
    digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


async def test_text_has_enough_contrast(browser: httpx.AsyncClient) -> None:
    css = (await browser.get("/static/queenright.css")).text
    themes = [
        dict(re.findall(r"--([a-z]+): (#[0-9a-f]+)", root)) for root in re.findall(r":root \{([^}]*)", css)
    ]
    assert len(themes) == 2

    for theme, on_pill in zip(themes, ("#ffffff", "#191714"), strict=True):
        text = [(theme[ink], theme[paper]) for ink in ("ink", "muted") for paper in ("paper", "card")]
        states = ("healthy", "degraded", "stuck", "failing", "quiet")
        pills = [(on_pill, theme[state]) for state in states]
        for front, back in text + pills:
            light, dark = sorted((luminance(front), luminance(back)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (front, back)
