"""The reported values of detectors agree with their findings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queenright.health.detection.detector_values import list_detector_counts
from queenright.health.findings import FindingKind
from queenright.health.settings import HealthSettings
from tests.health.worker_script import WorkerScript

SETTINGS = HealthSettings.model_validate({"judge": {"start_grace_seconds": 0}})
EXACT = {FindingKind.DOOM_LOOP, FindingKind.RETRY_STORM, FindingKind.ERROR_STREAK, FindingKind.NO_TOOL_CALLS}
CALLS = st.tuples(
    st.sampled_from(["search", "read_file", "edit_file", "bash"]),
    st.sampled_from("ab"),
    st.sampled_from([None, "r", "s"]),
    st.sampled_from(["ok", "error"]),
    st.sampled_from([1.0, 20.0, 400.0]),
)


def list_kinds_at_limit(script: WorkerScript) -> set[FindingKind]:
    counts = list_detector_counts(script.health.vitals, SETTINGS)
    return {count.kind for count in counts if count.value >= count.limit}


@given(st.lists(st.one_of(CALLS, st.sampled_from(["RETRY", "ACCEPT"])), max_size=40))
def test_count_at_its_limit_is_a_finding(events: list[tuple[str, str, str | None, str, float] | str]) -> None:
    script = WorkerScript(settings=SETTINGS).start()
    for event in events:
        if isinstance(event, str):
            script.report_step(event)
        else:
            tool, args, result, outcome, after = event
            error_fields = {"error_type": "TimeoutError"} if outcome == "error" else {}
            script.report_call(tool, args, result, outcome=outcome, after=after, **error_fields)

        findings = script.list_finding_kinds()
        assert list_kinds_at_limit(script) - {FindingKind.ERROR_RATE} <= findings
        assert findings & EXACT <= list_kinds_at_limit(script)


def test_failed_calls_are_a_finding_at_the_reported_count() -> None:
    script = WorkerScript(settings=SETTINGS).start()
    for n in range(SETTINGS.bands.high):
        assert FindingKind.ERROR_STREAK not in list_kinds_at_limit(script) | script.list_finding_kinds()
        script.report_call(f"tool{n}", "a", f"r{n}", outcome="error", error_type=f"Error{n}")

    assert FindingKind.ERROR_STREAK in list_kinds_at_limit(script) & script.list_finding_kinds()
