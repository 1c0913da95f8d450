from typing import Any

import pytest

from queenright.health.settings import HealthSettings
from queenright.instrumentation.names import WaitingReason
from queenright.judge.stack.http import StackAddress
from queenright.judge.stack.prometheus import Prometheus
from queenright.judge.stack.workers import Sighting, find_workers, prometheus_time
from tests.judge.stack_parts import make_vector, serve_answers

NOW = 1_800_000_000.0
Rows = list[tuple[dict[str, str], float]]


def make_row(
    name: str, value: float, agent: str = "researcher", **labels: str
) -> tuple[dict[str, str], float]:
    target = {"job": "workers", "instance": "host:9464"}
    return {"__name__": f"queenright_worker_{name}", "agent": agent, **target, **labels}, value


def get_query_name(promql: str) -> str:
    """Return the name of a query."""
    for mark, name in (
        ("up and on", "up"),
        ('=~"up|', "reporting"),
        ("last_over_time", "last"),
        ("offset 900s", "much_earlier"),
        ("offset", "earlier"),
        ("process_start", "start_times"),
        ("stalls_total", "stalls"),
        ("increase(", "calls"),
        ("steps_total|", "totals"),
    ):
        if mark in promql:
            return name
    return "current"


async def find_sightings(selector: str = "", **rows: Rows) -> tuple[list[Sighting], list[str]]:
    def answer(path: str, params: dict[str, str]) -> tuple[int, Any]:
        return 200, make_vector(*rows.get(get_query_name(params["query"]), []))

    async with serve_answers(answer) as (server, url):
        prometheus = Prometheus(StackAddress.parse(url))
        sightings = await find_workers(prometheus, HealthSettings(), NOW, selector)
        await prometheus.aclose()
    return sightings, [params["query"] for _, params in server.requests]


LIVE_ROWS = [make_row("last_activity_timestamp_seconds", NOW - 10), make_row("steps_since_accept", 7)]


async def test_worker_is_an_agent_on_a_target() -> None:
    other_instance = [make_row("last_activity_timestamp_seconds", NOW - 5, instance="other:9464")]
    other_cluster = [make_row("last_activity_timestamp_seconds", NOW - 5, cluster="eu")]

    sightings, _ = await find_sightings(current=LIVE_ROWS + other_instance + other_cluster)

    assert [(sighting.target, sighting.bad_steps) for sighting in sightings] == [
        ("workers/host:9464", 7),
        ("workers/other:9464", 0),
        ("eu/workers/host:9464", 0),
    ]


async def test_two_prometheus_replicas_report_a_worker_once() -> None:
    replica_rows = [(labels | {"replica": "b"}, value - 1) for labels, value in LIVE_ROWS]
    calls = [make_row("tool_calls_total", 30, tool="search", outcome="ok")]
    calls += [(labels | {"replica": "b"}, value - 2) for labels, value in calls]

    [sighting], _ = await find_sightings(current=LIVE_ROWS + replica_rows, totals=calls)

    assert sighting.last_activity == NOW - 10
    assert sighting.bad_steps == 7
    assert sighting.tool_calls == {"search": (30, 0)}


async def test_counters_are_summed_by_tool_and_error_class() -> None:
    totals = [
        make_row("tool_calls_total", 30, tool="search", outcome="ok"),
        make_row("tool_calls_total", 5, tool="search", outcome="timeout"),
        make_row("steps_total", 10, node="a", verdict="accept"),
        make_row("steps_total", 4, node="b", verdict="retry"),
        make_row("tokens_total", 900, model="m", direction="input"),
        make_row("tokens_total", 100, model="m", direction="output"),
        make_row("errors_total", 3, error_type="ValueError"),
    ]
    recent_calls = [make_row("tool_calls_total", 3.3, tool="search", outcome="error")]

    [sighting], _ = await find_sightings(current=LIVE_ROWS, totals=totals, calls=recent_calls)

    assert sighting.tool_calls == {"search": (35, 5)}
    assert (sighting.steps, sighting.tokens, sighting.errors) == (14, 1000, {"ValueError": 3})
    assert sighting.recent_calls == {"search": (3.3, 3.3)}


async def test_down_target_has_its_last_values_and_up_target_its_current_ones() -> None:
    last_rows = [
        make_row("last_activity_timestamp_seconds", NOW - 900),
        make_row("last_activity_timestamp_seconds", 1, "dead"),
    ]

    sightings, _ = await find_sightings(current=LIVE_ROWS, last=last_rows, up=[make_row("up", 0)])

    assert [(sighting.agent, sighting.is_down) for sighting in sightings] == [
        ("researcher", False),
        ("dead", True),
    ]
    assert sightings[0].last_activity == NOW - 10


