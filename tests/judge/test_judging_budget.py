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


def budget(time: FakeTime, file: Path | None = None, **limits: Any) -> ModelBudget:
    return ModelBudget(BudgetSettings(**{**NO_LIMIT, **limits}), clock=time, file=file)


async def pay(purse: ModelBudget, role: str, dollars: float, tokens: int) -> None:
    """Charge a call whose cost was not estimated before."""
    held = await hold(purse, role=role, force=True)
    await purse.settle(held, Cost(dollars, tokens))


async def hold(
    purse: ModelBudget, *, role: str = "judge", force: bool = False, **may_cost: Any
) -> Reservation:
    held = await purse.reserve(role, Estimate(call=Cost(**may_cost)), force=force)
    assert isinstance(held, Reservation)
    return held


@given(payments, st.floats(0, HOUR))
def test_budget_counts_the_window_plus_five_minutes(
    paid: list[tuple[float, str, float, int]], later: float
) -> None:
    spending = Spending()
    paid.sort(key=lambda payment: payment[0])
    for at, role, dollars, tokens in paid:
        spending.add(role, at, dollars, tokens)
    now = (paid[-1][0] if paid else 0.0) + later

    for seconds, window in ((HOUR, "hour"), (DAY, "day")):
        surely = sum(t for at, _, _, t in paid if at > now - seconds)
        at_most = sum(t for at, _, _, t in paid if at > now - seconds - SLOT)
        assert surely <= spending.of(window, "tokens", now) <= at_most  # type: ignore[arg-type]
    assert spending.of("day", "tokens", now) == sum(
        spending.of("day", "tokens", now, role) for role in ("judge", "queen")
    )


@given(payments)
def test_spending_record_round_trips(paid: list[tuple[float, str, float, int]]) -> None:
    spending = Spending()
    for at, role, dollars, tokens in sorted(paid):
        spending.add(role, at, dollars, tokens)

    again = Spending(json.loads(json.dumps(spending.rows())))

    assert again.rows() == spending.rows()
    assert len(spending.rows()) <= 2 * (DAY / SLOT + 1)


async def test_limit_is_reached_by_spending_and_passes_with_its_window() -> None:
    time = FakeTime()
    purse = budget(time, dollars_per_day=10)

    await pay(purse, "judge", 0.6, 100)
    before = purse.find_exceeded_limit()
    await pay(purse, "queen", 0.4, 100)
    reached = purse.find_exceeded_limit()
    time.now += HOUR + SLOT

    assert before is None
    assert all(part in str(reached) for part in ("judging.budget", "1.00 $", "hour"))
    assert purse.find_exceeded_limit() is None
    assert purse.sum_spending("day", "dollars", "queen") == pytest.approx(0.4)


async def test_longest_lasting_reached_limit_is_named() -> None:
    purse = budget(FakeTime(), dollars_per_day=10, tokens_per_day=5_000)

    await pay(purse, "judge", 2.0, 6_000)

    assert all(
        part in str(purse.find_exceeded_limit())
        for part in ("judging.budget", "5,000 tokens", "day", "6,000 tokens")
    )


async def test_model_without_a_price_is_held_to_its_tokens() -> None:
    purse = budget(FakeTime(), dollars_per_day=10, tokens_per_day=10_000)

    await pay(purse, "judge", 0.0, 1_000)

    reached = purse.find_exceeded_limit()
    assert reached is not None
    assert (reached.unit, reached.window) == ("tokens", "hour")


async def test_restart_forgets_nothing(tmp_path: Path) -> None:
    time, file = FakeTime(), tmp_path / BUDGET_FILE
    await pay(budget(time, file), "judge", 0.7, 10)
    await pay(budget(time, file), "queen", 0.5, 20)

    again = budget(time, file, dollars_per_day=1)

    assert again.find_exceeded_limit() is not None
    assert again.sum_spending("day", "dollars", "queen") == 0.5
    assert again.sum_spending("hour", "tokens") == 30
    assert file.stat().st_mode & 0o077 == 0


