import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from queenright.judge.estimate import question_tokens
from queenright.judge.judging_budget import ModelBudget
from queenright.judge.metered_model import MeteredModel, must_call
from queenright.judge.metrics import JudgeMetrics
from queenright.judge.rules_model import EMIT, RulesModel
from queenright.judge.settings import BudgetSettings, JudgeSettings, ModelSettings
from queenright.runtime.llm.model import (
    LLMProvider,
    Message,
    ModelError,
    ModelReply,
    OnText,
    ToolCall,
    ToolSpec,
    TransientModelError,
)
from tests.judge.conftest import FakeTime, JudgedFleet, TalkingModel, reply_with_call

CONVERSATION = [Message(role="system", content="Judge."), Message(role="user", content="How is it?")]
TOOLS = [ToolSpec(name, name, {"type": "object"}) for name in ("look", "set_output")]
DECISION = ModelReply(
    tool_calls=(ToolCall("c", "set_output", "{}"),), input_tokens=90, output_tokens=10, cost=0.5
)
RULES_REPLY = ModelReply(text="as the rules say")

AnswerFunction = Callable[[Sequence[Message], Sequence[ToolSpec]], ModelReply]


def make_replying_model(*replies: ModelReply | Exception) -> TalkingModel:
    """Return a model that gives these replies in turn, then repeats the last one."""
    remaining = list(replies)

    def answer(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        reply = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    return TalkingModel(answer)


class MeteredFixture:
    """A metered model with its rules, clock and metrics."""

    def __init__(
        self,
        model: LLMProvider,
        *,
        stand_in: LLMProvider | None = None,
        time: FakeTime | None = None,
        **limits: Any,
    ) -> None:
        self.time = time or FakeTime()
        self.registry = CollectorRegistry()
        settings = dict.fromkeys(BudgetSettings.model_fields) | limits
        self.budget = ModelBudget(BudgetSettings(**settings), clock=self.time)
        self.model = MeteredModel(
            model,
            "judge",
            ModelSettings(model="talking", timeout_seconds=60),
            metrics=JudgeMetrics(self.registry, dict),
            budget=self.budget,
            stand_in=stand_in or make_replying_model(RULES_REPLY),
            monotonic=self.time,
            sleep=self.time.sleep,
        )

    async def ask(self, tools: Sequence[ToolSpec] = TOOLS) -> ModelReply:
        return await self.model.complete(CONVERSATION, tools)

    async def fail(self, times: int = 1) -> None:
        for _ in range(times):
            with pytest.raises(ModelError):
                await self.ask()

    def count_fallbacks(self, reason: str) -> float | None:
        labels = {"role": "judge", "reason": reason}
        return self.registry.get_sample_value("queenright_llm_fallbacks_total", labels)


@pytest.fixture(autouse=True)
def log_messages(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


# -- budget -------------------------------------------------------------------------------------


async def test_exhausted_budget_uses_the_rules_without_a_model_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = make_replying_model(DECISION)
    metered_model = MeteredFixture(model, dollars_per_day=10)

    model_replies = [await metered_model.ask(), await metered_model.ask()]
    rules_replies = [await metered_model.ask() for _ in range(3)]

    assert model_replies == [DECISION, DECISION]
    assert {(reply.text, reply.finish_reason) for reply in rules_replies} == {
        ("as the rules say", "rules_in_place:budget")
    }
    assert len(model.conversations) == 2
    assert metered_model.count_fallbacks("budget") == 3
    [line] = [record.message for record in caplog.records]
    assert all(part in line for part in ("talking", "judging.budget", "1.00 $"))


async def test_exhausted_budget_is_logged_once_per_window(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metered_model = MeteredFixture(make_replying_model(DECISION), dollars_per_day=5)

    for _ in range(3):
        assert await metered_model.ask() == DECISION
        assert metered_model.model.fallback_reason == "budget"
        await metered_model.ask()
        await metered_model.ask()
        metered_model.time.now += 3600 + 300

    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3


async def test_unpriced_model_is_budgeted_in_tokens() -> None:
    metered_model = MeteredFixture(
        make_replying_model(ModelReply(tool_calls=DECISION.tool_calls, input_tokens=900, output_tokens=200))
    )

    await metered_model.ask()

    assert metered_model.budget.sum_spending("hour", "tokens", "judge") == 1100
    assert metered_model.budget.sum_spending("hour", "dollars") == 0


async def test_cached_tokens_are_counted() -> None:
    metered_model = MeteredFixture(
        make_replying_model(ModelReply(tool_calls=DECISION.tool_calls, input_tokens=900, cached_tokens=800))
    )

    await metered_model.ask()

    labels = {"role": "judge", "model": "talking"}
    assert metered_model.registry.get_sample_value("queenright_llm_cached_tokens_total", labels) == 800


class PricedModel(TalkingModel):
    """A model whose input costs a cent per 100 tokens, and its output ten cents."""

    async def price(self, input_tokens: int, output_tokens: int) -> float:
        return (input_tokens + 10 * output_tokens) / 10_000


def make_priced_model(*replies: ModelReply | Exception) -> PricedModel:
    return PricedModel(make_replying_model(*replies).answer)


INPUT_TOKENS = question_tokens(CONVERSATION, TOOLS)
INPUT_DOLLARS = INPUT_TOKENS / 10_000


async def test_model_that_always_fails_spends_its_budget() -> None:
    """B51: each failed call costs its input, at the model's price."""
    model = make_priced_model(TransientModelError("overloaded"))
    metered_model = MeteredFixture(
        model, dollars_per_day=10 * (INPUT_DOLLARS * 4 + 2.0)
    )  # four calls, with room for an answer

    for _ in range(100):
        with suppress(TransientModelError):
            await metered_model.ask()
        metered_model.time.now += 30

    assert 4 <= len(model.conversations) <= 5
    assert metered_model.budget.sum_spending("day", "dollars", "judge") == pytest.approx(
        INPUT_DOLLARS * len(model.conversations)
    )
    assert (metered_model.count_fallbacks("budget") or 0) > 0


async def test_concurrent_calls_share_the_remaining_budget() -> None:
    answer = ModelReply(tool_calls=DECISION.tool_calls, input_tokens=50, output_tokens=100, cost=0.1)
    model = make_priced_model(answer)
    metered_model = MeteredFixture(model, dollars_per_day=50)

    first_replies = await asyncio.gather(*(metered_model.ask() for _ in range(10)))
    later_replies = [await metered_model.ask() for _ in range(60)]

    # Each call may cost 2 $ and a little for its answer: two fit in parallel, and each costs 0.10 $.
    assert sum(reply is answer for reply in first_replies) == 2
    assert {reply.finish_reason for reply in first_replies if reply is not answer} == {
        "rules_in_place:budget"
    }
    assert sum(reply is answer for reply in later_replies) > 20
    assert metered_model.budget.sum_spending("hour", "dollars") <= 5


async def test_model_without_rules_to_replace_it_is_called_over_budget() -> None:
    metered_model = MeteredFixture(make_priced_model(DECISION), dollars_per_day=0.1)
    metered_model.model = MeteredModel(
        make_priced_model(DECISION),
        "judge",
        ModelSettings(model="talking"),
        metrics=JudgeMetrics(CollectorRegistry(), dict),
        budget=metered_model.budget,
        monotonic=metered_model.time,
        sleep=metered_model.time.sleep,
    )

    assert [await metered_model.ask(), await metered_model.ask()] == [DECISION, DECISION]
    assert metered_model.budget.sum_spending("hour", "dollars") == 1.0
    assert metered_model.model.fallback_reason is None


async def test_rules_replace_a_model_near_its_budget_limit() -> None:
    metered_model = MeteredFixture(make_priced_model(DECISION), dollars_per_day=24)

    await metered_model.ask()
    reason_before = metered_model.model.fallback_reason
    reply = await metered_model.ask()

    assert reason_before is None
    assert reply.finish_reason == "rules_in_place:budget"
    assert metered_model.model.fallback_reason == "budget"


# -- failing models -----------------------------------------------------------------------------


async def test_rules_answer_the_last_tolerated_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """B51: earlier failures are raised, so that no check passes as healthy."""
    model = make_replying_model(TransientModelError("the hive is busy"))
    metered_model = MeteredFixture(model)

    await metered_model.fail(2)
    third_reply = await metered_model.ask()
    fourth_reply = await metered_model.ask()

    assert third_reply.finish_reason == fourth_reply.finish_reason == "rules_in_place:error"
    assert len(model.conversations) == 3
    assert metered_model.count_fallbacks("error") == 2
    assert metered_model.count_fallbacks("budget") == 0
    [log_line] = caplog.messages
    assert all(part in log_line for part in ("talking", "TransientModelError", "the hive is busy"))


async def test_model_is_called_once_after_its_rest() -> None:
    model = make_replying_model(ModelError("no such model"))
    metered_model = MeteredFixture(model)
    await metered_model.fail(2)
    await metered_model.ask()

    metered_model.time.now += 299
    await metered_model.ask()
    assert len(model.conversations) == 3
    metered_model.time.now += 1
    await metered_model.ask()
    assert len(model.conversations) == 4
    await metered_model.ask()

    assert len(model.conversations) == 4
    assert metered_model.count_fallbacks("error") == 4


async def test_recovered_model_has_its_full_tolerance(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failure = ModelError("no")
    metered_model = MeteredFixture(make_replying_model(failure, failure, failure, DECISION, failure))
    await metered_model.fail(2)
    await metered_model.ask()
    metered_model.time.now += 300

    assert await metered_model.ask() == DECISION
    await metered_model.fail(2)

    assert any("talking" in text for text in caplog.messages)


async def test_answer_resets_consecutive_failures() -> None:
    failure = ModelError("no")
    metered_model = MeteredFixture(
        make_replying_model(failure, failure, DECISION, failure, failure, DECISION)
    )

    await metered_model.fail(2)
    assert await metered_model.ask() == DECISION
    await metered_model.fail(2)

    assert await metered_model.ask() == DECISION


async def test_model_failing_two_of_three_calls_is_suspended() -> None:
    failure = ModelError("no")
    pattern: list[ModelReply | Exception] = [failure, failure, DECISION]
    model = make_replying_model(*(pattern * 100))
    metered_model = MeteredFixture(model)

    outcomes = []
    for _ in range(120):  # an hour
        try:
            outcomes.append((await metered_model.ask()).finish_reason)
        except ModelError:
            outcomes.append("failed")
        metered_model.time.now += 30

    assert outcomes[:8] == ["failed", "failed", "", "failed", "failed", "", "failed", "rules_in_place:error"]
    assert outcomes.count("rules_in_place:error") >= 50
    assert len(model.conversations) <= 70


async def test_secret_in_a_failure_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    key = "sk-" + "a1B2" * 10
    metered_model = MeteredFixture(make_replying_model(RuntimeError(f"refused: {key}")))
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await metered_model.ask()

    await metered_model.ask()

    assert key not in caplog.text


@pytest.mark.parametrize(
    "reply",
    [
        ModelReply(text="All is well."),
        ModelReply(),
        reply_with_call("dance"),
        ModelReply(tool_calls=(ToolCall("c", "set_output", '{"health_verdict": '),)),
        ModelReply(tool_calls=(ToolCall("c", "set_output", '"healthy"'),)),
    ],
)
async def test_invalid_answers_count_as_failures(reply: ModelReply) -> None:
    metered_model = MeteredFixture(make_replying_model(reply))

    first_replies = [await metered_model.ask(), await metered_model.ask()]
    third_reply = await metered_model.ask()

    assert first_replies == [reply, reply]
    assert third_reply.finish_reason == "rules_in_place:invalid"


async def test_text_is_a_valid_answer_in_a_conversation() -> None:
    text_reply = ModelReply(text="It waits for its user.")
    metered_model = MeteredFixture(make_replying_model(text_reply))
    chat = [ToolSpec("look", "look", {}), ToolSpec("ask_user", "ask", {})]

    answers = [await metered_model.ask(chat) for _ in range(5)]

    assert answers == [text_reply] * 5
    assert [must_call(tools) for tools in (TOOLS, chat, [])] == [True, False, False]


async def test_error_names_model_and_rules_when_both_fail() -> None:
    metered_model = MeteredFixture(make_replying_model(DECISION), stand_in=RulesModel(), dollars_per_day=1)
    await metered_model.ask()

    with pytest.raises(
        ModelError, match=r"talking is not called now: judging\.budget allows 0\.10 \$.*; the rules: "
    ):
        await metered_model.ask()

    assert metered_model.count_fallbacks("budget") == 0


# -- hanging models -----------------------------------------------------------------------------


class HangingModel:
    """A model that never answers. If ``ignores_cancellation`` is set, it also ignores cancellation."""

    name = "hanging"

    def __init__(self, *, ignores_cancellation: bool = False) -> None:
        self.calls = self.cancelled = 0
        self.ignores_cancellation = ignores_cancellation
        self.may_end = asyncio.Event()

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        self.calls += 1
        while True:
            try:
                await self.may_end.wait()
                return DECISION
            except asyncio.CancelledError:
                self.cancelled += 1
                if not self.ignores_cancellation:
                    raise


async def pass_time(time: FakeTime, seconds: float) -> None:
    for _ in range(5):
        await asyncio.sleep(0)
    end_time = time.now + seconds
    while (sleeper := time.due(end_time)) is not None:
        time.now = sleeper[0]
        sleeper[1].set_result(None)
        for _ in range(5):
            await asyncio.sleep(0)
    time.now = end_time


@pytest.mark.parametrize("ignores_cancellation", [False, True])
async def test_hanging_model_costs_only_its_time_limit(ignores_cancellation: bool) -> None:
    model = HangingModel(ignores_cancellation=ignores_cancellation)
    metered_model = MeteredFixture(model)

    for _ in range(2):
        task = asyncio.create_task(metered_model.ask())
        await pass_time(metered_model.time, 60)
        with pytest.raises(TimeoutError, match="no answer within 60 s"):
            await task
    third_task = asyncio.create_task(metered_model.ask())
    await pass_time(metered_model.time, 60)

    assert (await third_task).finish_reason == "rules_in_place:timeout"
    assert (model.calls, model.cancelled) == (3, 3)
    assert metered_model.budget.sum_spending("hour", "tokens") == 3 * INPUT_TOKENS
    assert (await metered_model.ask()).text == "as the rules say"
    model.may_end.set()


async def test_cancelled_caller_counts_a_simultaneous_timeout() -> None:
    metered_model = MeteredFixture(HangingModel())
    for _ in range(3):
        task = asyncio.create_task(metered_model.ask())
        await asyncio.sleep(0)
        metered_model.time.now += 60
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert metered_model.model.fallback_reason == "timeout"


async def test_stopping_service_is_not_a_failure_of_the_model() -> None:
    metered_model = MeteredFixture(HangingModel())
    for _ in range(5):
        task = asyncio.create_task(metered_model.ask())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert metered_model.model.fallback_reason is None
    assert metered_model.budget.sum_spending("hour", "tokens") == 5 * INPUT_TOKENS


# -- in a fleet ---------------------------------------------------------------------------------


def use_metered_model(fleet: JudgedFleet, model: LLMProvider, **limits: Any) -> MeteredFixture:
    """Let the judge use a metered model with the fleet's clock."""
    metered_model = MeteredFixture(model, stand_in=RulesModel(), time=fleet.time, **limits)
    fleet.judge_model = metered_model.model
    return metered_model


async def test_medium_finding_waits_for_a_failing_model_until_the_rules_replace_it(
    fleet: JudgedFleet,
) -> None:
    """B51: two checks are unknown, then the rules write the ticket; every failed call is counted."""
    metered_model = use_metered_model(fleet, make_replying_model(TransientModelError("overloaded")))
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(12)
    tickets_before = await fleet.tickets.history(10)
    unknown_count = fleet.get_metric("queenright_judge_checks_total", outcome="unknown")
    await fleet.tick(2)

    ticket = await fleet.get_ticket()

    assert (tickets_before, unknown_count) == ([], 1)
    assert ticket.severity.value == "medium"
    assert metered_model.count_fallbacks("error") == 1


async def test_exhausted_budget_continues_the_conversation_by_rules(fleet: JudgedFleet) -> None:
    draft = dict.fromkeys(("cause", "judge_reasoning", "suggested_action", "evidence_snippet"), "word")
    reply = reply_with_call(EMIT, ticket_json=json.dumps({"severity": "high", **draft}))
    model = make_replying_model(ModelReply(tool_calls=reply.tool_calls, input_tokens=10, cost=2.0))
    metered_model = use_metered_model(fleet, model, dollars_per_day=10)
    await fleet.start()
    await fleet.start_worker()
    await fleet.start_worker("other_agent", "session_2")
    await fleet.report_bad_steps(16)
    await fleet.report_bad_steps(16, "other_agent", "session_2")
    await fleet.tick(2)

    causes = {ticket.agent_id: ticket.cause for ticket in await fleet.tickets.history(10)}

    assert causes["deep_research_agent"] == "word"
    assert causes["other_agent"].startswith("other_agent (node researcher)")
    assert len(model.conversations) == 1
    assert metered_model.count_fallbacks("budget") == 1


async def test_judge_decides_with_a_hanging_model(fleet: JudgedFleet) -> None:
    model = HangingModel()
    metered_model = use_metered_model(fleet, model)
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(12)

    await fleet.tick(6)

    assert (await fleet.get_ticket()).severity.value == "medium"
    assert metered_model.count_fallbacks("timeout") == 1
    assert model.calls == 3


async def test_spending_before_a_restart_still_counts(fleet: JudgedFleet, tmp_path: Path) -> None:
    """The models come from the settings, and the spending from the file in the storage folder."""
    texts = dict.fromkeys(("cause", "judge_reasoning", "suggested_action", "evidence_snippet"), "word")
    ticket = {"ticket_json": json.dumps({"severity": "high", **texts})}
    reply = {"tool_calls": [{"name": EMIT, "arguments": ticket}], "cost": 2.0, "input_tokens": 100}
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": [reply]}))
    fleet.use_given_models = False
    fleet.judge_settings = JudgeSettings(judge=ModelSettings(model=f"scripted:{script}"))
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(16)
    async with asyncio.timeout(60):
        while not fleet.tickets.open_tickets():  # the spending is written first
            await fleet.settle()
    spent_before_restart = fleet.get_metric("queenright_llm_budget_spent", window="hour", unit="dollars")
    await fleet.stop()

    await fleet.start()
    spent_after_restart = fleet.get_metric("queenright_llm_budget_spent", window="hour", unit="dollars")
    await fleet.start_worker("other_agent", "session_2")
    await fleet.report_bad_steps(16, "other_agent", "session_2")
    await fleet.tick()

    causes = {
        listed_ticket.agent_id: listed_ticket.cause for listed_ticket in await fleet.tickets.history(10)
    }
    assert (spent_before_restart, spent_after_restart) == (2, 2)
    assert causes["deep_research_agent"] == "word"
    assert causes["other_agent"].startswith("other_agent (node researcher)")
    assert fleet.get_metric("queenright_llm_fallbacks_total", role="judge", reason="budget") == 1
