import asyncio
import json
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from queenright.judge.estimate import Cost, Estimate
from queenright.judge.judging_budget import BUDGET_FILE, ModelBudget, Reservation, Spending
from queenright.judge.metrics import JudgeMetrics
from queenright.judge.settings import BudgetSettings
from queenright.runtime.storage.files import Disk
from tests.judge.conftest import FakeTime

HOUR, DAY = 3600.0, 86_400.0
SLOT = 300.0
NO_LIMIT = dict.fromkeys(BudgetSettings.model_fields)

payments = st.lists(
    st.tuples(
        st.floats(0, 3 * DAY), st.sampled_from(["judge", "queen"]), st.floats(0, 5), st.integers(0, 9_000)
    ),
    max_size=30,
)


def make_budget(time: FakeTime, file: Path | None = None, **limits: Any) -> ModelBudget:
    return ModelBudget(BudgetSettings(**{**NO_LIMIT, **limits}), clock=time, file=file)


async def charge_call(model_budget: ModelBudget, role: str, dollars: float, tokens: int) -> None:
    """Charge a call without an estimate."""
    reservation = await reserve_call(model_budget, role=role, force=True)
    await model_budget.settle(reservation, Cost(dollars, tokens))


async def reserve_call(
    model_budget: ModelBudget, *, role: str = "judge", force: bool = False, **cost: Any
) -> Reservation:
    reservation = await model_budget.reserve(role, Estimate(call=Cost(**cost)), force=force)
    assert isinstance(reservation, Reservation)
    return reservation


@given(payments, st.floats(0, HOUR))
def test_budget_counts_the_window_plus_five_minutes(
    calls: list[tuple[float, str, float, int]], delay: float
) -> None:
    spending = Spending()
    calls.sort(key=lambda payment: payment[0])
    for time, role, dollars, tokens in calls:
        spending.add(role, time, dollars, tokens)
    now = (calls[-1][0] if calls else 0.0) + delay

    for seconds, window in ((HOUR, "hour"), (DAY, "day")):
        at_least = sum(call_tokens for time, _, _, call_tokens in calls if time > now - seconds)
        at_most = sum(call_tokens for time, _, _, call_tokens in calls if time > now - seconds - SLOT)
        assert at_least <= spending.sum_window(window, "tokens", now) <= at_most  # type: ignore[arg-type]
    assert spending.sum_window("day", "tokens", now) == sum(
        spending.sum_window("day", "tokens", now, role) for role in ("judge", "queen")
    )


@given(payments)
def test_spending_record_round_trips(calls: list[tuple[float, str, float, int]]) -> None:
    spending = Spending()
    for time, role, dollars, tokens in sorted(calls):
        spending.add(role, time, dollars, tokens)

    restored_spending = Spending(json.loads(json.dumps(spending.rows())))

    assert restored_spending.rows() == spending.rows()
    assert len(spending.rows()) <= 2 * (DAY / SLOT + 1)


async def test_limit_is_reached_by_spending_and_ends_with_its_window() -> None:
    time = FakeTime()
    model_budget = make_budget(time, dollars_per_day=10)

    await charge_call(model_budget, "judge", 0.6, 100)
    before_limit = model_budget.find_exceeded_limit()
    await charge_call(model_budget, "queen", 0.4, 100)
    exceeded_limit = model_budget.find_exceeded_limit()
    time.now += HOUR + SLOT

    assert before_limit is None
    assert all(part in str(exceeded_limit) for part in ("judging.budget", "1.00 $", "hour"))
    assert model_budget.find_exceeded_limit() is None
    assert model_budget.sum_spending("day", "dollars", "queen") == pytest.approx(0.4)


async def test_exceeded_limit_with_the_longest_window_is_named() -> None:
    model_budget = make_budget(FakeTime(), dollars_per_day=10, tokens_per_day=5_000)

    await charge_call(model_budget, "judge", 2.0, 6_000)

    assert all(
        part in str(model_budget.find_exceeded_limit())
        for part in ("judging.budget", "5,000 tokens", "day", "6,000 tokens")
    )


