from __future__ import annotations

import json

from queenright.health.monitoring.worker_summary import no_active_session, summarise
from queenright.runtime.events import EventType
from tests.health.worker_script import WorkerScript


def test_summary_has_the_fields_of_the_judge_as_json() -> None:
    script = WorkerScript().start()
    script.report_step("ACCEPT")
    script.report_step("RETRY", times=2, text="no source given")
    script.now += 90

    summary = summarise(script.health, script.now)

    assert json.loads(json.dumps(summary)) == summary
    assert (
        summary
        | {
            "agent_id": "agent",
            "session_id": "session",
            "node_id": "work",
            "incarnation_id": "i1",
            "total_steps": 3,
            "recent_verdicts": ["ACCEPT", "RETRY", "RETRY"],
            "steps_since_last_accept": 2,
            "stall_minutes": 1.5,
            "evidence_snippet": "no source given",
            "phase": "idle",
            "state": "healthy",
            "status": "active",
            "waiting_reason": None,
        }
        == summary
    )


def test_summary_has_the_requested_number_of_verdicts() -> None:
    script = WorkerScript().start()
    script.report_step("RETRY", times=5)

    assert summarise(script.health, script.now, 3)["recent_verdicts"] == ["RETRY"] * 3
    assert summarise(script.health, script.now, 0)["recent_verdicts"] == []


def test_secrets_in_the_evidence_are_redacted() -> None:
    """B16: secrets in the evidence are masked."""
    script = WorkerScript().start()
    script.report_step(error_type="HTTPError", error="401 for api_key=sk-abcdefghijklmnop1234")

    assert "sk-abcdefghijklmnop1234" not in summarise(script.health, script.now)["evidence_snippet"]


def test_invalid_text_in_evidence_is_repaired() -> None:
    """B16: the text is valid UTF-8 without terminal control sequences or invisible characters."""
    script = WorkerScript().start()
    script.report_step("RETRY", text="a\ud800b \x1b[2J\x00c \u202ereversed\u202c \u200bunseen")
    evidence = summarise(script.health, script.now)["evidence_snippet"]

    assert evidence.encode("utf-8").decode("utf-8") == "a?b c reversed unseen"


def test_waiting_worker_has_a_reason_and_no_stall_minutes() -> None:
    script = WorkerScript().start()
    script.report_wait("backoff")
    script.now += 600
    summary = summarise(script.health, script.now)

    assert (summary["stall_minutes"], summary["waiting_reason"]) == (None, "backoff")


def test_pause_has_its_own_status() -> None:
    """B4: a paused session is neither active nor ended."""
    script = WorkerScript().start()
    script.report_wait("paused")

    assert summarise(script.health, script.now)["status"] == "paused"


def test_worker_with_heartbeats_only_is_unknown() -> None:
    """B4: an unknown status is ``unknown``: neither healthy nor critical."""
    script = WorkerScript()
    script.report_event(EventType.AGENT_HEARTBEAT)

    assert summarise(script.health, script.now)["status"] == "unknown"


def test_summarising_changes_nothing() -> None:
    """B24: a summary changes no clock."""
    script = WorkerScript().start()
    first = summarise(script.health, script.now + 100)

    assert summarise(script.health, script.now + 100) == first


def test_summary_of_an_unknown_session_is_an_error() -> None:
    """B2: without sessions, or with only ended ones, the status is ``no_active_session``."""
    assert no_active_session() == {"status": "no_active_session"}
