from typing import Any

import pytest

from queenright.health.settings import HealthSettings
from queenright.instrumentation.names import WaitingReason
from queenright.judge.stack.http import StackAddress
from queenright.judge.stack.prometheus import Prometheus
from queenright.judge.stack.workers import Sighting, find_workers, prometheus_time
from tests.judge.stack_parts import serving, vector

NOW = 1_800_000_000.0
Rows = list[tuple[dict[str, str], float]]


def row(name: str, value: float, agent: str = "researcher", **labels: str) -> tuple[dict[str, str], float]:
    target = {"job": "workers", "instance": "host:9464"}
    return {"__name__": f"queenright_worker_{name}", "agent": agent, **target, **labels}, value


def which(promql: str) -> str:
    """Which of the questions a query is."""
    for mark, question in (
        ("up and on", "up"),
        ('=~"up|', "still"),
        ("last_over_time", "gone"),
        ("offset 900s", "long_before"),
        ("offset", "before"),
        ("process_start", "started"),
        ("stalls_total", "stalls"),
        ("increase(", "calls"),
        ("steps_total|", "totals"),
    ):
        if mark in promql:
            return question
    return "here"


async def found(selector: str = "", **told: Rows) -> tuple[list[Sighting], list[str]]:
    def answer(path: str, params: dict[str, str]) -> tuple[int, Any]:
        return 200, vector(*told.get(which(params["query"]), []))

    async with serving(answer) as (server, url):
        prometheus = Prometheus(StackAddress.parse(url))
        sightings = await find_workers(prometheus, HealthSettings(), NOW, selector)
        await prometheus.aclose()
    return sightings, [params["query"] for _, params in server.asked]


HERE = [row("last_activity_timestamp_seconds", NOW - 10), row("steps_since_accept", 7)]


async def test_worker_is_an_agent_on_a_target() -> None:
    other = [row("last_activity_timestamp_seconds", NOW - 5, instance="other:9464")]
    elsewhere = [row("last_activity_timestamp_seconds", NOW - 5, cluster="eu")]

    sightings, _ = await found(here=HERE + other + elsewhere)

    assert [(sighting.target, sighting.bad_steps) for sighting in sightings] == [
        ("workers/host:9464", 7),
        ("workers/other:9464", 0),
        ("eu/workers/host:9464", 0),
    ]


async def test_two_prometheus_replicas_report_one_worker() -> None:
    again = [(labels | {"replica": "b"}, value - 1) for labels, value in HERE]
    calls = [row("tool_calls_total", 30, tool="search", outcome="ok")]
    calls += [(labels | {"replica": "b"}, value - 2) for labels, value in calls]

    [one], _ = await found(here=HERE + again, totals=calls)

    assert one.last_activity == NOW - 10
    assert one.bad_steps == 7
    assert one.tool_calls == {"search": (30, 0)}


async def test_counters_are_added_up_by_tool_and_by_class_of_error() -> None:
    totals = [
        row("tool_calls_total", 30, tool="search", outcome="ok"),
        row("tool_calls_total", 5, tool="search", outcome="timeout"),
        row("steps_total", 10, node="a", verdict="accept"),
        row("steps_total", 4, node="b", verdict="retry"),
        row("tokens_total", 900, model="m", direction="input"),
        row("tokens_total", 100, model="m", direction="output"),
        row("errors_total", 3, error_type="ValueError"),
    ]
    lately = [row("tool_calls_total", 3.3, tool="search", outcome="error")]

    [one], _ = await found(here=HERE, totals=totals, calls=lately)

    assert one.tool_calls == {"search": (35, 5)}
    assert (one.steps, one.tokens, one.errors) == (14, 1000, {"ValueError": 3})
    assert one.recent_calls == {"search": (3.3, 3.3)}