async def test_model_without_a_price_is_limited_by_tokens() -> None:
    model_budget = make_budget(FakeTime(), dollars_per_day=10, tokens_per_day=10_000)

    await charge_call(model_budget, "judge", 0.0, 1_000)

    exceeded_limit = model_budget.find_exceeded_limit()
    assert exceeded_limit is not None
    assert (exceeded_limit.unit, exceeded_limit.window) == ("tokens", "hour")


async def test_spending_survives_a_restart(tmp_path: Path) -> None:
    time, file = FakeTime(), tmp_path / BUDGET_FILE
    await charge_call(make_budget(time, file), "judge", 0.7, 10)
    await charge_call(make_budget(time, file), "queen", 0.5, 20)

    restarted_budget = make_budget(time, file, dollars_per_day=1)

    assert restarted_budget.find_exceeded_limit() is not None
    assert restarted_budget.sum_spending("day", "dollars", "queen") == 0.5
    assert restarted_budget.sum_spending("hour", "tokens") == 30
    assert file.stat().st_mode & 0o077 == 0


def test_kill_loses_no_charged_amount(tmp_path: Path) -> None:
    program = f"""
import asyncio, os, signal
from pathlib import Path
from queenright.judge.judging_budget import ModelBudget
from queenright.judge.estimate import Cost, Estimate
from queenright.judge.settings import BudgetSettings

async def main():
    file = Path({str(tmp_path / BUDGET_FILE)!r})
    model_budget = ModelBudget(BudgetSettings(), clock=lambda: 1_800_000_000.0, file=file)
    for _ in range(3):
        await model_budget.settle(await model_budget.reserve("judge", Estimate()), Cost(0.25, 100))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    result = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)

    model_budget = make_budget(FakeTime(), tmp_path / BUDGET_FILE)

    assert result.returncode == -signal.SIGKILL
    assert (model_budget.sum_spending("hour", "dollars"), model_budget.sum_spending("hour", "tokens")) == (
        0.75,
        300,
    )


# -- reservations -------------------------------------------------------------------------------


async def test_reserved_amount_counts_as_spent_until_the_cost_is_known() -> None:
    model_budget = make_budget(FakeTime(), dollars_per_day=10)

    reservation = await reserve_call(model_budget, dollars=0.4, tokens=900)
    during_call = (
        model_budget.sum_spending("hour", "dollars"),
        model_budget.sum_spending("hour", "tokens", "judge"),
    )
    await model_budget.settle(reservation, Cost(0.1, 500))

    assert during_call == (0.4, 900)
    assert (model_budget.sum_spending("hour", "dollars"), model_budget.sum_spending("hour", "tokens")) == (
        0.1,
        500,
    )
    assert model_budget.sum_spending("hour", "dollars", "queen") == 0


async def test_call_above_the_remaining_budget_is_rejected_and_a_smaller_one_allowed() -> None:
    model_budget = make_budget(FakeTime(), dollars_per_day=10)
    await charge_call(model_budget, "judge", 0.9, 10)

    refusal = await model_budget.reserve("queen", Estimate(call=Cost(0.2, 10)))
    all_spent = {(window, unit): used_share for window, unit, used_share in model_budget.all_spent()}
    exceeded_limit = model_budget.find_exceeded_limit()
    reservation = await reserve_call(model_budget, dollars=0.05)

    assert str(refusal) == str(exceeded_limit)
    assert all(part in str(refusal) for part in ("judging.budget", "1.00 $", "0.90 $", "0.2000 $"))
    assert all_spent["hour", "dollars"] == 1
    assert model_budget.find_exceeded_limit() is None
    assert reservation.role == "judge"


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500)), max_size=30),
    st.integers(500, 3_000),
)
def test_concurrent_calls_exceed_the_limit_only_by_estimate_errors(
    calls: list[tuple[int, int]], limit: int
) -> None:
    async def make_calls() -> tuple[float, int]:
        model_budget = make_budget(FakeTime(), tokens_per_day=10 * limit)
        errors = 0

        async def make_call(estimated_tokens: int, actual_tokens: int) -> None:
            nonlocal errors
            reservation = await model_budget.reserve("judge", Estimate(call=Cost(0.0, estimated_tokens)))
            await asyncio.sleep(0)
            if isinstance(reservation, Reservation):
                errors += max(0, actual_tokens - estimated_tokens)
                await model_budget.settle(reservation, Cost(0.0, actual_tokens))

        await asyncio.gather(*(make_call(*call) for call in calls))
        return model_budget.sum_spending("hour", "tokens"), errors

    spent_tokens, errors = asyncio.run(make_calls())

    assert spent_tokens <= limit + errors


async def test_call_without_an_answer_costs_its_input() -> None:
    model_budget = make_budget(FakeTime())
    reservation = await model_budget.reserve("judge", Estimate(Cost(0.03, 1_000), Cost(0.06, 3_000)))
    assert isinstance(reservation, Reservation)

    await model_budget.settle(reservation, None)

    assert (model_budget.sum_spending("hour", "dollars"), model_budget.sum_spending("hour", "tokens")) == (
        0.03,
        1_000,
    )


@pytest.mark.parametrize("dollars", [float("nan"), float("inf"), -1.0])
async def test_missing_cost_counts_as_the_reserved_amount(dollars: float, tmp_path: Path) -> None:
    time, file = FakeTime(), tmp_path / BUDGET_FILE
    model_budget = make_budget(time, file)

    await model_budget.settle(await reserve_call(model_budget, dollars=0.5, tokens=7), Cost(dollars, 10))

    assert (
        model_budget.sum_spending("hour", "dollars")
        == make_budget(time, file).sum_spending("hour", "dollars")
        == 0.5
    )


def test_kill_during_a_call_counts_its_reservation(tmp_path: Path) -> None:
    program = f"""
