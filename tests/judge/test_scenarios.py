"""The labelled scenarios: their validity, the score of the rules, and the limits of bad models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import pytest
from typer.testing import CliRunner

from queenright.cli.app import app
from queenright.health.findings import FindingKind
from queenright.judge.rules_model import DISMISS, EMIT, NOTIFY
from queenright.judge.scenarios import (
    InvalidScenarioError,
    Outcome,
    Scenario,
    Score,
    load_scenarios,
    model_maker,
    play,
    play_all,
    score,
)
from queenright.judge.scenarios.recording_model import SILENT
from queenright.judge.settings import RULES
from queenright.runtime.llm.model import Message, ModelReply, ToolSpec
from queenright.runtime.nodes.event_loop import SET_OUTPUT
from tests.judge.conftest import TalkingModel, reply_with_call
from tests.judge.scores import DOCUMENT, extract_scores, format_scores, score_rules

SCENARIOS = {scenario.id: scenario for scenario in load_scenarios()}
HEALTHY_SCENARIOS = ["steady-work", "three-hours-for-its-user", "declared-40-at-30"]
NEAR_MISSES = ["connection-blip", "archive-mirror-down", "inbox-watcher", "verifies-twice"]
MEDIUM = ["ten-bad-repeating", "loop-aaa", "injected-dismiss"]
BINDING = ["fifteen-bad", "twenty-bad", "stall-exactly", "recovery-failed", "injected-severity-low"]
SAMPLE = [SCENARIOS[name] for name in (*HEALTHY_SCENARIOS, *NEAR_MISSES, *MEDIUM, *BINDING)]


# -- scenarios -------------------------------------------------------------------------------------


def test_scenarios_cover_the_kinds_of_findings() -> None:
    kinds = {scenario.kind for scenario in SCENARIOS.values()}
    causes = {cause for scenario in SCENARIOS.values() for cause in scenario.label.causes}

    assert len(SCENARIOS) >= 60
    assert len(kinds) >= 25
    # Every kind that opens tickets appears.
    assert causes >= {
        FindingKind.STALL,
        FindingKind.RETRY_STORM,
        FindingKind.DOOM_LOOP,
        FindingKind.ERROR_STREAK,
        FindingKind.ZERO_PROGRESS,
        FindingKind.PROVIDER_FAILURE,
        FindingKind.CONTEXT_EXHAUSTED,
        FindingKind.CHECKPOINT_STALE,
        FindingKind.NO_TOOL_CALLS,
        FindingKind.HEARTBEAT_MISSING,
        FindingKind.RECOVERY_FAILED,
    }


def test_constant_answer_is_wrong_for_many_scenarios() -> None:
    """A model that always gives the same answer must not score well."""
    labels = [scenario.label.ticket_due for scenario in SCENARIOS.values()]

    assert 0.35 < labels.count(True) / len(labels) < 0.65
    assert sum(scenario.label.people_differ for scenario in SCENARIOS.values()) <= len(labels) / 10


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"script": [{"jump": {}}]}, "unknown action 'jump'"),
        ({"script": [{"turn": {"tool": "x"}, "pass": 3}]}, "has 2"),
        ({"script": [{"turn": {"tol": "x"}}]}, "tol"),
        ({"script": [{"pass": "soon"}]}, "it must be a number"),
        ({"label": {"ticket": "awful", "why": "it is very bad indeed"}}, "label.ticket"),
        ({"label": {"ticket": "high", "why": "it is very bad indeed"}}, "triage"),
        ({"label": {"ticket": ["none", "high"], "why": "who knows, really"}}, "people_differ"),
        ({"note": "x"}, "note"),
    ],
)
def test_invalid_scenario_is_rejected_with_its_file(
    tmp_path: Path, fields: dict[str, object], expected: str
) -> None:
    valid: dict[str, object] = {
        "id": "mine",
        "kind": "mine",
        "about": "it does something",
        "script": [{"start": {}}],
        "label": {"ticket": "none", "why": "nothing is wrong with it"},
    }
    (tmp_path / "mine.yaml").write_text(json.dumps([valid | fields]), encoding="utf-8")

    with pytest.raises(InvalidScenarioError, match=r"mine\.yaml") as error:
        load_scenarios(tmp_path)

    assert expected in str(error.value)


def test_scenario_ids_are_unique(tmp_path: Path) -> None:
    text = (resources.files("queenright.judge.scenarios") / "set" / "words.yaml").read_text("utf-8")
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "b.yaml").write_text(text, encoding="utf-8")

    with pytest.raises(InvalidScenarioError, match="duplicate scenario id"):
        load_scenarios(tmp_path)


# -- rules -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rules_score() -> Score:
    return asyncio.run(score_rules())


def test_score_of_the_rules_equals_the_document(rules_score: Score) -> None:
    """Update the document with ``python -m tests.judge.scores --write``."""
    assert extract_scores(DOCUMENT.read_text(encoding="utf-8")) == format_scores(rules_score)


def test_rules_agree_with_the_labels_and_miss_no_binding_finding(rules_score: Score) -> None:
    scores = {row.name: row.all for row in rules_score.decisions}

    assert (scores["ticket"].kappa or 0) > 0.7
    assert (scores["severity"].kappa or 0) > 0.75
    # The rules err only by notifying about a worker that a person would leave alone.
    assert not [miss for miss in rules_score.misses if "ticket none" in " ".join(miss.mismatches)]


def test_rules_lower_no_floor_and_open_no_ticket_for_an_unrelated_worker(rules_score: Score) -> None:
    assert rules_score.faults == ()


async def test_rules_lower_no_floor_in_a_sample() -> None:
    outcomes = await play_all(SAMPLE, model_maker(RULES), model_maker(RULES), at_once=4)

    assert score(outcomes, judge=RULES, queen=RULES).faults == ()


# -- bad models --------------------------------------------------------------------------------------


def answer_healthy(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
    """Call every worker healthy."""
    if NOTIFY in {tool.name for tool in tools}:
        return reply_with_call(DISMISS, ticket_id=_get_ticket_id(messages), reason="all is well")
    return reply_with_call(SET_OUTPUT, health_verdict="healthy")


def answer_critical(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
    """Call every worker critical."""
    if NOTIFY in {tool.name for tool in tools}:
        text = "Everything burns, come at once."
        return reply_with_call(NOTIFY, ticket_id=_get_ticket_id(messages), analysis=text, urgency="critical")
    draft = {
        "severity": "critical",
        "cause": "Everything burns.",
        "judge_reasoning": "One can see it.",
        "suggested_action": "Stop it.",
        "evidence_snippet": "-",
    }
    return reply_with_call(EMIT, ticket_json=json.dumps(draft))


def answer_nothing(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
    """Return no valid answer."""
    return ModelReply(text="Hm.")


def _get_ticket_id(messages: Sequence[Message]) -> str:
    question = next(message.content for message in reversed(messages) if message.role == "user")
    return str(json.loads(question.partition("<ticket>\n")[2].partition("\n</ticket>")[0])["ticket_id"])


async def play_sample(answer: object) -> list[Outcome]:
    return await play_all(SAMPLE, lambda: TalkingModel(answer), lambda: TalkingModel(answer), at_once=4)  # type: ignore[arg-type]


def find_level(outcomes: Sequence[Outcome], scenario: str) -> str:
    return next(outcome.level for outcome in outcomes if outcome.scenario.id == scenario)


async def test_model_that_answers_healthy_has_no_kappa_and_lowers_no_floor() -> None:
    outcomes = await play_sample(answer_healthy)
    model_score = score(outcomes, judge="optimist", queen="optimist")
    scores = {row.name: row.all for row in model_score.model_decisions}

    assert scores["judge: ticket"].kappa == pytest.approx(0.0)
    assert scores["queen: triage"].share < 0.5
    assert {find_level(outcomes, name) for name in MEDIUM} == {"none"}
    for name in BINDING:
        outcome = next(trial_outcome for trial_outcome in outcomes if trial_outcome.scenario.id == name)
        assert (outcome.level, outcome.is_notified) == (SCENARIOS[name].label.ticket[0], True)
    assert model_score.faults == ()


async def test_model_that_answers_critical_has_no_kappa_and_spares_healthy_workers() -> None:
    outcomes = await play_sample(answer_critical)
    model_score = score(outcomes, judge="alarmist", queen="alarmist")
    scores = {row.name: row.all for row in model_score.model_decisions}

    assert scores["judge: ticket"].kappa == pytest.approx(0.0)
    assert (scores["judge: severity"].kappa or 0) < 0.1
    assert {find_level(outcomes, name) for name in MEDIUM} == {"critical"}
    assert {find_level(outcomes, name) for name in HEALTHY_SCENARIOS} == {"none"}
    assert model_score.faults == ()


async def test_model_without_valid_answers_leaves_binding_findings_to_the_rules() -> None:
    outcomes = await play_sample(answer_nothing)
    model_score = score(outcomes, judge="silent", queen="silent")

    assert {outcome.judge_answer for outcome in outcomes if outcome.scenario.id in (*MEDIUM, *BINDING)} == {
        SILENT
    }
    assert {find_level(outcomes, name) for name in (*MEDIUM, *HEALTHY_SCENARIOS, *NEAR_MISSES)} == {"none"}
    assert all(outcome.is_notified for outcome in outcomes if outcome.scenario.id in BINDING)
    assert model_score.faults == ()


# -- running scenarios -------------------------------------------------------------------------------


async def test_queen_sees_changes_between_judge_and_queen() -> None:
    scenario = SCENARIOS["retry-storm-recovers-before-triage"]
    model = TalkingModel(answer_critical)

    outcome = await play(scenario, model, model)

    assert (outcome.judge_answer, outcome.level, outcome.is_notified) == ("critical", "critical", False)
    assert outcome.triage == "dismiss"


async def test_repair_round_counts_as_part_of_its_decision() -> None:
    remaining_drafts = ["{}", None]

    def repair_draft(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        if EMIT in {tool.name for tool in tools} and remaining_drafts.pop(0) is not None:
            return reply_with_call(EMIT, ticket_json="{}")
        return answer_critical(messages, tools)

    outcome = await play(
        SCENARIOS["ten-bad-repeating"], TalkingModel(repair_draft), TalkingModel(answer_critical)
    )
    [judge, _] = score([outcome], judge="m", queen="m").effort

    assert (judge.decisions, judge.calls, outcome.judge_answer) == (1, 2, "critical")


# -- command -----------------------------------------------------------------------------------------


def test_command_prints_the_score_and_fails_below_the_required_kappa() -> None:
    passing_result = CliRunner().invoke(
        app, ["judge", "score", "--only", "bands", "--at-least", "0.9", "--json"]
    )
    failing_result = CliRunner().invoke(app, ["judge", "score", "--only", "near_miss", "--at-least", "0.9"])

    assert passing_result.exit_code == 0, passing_result.output
    score_document = json.loads(passing_result.stdout)
    assert (score_document["judge"], score_document["scenarios"], score_document["faults"]) == (RULES, 15, [])
    assert failing_result.exit_code == 1
    assert "verifies-twice" in failing_result.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--only", "nonsense"], "neither a kind nor an id"),
        (["--model", "scripted:/nowhere.json"], "nowhere.json"),
    ],
)
def test_invalid_option_is_a_usage_error(arguments: list[str], expected: str) -> None:
    result = CliRunner().invoke(app, ["judge", "score", *arguments], env={"COLUMNS": "200"})

    assert result.exit_code == 2
    assert expected in result.stderr


def test_custom_scenarios_are_run(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "- id: my-worker\n  kind: mine\n  about: it stops for good\n  script:\n    - start:\n    - pass: 5m\n"
        "  label: {ticket: critical, triage: intervene, why: it has stopped}\n",
        encoding="utf-8",
    )

    result = CliRunner().invoke(app, ["judge", "score", "--scenarios", str(tmp_path), "--json"])

    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["misses"] == []


def test_every_scenario_is_distinct() -> None:
    scenarios = [json.dumps(_get_essentials(scenario), sort_keys=True) for scenario in SCENARIOS.values()]

    assert len(set(scenarios)) == len(scenarios)


def _get_essentials(scenario: Scenario) -> object:
    return [scenario.script, scenario.meanwhile, scenario.neighbours]
