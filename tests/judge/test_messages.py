"""The messages to judge and queen."""

from queenright.judge.messages import check_message, escalation_message, triage_message
from queenright.judge.quoting import unquote

SUMMARY = {"agent_id": "bee", "findings": [], "shadow_findings": [{"kind": "token_spike"}]}


def test_shadow_findings_are_not_in_messages() -> None:
    for message in (
        check_message(0.0, {}, SUMMARY, None),
        triage_message({"ticket_id": "t"}, SUMMARY),
        escalation_message({"escalation_id": "e"}, SUMMARY),
    ):
        assert unquote("worker", message) == {"agent_id": "bee", "findings": []}
    assert "shadow_findings" in SUMMARY


def test_message_states_that_the_worker_is_unknown() -> None:
    assert unquote("worker", triage_message({}, None)) == {"status": "no_active_session"}


def test_message_has_the_trend_or_states_that_this_is_the_first_check() -> None:
    first = check_message(0.0, {"agent_id": "bee"}, SUMMARY, None)
    later_message = check_message(0.0, {"agent_id": "bee"}, SUMMARY, {"minutes_ago": 2.0})

    assert unquote("trend", first) is None
    assert "This is its first check." in first
    assert unquote("trend", later_message) == {"minutes_ago": 2.0}
    assert unquote("check", later_message) == {"agent_id": "bee"}


def test_models_receive_progress_since_the_onset_of_each_finding() -> None:
    findings = [
        {"kind": kind, "severity": "medium", "evidence": "", "since": onset}
        for kind, onset in (("stall", 900.0), ("doom_loop", 700.0), ("checkpoint_stale", 700.0))
    ]
    summary = {"agent_id": "bee", "findings": findings, "last_progress": 800.0, "last_checkpoint": 700.0}

    worker = unquote("worker", triage_message({"ticket_id": "t"}, summary))

    assert worker is not None
    assert [row["progress_since"] for row in worker["findings"]] == [None, 800.0, None]
