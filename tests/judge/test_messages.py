"""What judge and queen are told in one message."""

from queenright.judge.messages import check_message, escalation_message, triage_message
from queenright.judge.quoting import unquote

SUMMARY = {"worker_agent_id": "bee", "findings": [], "shadow_findings": [{"kind": "token_spike"}]}


def test_nothing_is_told_of_what_detectors_in_shadow_say() -> None:
    for message in (
        check_message(0.0, {}, SUMMARY, None),
        triage_message({"ticket_id": "t"}, SUMMARY),
        escalation_message({"escalation_id": "e"}, SUMMARY),
    ):
        assert unquote("worker", message) == {"worker_agent_id": "bee", "findings": []}
    assert "shadow_findings" in SUMMARY


def test_of_a_worker_that_is_not_known_that_is_told() -> None:
    assert unquote("worker", triage_message({}, None)) == {"status": "no_active_session"}


def test_a_check_tells_the_trend_or_that_it_is_the_first() -> None:
    first = check_message(0.0, {"agent_id": "bee"}, SUMMARY, None)
    later = check_message(0.0, {"agent_id": "bee"}, SUMMARY, {"minutes_ago": 2.0})

    assert unquote("trend", first) is None
    assert "It was not looked at before." in first
    assert unquote("trend", later) == {"minutes_ago": 2.0}
    assert unquote("check", later) == {"agent_id": "bee"}