async def test_down_target_has_its_last_value_and_up_target_its_current_one() -> None:
    gone = [
        row("last_activity_timestamp_seconds", NOW - 900),
        row("last_activity_timestamp_seconds", 1, "dead"),
    ]

    sightings, _ = await found(here=HERE, gone=gone, up=[row("up", 0)])

    assert [(sighting.agent, sighting.is_down) for sighting in sightings] == [
        ("researcher", False),
        ("dead", True),
    ]
    assert sightings[0].last_activity == NOW - 10


EU = {"cluster": "eu"}
US = {"cluster": "us"}


@pytest.mark.parametrize(
    ("labels", "ups", "down"),
    [
        (EU, [(EU, 0), (US, 1)], True),
        (EU, [(EU, 1), (US, 0)], False),
        (EU, [(US, 0)], False),
        (EU, [({}, 0)], True),
        ({"region": "eu"}, [({"region": "us"}, 0), ({"region": "eu"}, 1)], False),
        ({"region": "eu", "replica": "a"}, [({"region": "eu", "replica": "b"}, 0)], True),
        ({"prometheus_replica": "a"}, [({"prometheus_replica": i}, n) for n, i in enumerate("ab")], False),
    ],
)
async def test_target_of_a_namesake_is_not_used(
    labels: dict[str, str], ups: list[tuple[dict[str, str], float]], down: bool
) -> None:
    gone = [row("last_activity_timestamp_seconds", NOW - 900, **labels)]

    sightings, _ = await found(gone=gone, up=[row("up", value, "", **of) for of, value in ups])

    assert [sighting.is_down for sighting in sightings] == [True] * down


async def test_process_start_of_a_namesake_is_not_used() -> None:
    here = [row("last_activity_timestamp_seconds", NOW - 10, region="eu")]
    target = {"job": "workers", "instance": "host:9464"}
    started = [({**target, "region": "us"}, NOW - 50), ({**target, "region": "eu"}, NOW - 900)]

    [one], _ = await found(here=here, started=started)
    [other], _ = await found(here=here, started=started[:1])

    assert one.process_started == NOW - 900
    assert other.process_started is None


async def test_unset_values_are_absent_and_idle_agents_are_not_workers() -> None:
    born = [
        row("last_activity_timestamp_seconds", 0),
        row("last_progress_timestamp_seconds", 0),
        row("steps_since_accept", 0),
    ]

    assert (await found(here=born))[0] == []
    [one], _ = await found(here=[*born, row("last_heartbeat_timestamp_seconds", NOW)])
    assert one.last_progress is None


async def test_waits_stalls_and_starts_are_read() -> None:
    waits = [row("waiting", 0, reason="paused"), row("waiting", 1, reason="user_input")]
    newer = [
        row("waiting", 1, "newer", reason="for_godot"),
        row("last_activity_timestamp_seconds", 1, "newer"),
    ]
    started = [({"job": "workers", "instance": "host:9464"}, NOW - 50)]

    sightings, _ = await found(
        here=[*HERE, *waits, *newer],
        stalls=[row("stalls_total", 1, phase="llm")],
        before=[HERE[0]],
        started=started,
    )

    one, other = sightings
    assert one.waiting is WaitingReason.USER_INPUT
    assert other.waiting is WaitingReason.PAUSED, "one that a newer version has is a wait all the same"
    assert (one.stalled_in, one.process_started, one.is_in_grace) == ("llm", NOW - 50, False)
    assert other.is_in_grace, "it was not there one start grace ago"


async def test_selector_is_in_every_question() -> None:
    for selector in ('{cluster="eu"}', 'cluster="eu"', ' {cluster="eu",} '):
        _, queries = await found(selector)

        assert len(queries) == 9
        assert all('",cluster="eu"}' in promql for promql in queries)


async def test_time_is_prometheus_own() -> None:
    scalar = {"status": "success", "data": {"resultType": "scalar", "result": [NOW, str(NOW)]}}
    async with serving(lambda path, params: (200, scalar)) as (_, url):
        prometheus = Prometheus(StackAddress.parse(url))
        assert await prometheus_time(prometheus) == NOW
        await prometheus.aclose()