import asyncio, os, signal
from pathlib import Path
from queenright.judge.judging_budget import ModelBudget
from queenright.judge.estimate import Cost, Estimate
from queenright.judge.settings import BudgetSettings

async def main():
    file = Path({str(tmp_path / BUDGET_FILE)!r})
    model_budget = ModelBudget(BudgetSettings(), clock=lambda: 1_800_000_000.0, file=file)
    await model_budget.settle(await model_budget.reserve("judge", Estimate()), Cost(0.25, 100))
    await model_budget.reserve("queen", Estimate(Cost(0.1, 50), Cost(0.5, 300)))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    result = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)

    model_budget = make_budget(FakeTime(), tmp_path / BUDGET_FILE)

    assert result.returncode == -signal.SIGKILL
    assert model_budget.sum_spending("hour", "dollars", "queen") == 0.5
    assert (model_budget.sum_spending("hour", "dollars"), model_budget.sum_spending("hour", "tokens")) == (
        0.75,
        400,
    )


async def test_late_settlement_keeps_the_charges_made_in_between(tmp_path: Path) -> None:
    time, file = FakeTime(), tmp_path / BUDGET_FILE
    model_budget = make_budget(time, file)
    reservation = await reserve_call(model_budget, tokens=1_000)
    time.now += 2 * SLOT

    await charge_call(model_budget, "queen", 0.0, 5)
    tokens_during_call = make_budget(time, file).sum_spending("hour", "tokens")
    await model_budget.settle(reservation, Cost(0.0, 10))

    assert tokens_during_call == 1_005
    assert make_budget(time, file).sum_spending("hour", "tokens") == 15


async def test_cancelled_caller_reserves_nothing(tmp_path: Path) -> None:
    model_budget = make_budget(FakeTime(), tmp_path / BUDGET_FILE)
    task = asyncio.create_task(reserve_call(model_budget, tokens=1_000))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert model_budget.sum_spending("hour", "tokens") == 0


