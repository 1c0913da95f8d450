import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.judge.stack.promql import find_query_fault


@pytest.mark.parametrize(
    "promql",
    [
        "up",
        "rate(queenright_worker_steps_total[5m])",
        "increase(x[1h30m] offset 2h)",
        "max_over_time(rate(x[5m])[6h:1m])",
        "avg_over_time(x[3600])",
        'x{span="[30d]"}',
        "x{a='offset 99w'} # [30d]",
        "x{a=`[30d]`}",
        "x > 100000",
        "time() - x > 2d",
        "x > 5m * 1000",
        "x offset 5m - x OFFSET 10m",
        'x{offset="1"} + sum by (offset, a) (x) + max by (offset) (x)',
        "x:offset:rate30d",
        "max_over_time(x[ 1h : ] offset -1h)",
        "histogram_quantile(0.95, sum by (le) (rate(x_bucket[5m])))",
    ],
)
def test_promql_range_up_to_a_day_is_allowed(promql: str) -> None:
    assert find_query_fault(promql) == ""


@pytest.mark.parametrize(
    "promql",
    [
        "rate(x[30d])",
        "x offset 2d",
        "x offset -2d",
        "max_over_time(x[24h] offset 1m)",
        "avg_over_time(rate(x[1h])[2w:1m])",
        "x[1d1h]",
        "avg_over_time(x[100000])",
        "x offset 100000",
        "x[0x20000]",
        "x @ 1609746000",
        "x @ start()",
        "x[ # it's a comment\n30d] # and that's its end",
        'x{a="\\""}[30d]',
        "x OFFSET 2592000",
        "x[5m * 1000]",
        "x[5m*2]",
        "x[-5m]",
        "x[1h ^ 9]",
        "x[step()]",
        "x[(1h)]",
        "x[1h:step()]",
        "x[max(1h, 30d)]",
        "x[1.5h]",
        "x[1i]",
        "x[$__range]",
        "x[Inf]",
        "x[1e999]",
        "x[",
        "x[]",
        "x offset (1h * 24)",
        "x offset -(1h)",
        "x offset step()",
        "x offset",
    ],
)
def test_promql_range_over_a_day_is_rejected_with_a_reason(promql: str) -> None:
    assert find_query_fault(promql)


def test_unsupported_promql_is_quoted_in_the_error() -> None:
    assert "'5m * 2'" in find_query_fault("rate(x[5m * 2])")


def test_promql_range_includes_the_query_window() -> None:
    day = 24 * 3600.0

    assert find_query_fault("x", range_seconds=day) == ""
    assert find_query_fault("rate(x[5m])", range_seconds=day - 300) == ""
    assert all(part in find_query_fault("rate(x[5m])", range_seconds=day) for part in ("24.08 h", "24 h"))
    assert find_query_fault("x offset 23h", range_seconds=3601)


@given(st.text(max_size=200))
def test_any_text_is_accepted_as_input(promql: str) -> None:
    assert isinstance(find_query_fault(promql), str)


@given(st.text(alphabet="ab#'\"`\\\n ", max_size=20))
def test_quote_in_a_comment_does_not_hide_a_range(text: str) -> None:
    comment = text.replace("\n", " ")

    assert find_query_fault(f"x #{comment}\n[30d]")
