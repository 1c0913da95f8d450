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
FINE = ModelReply(
    tool_calls=(ToolCall("c", "set_output", "{}"),), input_tokens=90, output_tokens=10, cost=0.5
)
RULES = ModelReply(text="as the rules say")

Speak = Callable[[Sequence[Message], Sequence[ToolSpec]], ModelReply]


def saying(*replies: ModelReply | Exception) -> TalkingModel:
    """A model that gives these, and the last of them from then on."""
    left = list(replies)

    def speak(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        reply = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    return TalkingModel(speak)


class Desk:
    """One metered model, its rules, its clock and what is counted."""

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
        given = dict.fromkeys(BudgetSettings.model_fields) | limits
        self.budget = ModelBudget(BudgetSettings(**given), clock=self.time)
        self.model = MeteredModel(
            model,
            "judge",
            ModelSettings(model="talking", timeout_seconds=60),
            metrics=JudgeMetrics(self.registry, dict),
            budget=self.budget,
            stand_in=stand_in or saying(RULES),
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


# -- the budget ---------------------------------------------------------------------------------


async def test_exhausted_budget_uses_rules_without_a_model_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = saying(FINE)
    desk = Desk(model, dollars_per_day=10)

    paid = [await desk.ask(), await desk.ask()]
    free = [await desk.ask() for _ in range(3)]

    assert paid == [FINE, FINE]
    assert {(reply.text, reply.finish_reason) for reply in free} == {
        ("as the rules say", "rules_in_place:budget")
    }
    assert len(model.shown) == 2
    assert desk.fallbacks("budget") == 3
    [line] = [record.message for record in caplog.records]
    assert all(part in line for part in ("talking", "judging.budget", "1.00 $"))


async def test_exhausted_budget_is_logged_once_per_window_and_the_model_returns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk(saying(FINE), dollars_per_day=5)

    for _ in range(3):
        assert await desk.ask() == FINE
        assert desk.model.fallback_reason == "budget"
        await desk.ask()
        await desk.ask()
        desk.time.now += 3600 + 300

    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3


async def test_unpriced_model_is_budgeted_in_tokens() -> None:
    desk = Desk(saying(ModelReply(tool_calls=FINE.tool_calls, input_tokens=900, output_tokens=200)))

    await desk.ask()

    assert desk.budget.sum_spending("hour", "tokens", "judge") == 1100
    assert desk.budget.sum_spending("hour", "dollars") == 0


async def test_cached_tokens_are_counted() -> None:
    desk = Desk(saying(ModelReply(tool_calls=FINE.tool_calls, input_tokens=900, cached_tokens=800)))

    await desk.ask()

    labels = {"role": "judge", "model": "talking"}
    assert desk.registry.get_sample_value("queenright_llm_cached_tokens_total", labels) == 800


class PricedModel(TalkingModel):
    """A model that costs a cent for 100 tokens read, and ten for as many written."""

    async def price(self, input_tokens: int, output_tokens: int) -> float:
        return (input_tokens + 10 * output_tokens) / 10_000


def priced(*replies: ModelReply | Exception) -> PricedModel:
    return PricedModel(saying(*replies).speak)


ASKED_TOKENS = question_tokens(CONVERSATION, TOOLS)
ASKED_DOLLARS = ASKED_TOKENS / 10_000


async def test_model_that_always_fails_spends_its_budget() -> None:
    """B51: each failed call counts its question, by the model's price."""
    model = priced(TransientModelError("overloaded"))
    desk = Desk(model, dollars_per_day=10 * (ASKED_DOLLARS * 4 + 2.0))  # four times, with room for an answer

    for _ in range(100):
        with suppress(TransientModelError):
            await desk.ask()
        desk.time.now += 30

    assert 4 <= len(model.shown) <= 5
    assert desk.budget.sum_spending("day", "dollars", "judge") == pytest.approx(
        ASKED_DOLLARS * len(model.shown)
    )
    assert (desk.fallbacks("budget") or 0) > 0


async def test_concurrent_calls_share_the_remaining_budget() -> None:
    answer = ModelReply(tool_calls=FINE.tool_calls, input_tokens=50, output_tokens=100, cost=0.1)
    model = priced(answer)
    desk = Desk(model, dollars_per_day=50)

    first = await asyncio.gather(*(desk.ask() for _ in range(10)))
    then = [await desk.ask() for _ in range(60)]

    # Each may cost 2 $ and a little for its answer: two fit side by side, and cost 0.10 $ each.
    assert sum(reply is answer for reply in first) == 2
    assert {reply.finish_reason for reply in first if reply is not answer} == {"rules_in_place:budget"}
    assert sum(reply is answer for reply in then) > 20
    assert desk.budget.sum_spending("hour", "dollars") <= 5


async def test_model_without_a_fallback_is_called_over_budget() -> None:
    desk = Desk(priced(FINE), dollars_per_day=0.1)
    desk.model = MeteredModel(
        priced(FINE),
        "judge",
        ModelSettings(model="talking"),
        metrics=JudgeMetrics(CollectorRegistry(), dict),
        budget=desk.budget,
        monotonic=desk.time,
        sleep=desk.time.sleep,
    )

    assert [await desk.ask(), await desk.ask()] == [FINE, FINE]
    assert desk.budget.sum_spending("hour", "dollars") == 1.0
    assert desk.model.fallback_reason is None


async def test_current_model_is_known_near_the_budget_limit() -> None:
    desk = Desk(priced(FINE), dollars_per_day=24)

    await desk.ask()
    before = desk.model.fallback_reason
    reply = await desk.ask()

    assert before is None
    assert reply.finish_reason == "rules_in_place:budget"
    assert desk.model.fallback_reason == "budget"


# -- a model that fails -------------------------------------------------------------------------


async def test_last_tolerated_failure_is_answered_by_the_rules(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """B51: those before it are raised: nobody says that all is well."""
    model = saying(TransientModelError("the hive is busy"))
    desk = Desk(model)

    await desk.fail(2)
    third = await desk.ask()
    later = await desk.ask()

    assert third.finish_reason == later.finish_reason == "rules_in_place:error"
    assert len(model.shown) == 3
    assert desk.fallbacks("error") == 2
    assert desk.fallbacks("budget") == 0
    [line] = caplog.messages
    assert all(part in line for part in ("talking", "TransientModelError", "the hive is busy"))


async def test_after_its_rest_a_model_is_tried_once() -> None:
    model = saying(ModelError("no such model"))
    desk = Desk(model)
    await desk.fail(2)
    await desk.ask()

    desk.time.now += 299
    await desk.ask()
    assert len(model.shown) == 3
    desk.time.now += 1
    await desk.ask()
    assert len(model.shown) == 4
    await desk.ask()

    assert len(model.shown) == 4
    assert desk.fallbacks("error") == 4


async def test_recovered_model_has_its_full_tolerance_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failed = ModelError("no")
    desk = Desk(saying(failed, failed, failed, FINE, failed))
    await desk.fail(2)
    await desk.ask()
    desk.time.now += 300

    assert await desk.ask() == FINE
    await desk.fail(2)

    assert any("talking" in text for text in caplog.messages)


async def test_failures_in_a_row_are_forgotten_with_an_answer() -> None:
    failed = ModelError("no")
    desk = Desk(saying(failed, failed, FINE, failed, failed, FINE))

    await desk.fail(2)
    assert await desk.ask() == FINE
    await desk.fail(2)

    assert await desk.ask() == FINE


async def test_model_failing_two_of_three_calls_is_suspended() -> None:
    failed = ModelError("no")
    round_of: list[ModelReply | Exception] = [failed, failed, FINE]
    model = saying(*(round_of * 100))
    desk = Desk(model)

    outcomes = []
    for _ in range(120):  # an hour
        try:
            outcomes.append((await desk.ask()).finish_reason)
        except ModelError:
            outcomes.append("failed")
        desk.time.now += 30

    assert outcomes[:8] == ["failed", "failed", "", "failed", "failed", "", "failed", "rules_in_place:error"]
    assert outcomes.count("rules_in_place:error") >= 50
    assert len(model.shown) <= 70


async def test_secret_in_a_failure_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    key = "sk-" + "a1B2" * 10
    desk = Desk(saying(RuntimeError(f"refused: {key}")))
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await desk.ask()

    await desk.ask()

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
async def test_answers_that_are_not_a_decision_are_failures_too(reply: ModelReply) -> None:
    desk = Desk(saying(reply))

    passed_on = [await desk.ask(), await desk.ask()]
    third = await desk.ask()

    assert passed_on == [reply, reply]
    assert third.finish_reason == "rules_in_place:invalid"


async def test_text_is_an_answer_in_a_conversation() -> None:
    words = ModelReply(text="It waits for its user.")
    desk = Desk(saying(words))
    chat = [ToolSpec("look", "look", {}), ToolSpec("ask_user", "ask", {})]

    answers = [await desk.ask(chat) for _ in range(5)]

    assert answers == [words] * 5
    assert [must_call(tools) for tools in (TOOLS, chat, [])] == [True, False, False]


async def test_error_names_both_when_model_and_rules_fail() -> None:
    desk = Desk(saying(FINE), stand_in=RulesModel(), dollars_per_day=1)
    await desk.ask()

    with pytest.raises(
        ModelError, match=r"talking is not called now: judging\.budget allows 0\.10 \$.*; the rules: "
    ):
        await desk.ask()

    assert desk.fallbacks("budget") == 0


# -- a model that hangs -------------------------------------------------------------------------


class Hanging:
    """A model that never answers, and does not let itself be cancelled, either."""

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
                return FINE
            except asyncio.CancelledError:
                self.cancelled += 1
                if not self.stubborn:
                    raise


async def passing(time: FakeTime, seconds: float) -> None:
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
async def test_model_that_hangs_costs_its_time_limit_and_no_more(stubborn: bool) -> None:
    model = Hanging(stubborn=stubborn)
    desk = Desk(model)

    for _ in range(2):
        asking = asyncio.create_task(desk.ask())
        await passing(desk.time, 60)
        with pytest.raises(TimeoutError, match="no answer within 60 s"):
            await asking
    third = asyncio.create_task(desk.ask())
    await passing(desk.time, 60)

    assert (await third).finish_reason == "rules_in_place:timeout"
    assert (model.calls, model.cancelled) == (3, 3)
    assert desk.budget.sum_spending("hour", "tokens") == 3 * ASKED_TOKENS
    assert (await desk.ask()).text == "as the rules say"
    model.let_go.set()


async def test_cancelled_caller_counts_a_simultaneous_timeout() -> None:
    desk = Desk(Hanging())
    for _ in range(3):
        asking = asyncio.create_task(desk.ask())
        await asyncio.sleep(0)
        desk.time.now += 60
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    assert desk.model.fallback_reason == "timeout"


async def test_service_that_stops_is_not_a_failure_of_its_model() -> None:
    desk = Desk(Hanging())
    for _ in range(5):
        asking = asyncio.create_task(desk.ask())
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    assert desk.model.fallback_reason is None
    assert desk.budget.sum_spending("hour", "tokens") == 5 * ASKED_TOKENS


# -- at work ------------------------------------------------------------------------------------


def judged_by(fleet: JudgedFleet, model: LLMProvider, **limits: Any) -> Desk:
    """Have the judge think by a metered model on the hive's own clock."""
    desk = Desk(model, stand_in=RulesModel(), time=fleet.time, **limits)
    fleet.judge_model = desk.model
    return desk


async def test_medium_finding_waits_for_a_failing_model_until_the_rules_stand_in(
    fleet: JudgedFleet,
) -> None:
    """B51: unknown, unknown, and then a ticket by the rules; the outage is counted all the while."""
    desk = judged_by(fleet, saying(TransientModelError("overloaded")))
    await fleet.start()
    await fleet.begin()
    await fleet.bad_steps(12)
    waiting = await fleet.tickets.history(10)
    unknown = fleet.metric("queenright_judge_checks_total", outcome="unknown")
    await fleet.tick(2)

    ticket = await fleet.ticket()

    assert (waiting, unknown) == ([], 1)
    assert ticket.severity.value == "medium"
    assert desk.fallbacks("error") == 1


async def test_exhausted_budget_continues_the_conversation_by_rules(fleet: JudgedFleet) -> None:
    draft = dict.fromkeys(("cause", "judge_reasoning", "suggested_action", "evidence_snippet"), "word")
    reply = call(EMIT, ticket_json=json.dumps({"severity": "high", **draft}))
    model = saying(ModelReply(tool_calls=reply.tool_calls, input_tokens=10, cost=2.0))
    desk = judged_by(fleet, model, dollars_per_day=10)
    await fleet.start()
    await fleet.begin()
    await fleet.begin("other_agent", "session_2")
    await fleet.bad_steps(16)
    await fleet.bad_steps(16, "other_agent", "session_2")
    await fleet.tick(2)

    causes = {t.agent_id: t.cause for t in await fleet.tickets.history(10)}

    assert causes["deep_research_agent"] == "word"
    assert causes["other_agent"].startswith("other_agent (node researcher)")
    assert len(model.shown) == 1
    assert desk.fallbacks("budget") == 1


async def test_judge_with_a_hanging_model_still_judges(fleet: JudgedFleet) -> None:
    model = Hanging()
    desk = judged_by(fleet, model)
    await fleet.start()
    await fleet.begin()
    await fleet.bad_steps(12)

    await fleet.tick(6)

    assert (await fleet.ticket()).severity.value == "medium"
    assert desk.fallbacks("timeout") == 1
    assert model.calls == 3


async def test_spending_before_a_restart_still_counts(fleet: JudgedFleet, tmp_path: Path) -> None:
    """With the models that the settings name, and the file in the storage folder."""
    words = dict.fromkeys(("cause", "judge_reasoning", "suggested_action", "evidence_snippet"), "word")
    ticket = {"ticket_json": json.dumps({"severity": "high", **words})}
    reply = {"tool_calls": [{"name": EMIT, "arguments": ticket}], "cost": 2.0, "input_tokens": 100}
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": [reply]}))
    fleet.given_models = False
    fleet.judge_settings = JudgeSettings(judge=ModelSettings(model=f"scripted:{script}"))
    await fleet.start()
    await fleet.begin()
    await fleet.bad_steps(16)
    async with asyncio.timeout(60):
        while not fleet.tickets.open_tickets():  # what was spent is written first
            await fleet.settle()
    spent = fleet.metric("queenright_llm_budget_spent", window="hour", unit="dollars")
    await fleet.stop()

    await fleet.start()
    again = fleet.metric("queenright_llm_budget_spent", window="hour", unit="dollars")
    await fleet.begin("other_agent", "session_2")
    await fleet.bad_steps(16, "other_agent", "session_2")
    await fleet.tick()

    causes = {t.agent_id: t.cause for t in await fleet.tickets.history(10)}
    assert (spent, again) == (2, 2)
    assert causes["deep_research_agent"] == "word"
    assert causes["other_agent"].startswith("other_agent (node researcher)")
    assert fleet.metric("queenright_llm_fallbacks_total", role="judge", reason="budget") == 1