async def test_failed_caller_reserves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_budget = make_budget(FakeTime(), tmp_path / BUDGET_FILE)
    monkeypatch.setattr(Disk, "run", AsyncMock(side_effect=RuntimeError("can't start new thread")))

    with pytest.raises(RuntimeError, match="new thread"):
        await reserve_call(model_budget, tokens=1_000)

    assert model_budget.sum_spending("hour", "tokens") == 0


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"spent": 3}', b'{"spent": [[1, "judge", -4.0, 1]]}', b'{"spent": [[]]}', b"\xff"],
)
def test_damaged_file_is_moved_aside_and_logged(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / BUDGET_FILE
    file.write_bytes(content)

    model_budget = make_budget(FakeTime(), file, dollars_per_day=10)

    assert model_budget.find_exceeded_limit() is None
    assert not file.exists()
    assert (tmp_path / f"{BUDGET_FILE}.damaged").read_bytes() == content
    assert "counting starts at 0" in caplog.text


async def test_failing_disk_is_logged_and_spending_still_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "full").write_text("no folder")
    model_budget = make_budget(FakeTime(), tmp_path / "full" / BUDGET_FILE, dollars_per_day=10)

    await charge_call(model_budget, "judge", 1.5, 10)

    assert model_budget.find_exceeded_limit() is not None
    assert "a restart loses it" in caplog.text


async def test_concurrent_answers_are_all_recorded(tmp_path: Path) -> None:
    time, file = FakeTime(), tmp_path / BUDGET_FILE
    model_budget = make_budget(time, file)

    await asyncio.gather(*(charge_call(model_budget, "judge", 0.0, 1) for _ in range(20)))

    assert make_budget(time, file).sum_spending("hour", "tokens") == 20


async def test_free_calls_are_not_recorded(tmp_path: Path) -> None:
    await charge_call(make_budget(FakeTime(), tmp_path / BUDGET_FILE), "judge", 0.0, 0)

    assert not (tmp_path / BUDGET_FILE).exists()


async def test_clock_set_back_does_not_keep_the_budget_spent() -> None:
    time = FakeTime()
    model_budget = make_budget(time, dollars_per_day=10)
    await charge_call(model_budget, "judge", 5.0, 10)

    time.now -= 2 * DAY

    assert model_budget.find_exceeded_limit() is None


async def test_limits_and_spending_are_metrics() -> None:
    time, registry = FakeTime(), CollectorRegistry()
    model_budget = make_budget(time, dollars_per_day=10)
    JudgeMetrics(registry, dict).watch(model_budget)
    await charge_call(model_budget, "judge", 0.25, 100)

    def read_metric(name: str, window: str, unit: str) -> float | None:
        labels = {"window": window, "unit": unit}
        return registry.get_sample_value(f"queenright_llm_budget_{name}", labels)

    assert read_metric("limit", "hour", "dollars") == 1
    assert read_metric("limit", "day", "dollars") == 10
    assert read_metric("limit", "day", "tokens") is None
    assert read_metric("spent", "day", "dollars") == read_metric("spent", "hour", "dollars") == 0.25
    time.now += HOUR + SLOT
    assert (read_metric("spent", "hour", "dollars"), read_metric("spent", "day", "dollars")) == (0, 0.25)


def test_default_limits_are_a_dollar_an_hour_and_ten_a_day() -> None:
    limits = ModelBudget(BudgetSettings(), clock=FakeTime()).limits()

    assert [limit for _, unit, limit in limits if unit == "dollars"] == [1, 10]


@pytest.mark.parametrize("limit", [0, -1, float("inf"), float("nan"), "much"])
def test_invalid_limit_is_rejected(limit: object) -> None:
    with pytest.raises(ValidationError):
        BudgetSettings.model_validate({"dollars_per_day": limit})


@pytest.fixture(autouse=True)
def log_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
