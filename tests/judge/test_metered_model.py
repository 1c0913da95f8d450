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
from tests.judge.conftest import FakeTime, JudgedFleet, TalkingModel, call

CONVERSATION = [Message(role="system", content="Judge."), Message(role="user", content="How is it?")]
TOOLS = [ToolSpec(name, name, {"type": "object"}) for name in ("look", "set_output")]
DECISION = ModelReply(
    tool_calls=(ToolCall("c", "set_output", "{}"),), input_tokens=90, output_tokens=10, cost=0.5
)
RULES_REPLY = ModelReply(text="as the rules say")

Speak = Callable[[Sequence[Message], Sequence[ToolSpec]], ModelReply]


def model_that_replies(*replies: ModelReply | Exception) -> TalkingModel:
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
            stand_in=stand_in or model_that_replies(RULES_REPLY),
            monotonic=self.time,
            sleep=self.time.sleep,
        )

    async def ask(self, tools: Sequence[ToolSpec] = TOOLS) -> ModelReply:
        return await self.model.complete(CONVERSATION, tools)

    async def fail(self, times: int = 1) -> None:
        for _ in range(times):
            with pytest.raises(ModelError):
                await self.ask()

    def fallbacks(self, reason: str) -> float | None:
        labels = {"role": "judge", "reason": reason}
        return self.registry.get_sample_value("queenright_llm_fallbacks_total", labels)