def test_kill_loses_no_paid_amount(tmp_path: Path) -> None:
    program = f"""
import asyncio, os, signal
from pathlib import Path
from queenright.judge.judging_budget import ModelBudget
from queenright.judge.estimate import Cost, Estimate
from queenright.judge.settings import BudgetSettings

async def main():
    file = Path({str(tmp_path / BUDGET_FILE)!r})
    purse = ModelBudget(BudgetSettings(), clock=lambda: 1_800_000_000.0, file=file)
    for _ in range(3):
        await purse.settle(await purse.reserve("judge", Estimate()), Cost(0.25, 100))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    result = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)

    purse = budget(FakeTime(), tmp_path / BUDGET_FILE)

    assert result.returncode == -signal.SIGKILL
    assert (purse.sum_spending("hour", "dollars"), purse.sum_spending("hour", "tokens")) == (0.75, 300)


# -- what is held for calls under way -----------------------------------------------------------


async def test_reserved_amount_counts_as_spent_until_the_cost_is_known() -> None:
    purse = budget(FakeTime(), dollars_per_day=10)

    held = await hold(purse, dollars=0.4, tokens=900)
    meanwhile = (purse.sum_spending("hour", "dollars"), purse.sum_spending("hour", "tokens", "judge"))
    await purse.settle(held, Cost(0.1, 500))

    assert meanwhile == (0.4, 900)
    assert (purse.sum_spending("hour", "dollars"), purse.sum_spending("hour", "tokens")) == (0.1, 500)
    assert purse.sum_spending("hour", "dollars", "queen") == 0


async def test_call_above_the_remaining_budget_is_refused_and_a_smaller_one_allowed() -> None:
    purse = budget(FakeTime(), dollars_per_day=10)
    await pay(purse, "judge", 0.9, 10)

    refused = await purse.reserve("queen", Estimate(call=Cost(0.2, 10)))
    result = {(window, unit): spent for window, unit, spent in purse.all_spent()}
    known = purse.find_exceeded_limit()
    held = await hold(purse, dollars=0.05)

    assert str(refused) == str(known)
    assert all(part in str(refused) for part in ("judging.budget", "1.00 $", "0.90 $", "0.2000 $"))
    assert result["hour", "dollars"] == 1
    assert purse.find_exceeded_limit() is None
    assert held.role == "judge"


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500)), max_size=30),
    st.integers(500, 3_000),
)
def test_concurrent_calls_exceed_the_limit_only_by_estimate_errors(
    calls: list[tuple[int, int]], limit: int
) -> None:
    async def main() -> tuple[float, int]:
        purse = budget(FakeTime(), tokens_per_day=10 * limit)
        errors = 0

        async def ask(estimated: int, real: int) -> None:
            nonlocal errors
            held = await purse.reserve("judge", Estimate(call=Cost(0.0, estimated)))
            await asyncio.sleep(0)
            if isinstance(held, Reservation):
                errors += max(0, real - estimated)
                await purse.settle(held, Cost(0.0, real))

        await asyncio.gather(*(ask(*call) for call in calls))
        return purse.sum_spending("hour", "tokens"), errors

    spent, errors = asyncio.run(main())

    assert spent <= limit + errors


async def test_unanswered_call_costs_its_question() -> None:
    purse = budget(FakeTime())
    held = await purse.reserve("judge", Estimate(Cost(0.03, 1_000), Cost(0.06, 3_000)))
    assert isinstance(held, Reservation)

    await purse.settle(held, None)

    assert (purse.sum_spending("hour", "dollars"), purse.sum_spending("hour", "tokens")) == (0.03, 1_000)


@pytest.mark.parametrize("dollars", [float("nan"), float("inf"), -1.0])
async def test_missing_cost_counts_as_the_reserved_amount(dollars: float, tmp_path: Path) -> None:
    time, file = FakeTime(), tmp_path / BUDGET_FILE
    purse = budget(time, file)

    await purse.settle(await hold(purse, dollars=0.5, tokens=7), Cost(dollars, 10))

    assert purse.sum_spending("hour", "dollars") == budget(time, file).sum_spending("hour", "dollars") == 0.5


def test_kill_during_a_call_counts_its_reservation(tmp_path: Path) -> None:
    program = f"""
import asyncio, os, signal
from pathlib import Path
from queenright.judge.judging_budget import ModelBudget
from queenright.judge.estimate import Cost, Estimate
from queenright.judge.settings import BudgetSettings

async def main():
    file = Path({str(tmp_path / BUDGET_FILE)!r})
    purse = ModelBudget(BudgetSettings(), clock=lambda: 1_800_000_000.0, file=file)
    await purse.settle(await purse.reserve("judge", Estimate()), Cost(0.25, 100))
    await purse.reserve("queen", Estimate(Cost(0.1, 50), Cost(0.5, 300)))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    result = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)

    purse = budget(FakeTime(), tmp_path / BUDGET_FILE)

    assert result.returncode == -signal.SIGKILL
    assert purse.sum_spending("hour", "dollars", "queen") == 0.5
    assert (purse.sum_spending("hour", "dollars"), purse.sum_spending("hour", "tokens")) == (0.75, 400)