EU_LABELS = {"cluster": "eu"}
US_LABELS = {"cluster": "us"}


@pytest.mark.parametrize(
    ("labels", "target_values", "is_down"),
    [
        (EU_LABELS, [(EU_LABELS, 0), (US_LABELS, 1)], True),
        (EU_LABELS, [(EU_LABELS, 1), (US_LABELS, 0)], False),
        (EU_LABELS, [(US_LABELS, 0)], False),
        (EU_LABELS, [({}, 0)], True),
        ({"region": "eu"}, [({"region": "us"}, 0), ({"region": "eu"}, 1)], False),
        ({"region": "eu", "replica": "a"}, [({"region": "eu", "replica": "b"}, 0)], True),
        ({"prometheus_replica": "a"}, [({"prometheus_replica": i}, n) for n, i in enumerate("ab")], False),
    ],
)
async def test_target_of_another_worker_with_the_same_name_is_ignored(
    labels: dict[str, str], target_values: list[tuple[dict[str, str], float]], is_down: bool
) -> None:
    last_rows = [make_row("last_activity_timestamp_seconds", NOW - 900, **labels)]

    sightings, _ = await find_sightings(
        last=last_rows,
        up=[make_row("up", value, "", **target_labels) for target_labels, value in target_values],
    )

    assert [sighting.is_down for sighting in sightings] == [True] * is_down


async def test_start_time_of_another_worker_with_the_same_name_is_ignored() -> None:
    current_rows = [make_row("last_activity_timestamp_seconds", NOW - 10, region="eu")]
    target = {"job": "workers", "instance": "host:9464"}
    start_times = [({**target, "region": "us"}, NOW - 50), ({**target, "region": "eu"}, NOW - 900)]

    [with_start_time], _ = await find_sightings(current=current_rows, start_times=start_times)
    [without_start_time], _ = await find_sightings(current=current_rows, start_times=start_times[:1])

    assert with_start_time.process_started == NOW - 900
    assert without_start_time.process_started is None


async def test_zero_values_are_absent_and_agents_without_activity_are_not_workers() -> None:
    new_worker = [
        make_row("last_activity_timestamp_seconds", 0),
        make_row("last_progress_timestamp_seconds", 0),
        make_row("steps_since_accept", 0),
    ]

    assert (await find_sightings(current=new_worker))[0] == []
    [sighting], _ = await find_sightings(
        current=[*new_worker, make_row("last_heartbeat_timestamp_seconds", NOW)]
    )
    assert sighting.last_progress is None


async def test_waits_stalls_and_start_times_are_read() -> None:
    waits = [make_row("waiting", 0, reason="paused"), make_row("waiting", 1, reason="user_input")]
    unknown_wait = [
        make_row("waiting", 1, "newer", reason="for_godot"),
        make_row("last_activity_timestamp_seconds", 1, "newer"),
    ]
    start_times = [({"job": "workers", "instance": "host:9464"}, NOW - 50)]

    sightings, _ = await find_sightings(
        current=[*LIVE_ROWS, *waits, *unknown_wait],
        stalls=[make_row("stalls_total", 1, phase="llm")],
        earlier=[LIVE_ROWS[0]],
        start_times=start_times,
    )

    first, second = sightings
    assert first.waiting is WaitingReason.USER_INPUT
    assert second.waiting is WaitingReason.PAUSED, "an unknown reason still counts as a wait"
    assert (first.stalled_in, first.process_started, first.is_in_grace) == ("llm", NOW - 50, False)
    assert second.is_in_grace, "the worker did not exist one start grace ago"


async def test_selector_is_in_every_query() -> None:
    for selector in ('{cluster="eu"}', 'cluster="eu"', ' {cluster="eu",} '):
        _, queries = await find_sightings(selector)

        assert len(queries) == 9
        assert all('",cluster="eu"}' in promql for promql in queries)


async def test_time_comes_from_prometheus() -> None:
    scalar = {"status": "success", "data": {"resultType": "scalar", "result": [NOW, str(NOW)]}}
    async with serve_answers(lambda path, params: (200, scalar)) as (_, url):
        prometheus = Prometheus(StackAddress.parse(url))
        assert await prometheus_time(prometheus) == NOW
        await prometheus.aclose()