@pytest.fixture(autouse=True)
def log_messages(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


# -- budget -------------------------------------------------------------------------------------


async def test_exhausted_budget_uses_the_rules_without_a_model_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = model_that_replies(DECISION)
    metered = MeteredFixture(model, dollars_per_day=10)

    paid = [await metered.ask(), await metered.ask()]
    free = [await metered.ask() for _ in range(3)]

    assert paid == [DECISION, DECISION]
    assert {(reply.text, reply.finish_reason) for reply in free} == {
        ("as the rules say", "rules_in_place:budget")
    }
    assert len(model.conversations) == 2
    assert metered.fallbacks("budget") == 3
    [line] = [record.message for record in caplog.records]
    assert all(part in line for part in ("talking", "judging.budget", "1.00 $"))


async def test_exhausted_budget_is_logged_once_per_window(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metered = MeteredFixture(model_that_replies(DECISION), dollars_per_day=5)

    for _ in range(3):
        assert await metered.ask() == DECISION
        assert metered.model.fallback_reason == "budget"
        await metered.ask()
        await metered.ask()
        metered.time.now += 3600 + 300

    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3


async def test_unpriced_model_is_budgeted_in_tokens() -> None:
    metered = MeteredFixture(
        model_that_replies(ModelReply(tool_calls=DECISION.tool_calls, input_tokens=900, output_tokens=200))
    )

    await metered.ask()

    assert metered.budget.sum_spending("hour", "tokens", "judge") == 1100
    assert metered.budget.sum_spending("hour", "dollars") == 0


async def test_cached_tokens_are_counted() -> None:
    metered = MeteredFixture(
        model_that_replies(ModelReply(tool_calls=DECISION.tool_calls, input_tokens=900, cached_tokens=800))
    )

    await metered.ask()

    labels = {"role": "judge", "model": "talking"}
    assert metered.registry.get_sample_value("queenright_llm_cached_tokens_total", labels) == 800


class PricedModel(TalkingModel):
    """A model whose input costs a cent per 100 tokens, and its output ten cents."""

    async def price(self, input_tokens: int, output_tokens: int) -> float:
        return (input_tokens + 10 * output_tokens) / 10_000


def model_with_price(*replies: ModelReply | Exception) -> PricedModel:
    return PricedModel(model_that_replies(*replies).answer)


INPUT_TOKENS = question_tokens(CONVERSATION, TOOLS)
INPUT_DOLLARS = INPUT_TOKENS / 10_000


async def test_model_that_always_fails_spends_its_budget() -> None:
    """B51: each failed call costs its input, at the model's price."""
    model = model_with_price(TransientModelError("overloaded"))
    metered = MeteredFixture(
        model, dollars_per_day=10 * (INPUT_DOLLARS * 4 + 2.0)
    )  # four calls, with room for an answer

    for _ in range(100):
        with suppress(TransientModelError):
            await metered.ask()
        metered.time.now += 30

    assert 4 <= len(model.conversations) <= 5
    assert metered.budget.sum_spending("day", "dollars", "judge") == pytest.approx(
        INPUT_DOLLARS * len(model.conversations)
    )
    assert (metered.fallbacks("budget") or 0) > 0


async def test_concurrent_calls_share_the_remaining_budget() -> None:
    answer = ModelReply(tool_calls=DECISION.tool_calls, input_tokens=50, output_tokens=100, cost=0.1)
    model = model_with_price(answer)
    metered = MeteredFixture(model, dollars_per_day=50)

    first_replies = await asyncio.gather(*(metered.ask() for _ in range(10)))
    later_replies = [await metered.ask() for _ in range(60)]

    # Each call may cost 2 $ and a little for its answer: two fit in parallel, and each costs 0.10 $.
    assert sum(reply is answer for reply in first_replies) == 2
    assert {reply.finish_reason for reply in first_replies if reply is not answer} == {
        "rules_in_place:budget"
    }
    assert sum(reply is answer for reply in later_replies) > 20
    assert metered.budget.sum_spending("hour", "dollars") <= 5


async def test_model_without_rules_to_replace_it_is_called_over_budget() -> None:
    metered = MeteredFixture(model_with_price(DECISION), dollars_per_day=0.1)
    metered.model = MeteredModel(
        model_with_price(DECISION),
        "judge",
        ModelSettings(model="talking"),
        metrics=JudgeMetrics(CollectorRegistry(), dict),
        budget=metered.budget,
        monotonic=metered.time,
        sleep=metered.time.sleep,
    )

    assert [await metered.ask(), await metered.ask()] == [DECISION, DECISION]
    assert metered.budget.sum_spending("hour", "dollars") == 1.0
    assert metered.model.fallback_reason is None


async def test_rules_replace_a_model_near_its_budget_limit() -> None:
    metered = MeteredFixture(model_with_price(DECISION), dollars_per_day=24)

    await metered.ask()
    reason_before = metered.model.fallback_reason
    reply = await metered.ask()

    assert reason_before is None
    assert reply.finish_reason == "rules_in_place:budget"
    assert metered.model.fallback_reason == "budget"


# -- failing models -----------------------------------------------------------------------------


async def test_rules_answer_the_last_tolerated_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """B51: earlier failures are raised, so that no check passes as healthy."""
    model = model_that_replies(TransientModelError("the hive is busy"))
    metered = MeteredFixture(model)

    await metered.fail(2)
    third_reply = await metered.ask()
    fourth_reply = await metered.ask()

    assert third_reply.finish_reason == fourth_reply.finish_reason == "rules_in_place:error"
    assert len(model.conversations) == 3
    assert metered.fallbacks("error") == 2
    assert metered.fallbacks("budget") == 0
    [log_line] = caplog.messages
    assert all(part in log_line for part in ("talking", "TransientModelError", "the hive is busy"))


async def test_model_is_called_once_after_its_rest() -> None:
    model = model_that_replies(ModelError("no such model"))
    metered = MeteredFixture(model)
    await metered.fail(2)
    await metered.ask()

    metered.time.now += 299
    await metered.ask()
    assert len(model.conversations) == 3
    metered.time.now += 1
    await metered.ask()
    assert len(model.conversations) == 4
    await metered.ask()

    assert len(model.conversations) == 4
    assert metered.fallbacks("error") == 4


async def test_recovered_model_has_its_full_tolerance(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failed = ModelError("no")
    metered = MeteredFixture(model_that_replies(failed, failed, failed, DECISION, failed))
    await metered.fail(2)
    await metered.ask()
    metered.time.now += 300

    assert await metered.ask() == DECISION
    await metered.fail(2)

    assert any("talking" in text for text in caplog.messages)


async def test_answer_resets_consecutive_failures() -> None:
    failed = ModelError("no")
    metered = MeteredFixture(model_that_replies(failed, failed, DECISION, failed, failed, DECISION))

    await metered.fail(2)
    assert await metered.ask() == DECISION
    await metered.fail(2)

    assert await metered.ask() == DECISION


async def test_model_failing_two_of_three_calls_is_suspended() -> None:
    failed = ModelError("no")
    pattern: list[ModelReply | Exception] = [failed, failed, DECISION]
    model = model_that_replies(*(pattern * 100))
    metered = MeteredFixture(model)

    outcomes = []
    for _ in range(120):  # an hour
        try:
            outcomes.append((await metered.ask()).finish_reason)
        except ModelError:
            outcomes.append("failed")
        metered.time.now += 30

    assert outcomes[:8] == ["failed", "failed", "", "failed", "failed", "", "failed", "rules_in_place:error"]
    assert outcomes.count("rules_in_place:error") >= 50
    assert len(model.conversations) <= 70


async def test_secret_in_a_failure_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    key = "sk-" + "a1B2" * 10
    metered = MeteredFixture(model_that_replies(RuntimeError(f"refused: {key}")))
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await metered.ask()

    await metered.ask()

    assert key not in caplog.text


@pytest.mark.parametrize(
    "reply",
    [
        ModelReply(text="All is well."),
        ModelReply(),
        call("dance"),
        ModelReply(tool_calls=(ToolCall("c", "set_output", '{"health_verdict": '),)),
        ModelReply(tool_calls=(ToolCall("c", "set_output", '"healthy"'),)),
    ],
)
async def test_invalid_answers_count_as_failures(reply: ModelReply) -> None:
    metered = MeteredFixture(model_that_replies(reply))

    first_replies = [await metered.ask(), await metered.ask()]
    third_reply = await metered.ask()

    assert first_replies == [reply, reply]
    assert third_reply.finish_reason == "rules_in_place:invalid"


async def test_text_is_a_valid_answer_in_a_conversation() -> None:
    text_reply = ModelReply(text="It waits for its user.")
    metered = MeteredFixture(model_that_replies(text_reply))
    chat = [ToolSpec("look", "look", {}), ToolSpec("ask_user", "ask", {})]

    answers = [await metered.ask(chat) for _ in range(5)]

    assert answers == [text_reply] * 5
    assert [must_call(tools) for tools in (TOOLS, chat, [])] == [True, False, False]


async def test_error_names_model_and_rules_when_both_fail() -> None:
    metered = MeteredFixture(model_that_replies(DECISION), stand_in=RulesModel(), dollars_per_day=1)
    await metered.ask()

    with pytest.raises(
        ModelError, match=r"talking is not called now: judging\.budget allows 0\.10 \$.*; the rules: "
    ):
        await metered.ask()

    assert metered.fallbacks("budget") == 0


# -- hanging models -----------------------------------------------------------------------------


class HangingModel:
    """A model that never answers; ``stubborn`` also ignores cancellation."""

    name = "hanging"

    def __init__(self, *, stubborn: bool = False) -> None:
        self.calls = self.cancelled = 0
        self.stubborn = stubborn
        self.let_go = asyncio.Event()

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        self.calls += 1
        while True:
            try:
                await self.let_go.wait()
                return DECISION
            except asyncio.CancelledError:
                self.cancelled += 1
                if not self.stubborn:
                    raise


async def pass_time(time: FakeTime, seconds: float) -> None:
    for _ in range(5):
        await asyncio.sleep(0)
    until = time.now + seconds
    while (sleeper := time.due(until)) is not None:
        time.now = sleeper[0]
        sleeper[1].set_result(None)
        for _ in range(5):
            await asyncio.sleep(0)
    time.now = until


@pytest.mark.parametrize("stubborn", [False, True])
async def test_hanging_model_costs_only_its_time_limit(stubborn: bool) -> None:
    model = HangingModel(stubborn=stubborn)
    metered = MeteredFixture(model)

    for _ in range(2):
        task = asyncio.create_task(metered.ask())
        await pass_time(metered.time, 60)
        with pytest.raises(TimeoutError, match="no answer within 60 s"):
            await task
    third_task = asyncio.create_task(metered.ask())
    await pass_time(metered.time, 60)

    assert (await third_task).finish_reason == "rules_in_place:timeout"
    assert (model.calls, model.cancelled) == (3, 3)
    assert metered.budget.sum_spending("hour", "tokens") == 3 * INPUT_TOKENS
    assert (await metered.ask()).text == "as the rules say"
    model.let_go.set()


async def test_cancelled_caller_counts_a_simultaneous_timeout() -> None:
    metered = MeteredFixture(HangingModel())
    for _ in range(3):
        task = asyncio.create_task(metered.ask())
        await asyncio.sleep(0)
        metered.time.now += 60
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert metered.model.fallback_reason == "timeout"


async def test_stopping_service_is_not_a_failure_of_the_model() -> None:
    metered = MeteredFixture(HangingModel())
    for _ in range(5):
        task = asyncio.create_task(metered.ask())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert metered.model.fallback_reason is None
    assert metered.budget.sum_spending("hour", "tokens") == 5 * INPUT_TOKENS


# -- in a fleet ---------------------------------------------------------------------------------


def use_metered_model(fleet: JudgedFleet, model: LLMProvider, **limits: Any) -> MeteredFixture:
    """Let the judge use a metered model with the fleet's clock."""
    metered = MeteredFixture(model, stand_in=RulesModel(), time=fleet.time, **limits)
    fleet.judge_model = metered.model
    return metered


async def test_medium_finding_waits_for_a_failing_model_until_the_rules_replace_it(
    fleet: JudgedFleet,
) -> None:
    """B51: two checks are unknown, then the rules write the ticket; the outage is counted throughout."""
    metered = use_metered_model(fleet, model_that_replies(TransientModelError("overloaded")))
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(12)
    tickets_before = await fleet.tickets.history(10)
    unknown = fleet.get_metric("queenright_judge_checks_total", outcome="unknown")
    await fleet.tick(2)

    ticket = await fleet.get_ticket()

    assert (tickets_before, unknown) == ([], 1)
    assert ticket.severity.value == "medium"
    assert metered.fallbacks("error") == 1


async def test_exhausted_budget_continues_the_conversation_by_rules(fleet: JudgedFleet) -> None:
    draft = dict.fromkeys(("cause", "judge_reasoning", "suggested_action", "evidence_snippet"), "word")
    reply = call(EMIT, ticket_json=json.dumps({"severity": "high", **draft}))
    model = model_that_replies(ModelReply(tool_calls=reply.tool_calls, input_tokens=10, cost=2.0))
    metered = use_metered_model(fleet, model, dollars_per_day=10)
    await fleet.start()
    await fleet.start_worker()
    await fleet.start_worker("other_agent", "session_2")
    await fleet.report_bad_steps(16)
    await fleet.report_bad_steps(16, "other_agent", "session_2")
    await fleet.tick(2)

    causes = {t.agent_id: t.cause for t in await fleet.tickets.history(10)}

    assert causes["deep_research_agent"] == "word"
    assert causes["other_agent"].startswith("other_agent (node researcher)")
    assert len(model.conversations) == 1
    assert metered.fallbacks("budget") == 1


async def test_judge_decides_with_a_hanging_model(fleet: JudgedFleet) -> None:
    model = HangingModel()
    metered = use_metered_model(fleet, model)
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(12)

    await fleet.tick(6)

    assert (await fleet.get_ticket()).severity.value == "medium"
    assert metered.fallbacks("timeout") == 1
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
    spent = fleet.get_metric("queenright_llm_budget_spent", window="hour", unit="dollars")
    await fleet.stop()

    await fleet.start()
    spent_after_restart = fleet.get_metric("queenright_llm_budget_spent", window="hour", unit="dollars")
    await fleet.start_worker("other_agent", "session_2")
    await fleet.report_bad_steps(16, "other_agent", "session_2")
    await fleet.tick()

    causes = {t.agent_id: t.cause for t in await fleet.tickets.history(10)}
    assert (spent, spent_after_restart) == (2, 2)
    assert causes["deep_research_agent"] == "word"
    assert causes["other_agent"].startswith("other_agent (node researcher)")
    assert fleet.get_metric("queenright_llm_fallbacks_total", role="judge", reason="budget") == 1