async def test_reservation_changes_no_paid_row(tmp_path: Path) -> None:
    time, file = FakeTime(), tmp_path / BUDGET_FILE
    purse = budget(time, file)
    slow = await hold(purse, tokens=1_000)
    time.now += 2 * SLOT

    await pay(purse, "queen", 0.0, 5)
    meanwhile = budget(time, file).sum_spending("hour", "tokens")
    await purse.settle(slow, Cost(0.0, 10))

    assert meanwhile == 1_005
    assert budget(time, file).sum_spending("hour", "tokens") == 15


async def test_cancelled_caller_reserves_nothing(tmp_path: Path) -> None:
    purse = budget(FakeTime(), tmp_path / BUDGET_FILE)
    going = asyncio.create_task(hold(purse, tokens=1_000))
    await asyncio.sleep(0)
    going.cancel()
    await asyncio.gather(going, return_exceptions=True)

    assert purse.sum_spending("hour", "tokens") == 0


async def test_failed_caller_reserves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    purse = budget(FakeTime(), tmp_path / BUDGET_FILE)
    monkeypatch.setattr(Disk, "run", AsyncMock(side_effect=RuntimeError("can't start new thread")))

    with pytest.raises(RuntimeError, match="new thread"):
        await hold(purse, tokens=1_000)

    assert purse.sum_spending("hour", "tokens") == 0


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"spent": 3}', b'{"spent": [[1, "judge", -4.0, 1]]}', b'{"spent": [[]]}', b"\xff"],
)
def test_damaged_file_is_moved_aside_and_logged(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / BUDGET_FILE
    file.write_bytes(content)

    purse = budget(FakeTime(), file, dollars_per_day=10)

    assert purse.find_exceeded_limit() is None
    assert not file.exists()
    assert (tmp_path / f"{BUDGET_FILE}.damaged").read_bytes() == content
    assert "counting starts at 0" in caplog.text


async def test_failing_disk_is_logged_and_spending_still_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "full").write_text("no folder")
    purse = budget(FakeTime(), tmp_path / "full" / BUDGET_FILE, dollars_per_day=10)

    await pay(purse, "judge", 1.5, 10)

    assert purse.find_exceeded_limit() is not None
    assert "a restart loses it" in caplog.text


async def test_concurrent_answers_are_all_recorded(tmp_path: Path) -> None:
    time, file = FakeTime(), tmp_path / BUDGET_FILE
    purse = budget(time, file)

    await asyncio.gather(*(pay(purse, "judge", 0.0, 1) for _ in range(20)))

    assert budget(time, file).sum_spending("hour", "tokens") == 20


async def test_free_calls_are_not_recorded(tmp_path: Path) -> None:
    await pay(budget(FakeTime(), tmp_path / BUDGET_FILE), "judge", 0.0, 0)

    assert not (tmp_path / BUDGET_FILE).exists()


async def test_clock_set_back_does_not_keep_the_budget_spent() -> None:
    time = FakeTime()
    purse = budget(time, dollars_per_day=10)
    await pay(purse, "judge", 5.0, 10)

    time.now -= 2 * DAY

    assert purse.find_exceeded_limit() is None


async def test_limits_and_spending_are_metrics() -> None:
    time, registry = FakeTime(), CollectorRegistry()
    purse = budget(time, dollars_per_day=10)
    JudgeMetrics(registry, dict).watch(purse)
    await pay(purse, "judge", 0.25, 100)

    def shown(name: str, window: str, unit: str) -> float | None:
        labels = {"window": window, "unit": unit}
        return registry.get_sample_value(f"queenright_llm_budget_{name}", labels)

    assert shown("limit", "hour", "dollars") == 1
    assert shown("limit", "day", "dollars") == 10
    assert shown("limit", "day", "tokens") is None
    assert shown("spent", "day", "dollars") == shown("spent", "hour", "dollars") == 0.25
    time.now += HOUR + SLOT
    assert (shown("spent", "hour", "dollars"), shown("spent", "day", "dollars")) == (0, 0.25)


def test_default_is_a_dollar_an_hour_and_ten_a_day() -> None:
    limits = ModelBudget(BudgetSettings(), clock=FakeTime()).limits()

    assert [limit for _, unit, limit in limits if unit == "dollars"] == [1, 10]


@pytest.mark.parametrize("limit", [0, -1, float("inf"), float("nan"), "much"])
def test_invalid_limit_is_refused(limit: object) -> None:
    with pytest.raises(ValidationError):
        BudgetSettings.model_validate({"dollars_per_day": limit})


@pytest.fixture(autouse=True)
def log_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
