from __future__ import annotations

import re
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from pydantic import ValidationError

from queenright.alerting.alert import LABEL_STORM, build_annotations, build_labels
from queenright.alerting.settings import AlertingSettings
from queenright.health.findings import FindingKind, Severity
from queenright.health.tickets.ticket import TicketStatus
from queenright.health.tickets.ticket_lifecycle import RUN_COMPLETED
from queenright.instrumentation.names import ALERT_INTERVENTION
from tests.alerting.parts import T0, make_ticket

LINKS = ("console", "dashboard", "trace", "runbook")
SETTINGS = AlertingSettings()


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        (Severity.CRITICAL, "critical"),
        (Severity.HIGH, "critical"),
        (Severity.MEDIUM, "warning"),
        (Severity.LOW, "info"),
    ],
)
def test_alert_has_exactly_its_labels(inside: Severity, outside: str) -> None:
    labels = build_labels(make_ticket(severity=inside), SETTINGS)
    assert labels == {
        "alertname": ALERT_INTERVENTION,
        "agent": "researcher",
        "cause": "doom_loop",
        "severity": outside,
        "ticket_severity": inside.value,
        "source": "queen",
        "cluster": "default",
        "ticket_id": "ticket-1",
    }


def test_alert_of_a_ticket_opened_in_a_storm_has_the_storm_label() -> None:
    """B71: this label groups many alerts into one message."""
    without_storm = build_labels(make_ticket(), SETTINGS)
    in_storm = build_labels(make_ticket(storm_id="storm-1"), SETTINGS)

    assert in_storm == without_storm | {LABEL_STORM: "storm-1"}


def test_empty_annotations_are_left_out() -> None:
    annotations = build_annotations(make_ticket(evidence_snippet="", graph_id=""), SETTINGS)
    assert set(annotations) == {
        "summary",
        "description",
        "analysis",
        "suggested_action",
        "ticket_id",
        "fingerprint",
        "session_id",
        "console_url",
        "runbook_url",
    }


def test_resolved_text_has_duration_and_reason() -> None:
    resolved_ticket = make_ticket(
        status=TicketStatus.RESOLVED,
        closed_at=T0 + 5400,
        closed_reason="ada: <!channel> mended it.",
        acknowledged_by="grace",
    )

    end_text = build_annotations(resolved_ticket, SETTINGS)["ended"]
    assert all(part in end_text for part in ("1.5 h", "ada", "[!channel>", "grace"))


@pytest.mark.parametrize(("seconds", "duration"), [(6, "6 s"), (240, "4 min"), (9000, "2.5 h")])
def test_duration_of_resolved_alert_has_plain_units(seconds: float, duration: str) -> None:
    resolved_ticket = make_ticket(status=TicketStatus.RESOLVED, closed_at=T0 + seconds)

    assert build_annotations(resolved_ticket, SETTINGS)["ended"].startswith(f"It lasted {duration}")


def test_evidence_is_short_and_holds_no_secret() -> None:
    secret = "sk-" + "a1B2" * 12
    annotations = build_annotations(
        make_ticket(evidence_snippet=f"{'x' * 400} api_key={secret}", analysis=f"It sent {secret}"), SETTINGS
    )
    assert len(annotations["evidence"]) <= 500
    assert secret not in str(annotations)


def test_untriaged_ticket_is_marked_untriaged() -> None:
    """B46: the text says that triage is missing."""
    annotations = build_annotations(make_ticket(untriaged=True, analysis=""), SETTINGS)
    assert annotations["description"].startswith("Untriaged")
    assert annotations["analysis"].endswith("It repeats search(hive).")


@pytest.mark.parametrize("kind", FindingKind)
def test_every_cause_has_its_own_text(kind: FindingKind) -> None:
    annotations = build_annotations(make_ticket(kind=kind), SETTINGS)
    assert annotations["summary"].startswith("researcher ")
    assert annotations["summary"].endswith("(high).")


def test_links_are_filled_and_quoted() -> None:
    settings = AlertingSettings(
        console_url="https://queenright.example/",
        dashboard_url="https://g.example/d/a?var-agent={agent}",
        trace_url="https://t.example/{trace_id}",
        runbook_url="https://wiki.example/rb/",
    )
    annotations = build_annotations(make_ticket(agent_id="a b&c=d", trace_id="0af7"), settings)
    assert annotations["dashboard_url"] == "https://g.example/d/a?var-agent=a%20b%26c%3Dd"
    assert annotations["trace_url"] == "https://t.example/0af7"
    assert annotations["console_url"] == "https://queenright.example/tickets/ticket-1"
    assert annotations["runbook_url"] == "https://wiki.example/rb/QueenrightIntervention"


@pytest.mark.parametrize("name", ['a/b ?&#"<', "%2e%2e/é", "{agent}", "x\n](http://evil.example)"])
def test_name_is_escaped_in_a_link(name: str) -> None:
    settings = AlertingSettings(
        console_url="https://queenright.example",
        dashboard_url="https://g.example/d/a?var-agent={agent}&from=now-1h",
        trace_url="https://t.example/{session_id}/{trace_id}",
        runbook_url="https://wiki.example/rb",
    )
    odd_ticket = make_ticket(agent_id=name, session_id=name, ticket_id=name, trace_id=name)

    links = build_annotations(odd_ticket, settings)

    assert not [
        link for link in (links[f"{target}_url"] for target in LINKS) if re.search(r'[\s"<>\\^`{|}()#]', link)
    ]
    query = parse_qs(urlsplit(links["dashboard_url"]).query, strict_parsing=True)
    assert query == {"var-agent": [name], "from": ["now-1h"]}
    assert [unquote(part) for part in urlsplit(links["console_url"]).path.split("/")] == ["", "tickets", name]
    assert [unquote(part) for part in urlsplit(links["trace_url"]).path.split("/")] == ["", name, name]
    assert links["runbook_url"] == "https://wiki.example/rb/QueenrightIntervention"


def test_link_with_a_missing_value_is_left_out() -> None:
    settings = AlertingSettings(trace_url="https://t.example/{trace_id}")
    annotations = build_annotations(make_ticket(), settings)
    assert "trace_url" not in annotations


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("dashboard_url", "https://g/{agnet}", "{agnet} is unknown"),
        ("trace_url", "https://g/{", "is not a valid template"),
        ("alertmanager_urls", ("ftp://x",), "needs http"),
        ("alertmanager_urls", ("http://a:9093", "http://u:p@a:9093/"), "listed twice"),
        ("alertmanager_urls", ("http://a:port",), "is not a valid URL"),
        ("lifetime_seconds", 179, "greater than or equal to 180"),
        ("resend", 1, "Extra inputs"),
    ],
)
def test_invalid_setting_is_refused_with_a_reason(setting: str, value: object, expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        AlertingSettings.model_validate({setting: value})


def test_credentials_of_a_peer_are_in_no_repr_and_no_dump() -> None:
    settings = AlertingSettings(alertmanager_urls=("http://user:hunter2@am:9093",))
    assert "hunter2" not in repr(settings)
    assert settings.model_dump(mode="json")["alertmanager_urls"] == ["http://am:9093"]


def test_end_of_a_worker_is_not_reported_as_recovery() -> None:
    ended_ticket = make_ticket(status=TicketStatus.WORKER_GONE)

    assert "without recovering" in build_annotations(ended_ticket, SETTINGS)["summary"]


@pytest.mark.parametrize("cleared_at", [None, 7.0])
def test_completed_run_is_reported_as_completed(cleared_at: float | None) -> None:
    ended_ticket = make_ticket(
        status=TicketStatus.WORKER_GONE,
        closed_reason=RUN_COMPLETED,
        condition_cleared_at=cleared_at,
        closed_at=T0,
    )

    annotations = build_annotations(ended_ticket, SETTINGS)
    assert annotations["summary"].startswith(
        "researcher has completed its run; the page was: it is in a loop"
    )
    assert annotations["ended"] == "It lasted 0 s: the run completed."


def test_worker_with_late_progress_is_reported_as_such() -> None:
    """B122: the end of a page states what became of the worker."""
    ended_ticket = make_ticket(status=TicketStatus.WORKER_GONE, condition_cleared_at=7.0)

    summary = build_annotations(ended_ticket, SETTINGS)["summary"]
    assert "progress" in summary
    assert "without recovering" not in summary


@pytest.mark.parametrize(
    "status", [TicketStatus.INTERVENING, TicketStatus.WORKER_GONE, TicketStatus.RESOLVED]
)
def test_summary_names_the_finding_that_the_text_describes(status: TicketStatus) -> None:
    """B102: the finding that opened the ticket may be over; the labels stay."""
    changed_ticket = make_ticket(kind=FindingKind.RESOURCE_LIMIT, words_kind=FindingKind.STALL, status=status)

    assert "has stalled (" in build_annotations(changed_ticket, SETTINGS)["summary"]
    assert build_labels(changed_ticket, SETTINGS)["cause"] == "resource_limit"
