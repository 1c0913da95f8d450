"""The judge's checks in the API, and the tools of judge and queen."""

import httpx
import pytest

from queenright.api import JudgeCheck
from queenright.api.examples import make_example
from queenright.judge.judge import JUDGE_GRAPH
from queenright.judge.queen_triage import QUEEN_GRAPH
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService
from tests.server.test_app import wait_for_ticket


async def test_checks_are_listed_newest_first_with_their_cost(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    await wait_for_ticket(running)

    checks = (await http.get("/api/judge/checks")).json()["checks"]
    [first_check] = (await http.get("/api/judge/checks?limit=1")).json()["checks"]

    assert first_check == checks[0]
    assert [check["checked_at"] for check in checks] == sorted(
        (check["checked_at"] for check in checks), reverse=True
    )
    ticket_checks = [check for check in checks if check["tickets"]]
    assert [(check["outcome"], check["judged"], check["cost"]) for check in ticket_checks] == [
        ("ticket", 1, 0.0)
    ]
    assert ticket_checks[0]["model"] == "queenright/rules"


async def test_judge_and_queen_have_trace_tools_and_no_metric_tools_without_a_url(
    running: RunningService,
) -> None:
    runtime = running.service.runtime
    for graph in (JUDGE_GRAPH, QUEEN_GRAPH):
        tools = runtime.get_graph(graph).nodes[0].tools
        assert "get_trace" in tools
        assert "query_metrics" not in tools


async def test_checks_are_read_in_pages(running: RunningService, http: httpx.AsyncClient) -> None:
    for number in range(5):
        data = make_example(JudgeCheck) | {"woken_by": [str(number)]}
        await running.service.bus.publish(
            AgentEvent(type=EventType.JUDGE_CHECKED, time=float(number), data=data)
        )
    reasons: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        answer = (await http.get(f"/api/judge/checks?limit=2{cursor}")).json()
        reasons += [check["woken_by"][0] for check in answer["checks"]]
        cursor = f"&cursor={answer['next']}" if answer["next"] else None
    error = await http.get("/api/judge/checks?cursor=x")

    assert [reason for reason in reasons if reason.isdigit()] == ["4", "3", "2", "1", "0"]
    assert (error.status_code, "list of checks" in error.text) == (400, True)


@pytest.mark.parametrize("missing_field", [name for name in make_example(JudgeCheck) if name != "checked_at"])
async def test_check_with_a_missing_field_is_listed(
    running: RunningService, http: httpx.AsyncClient, missing_field: str
) -> None:
    complete = make_example(JudgeCheck)
    for data in (
        {name: complete[name] for name in complete if name != missing_field},
        complete | {missing_field: {"odd": 1}},
    ):
        await running.service.bus.publish(AgentEvent(type=EventType.JUDGE_CHECKED, time=1.0, data=data))
    response = await http.get("/api/judge/checks")

    assert response.status_code == 200
    body = [check for check in response.json()["checks"] if check["checked_at"] == 1.0]
    assert len(body) == 2
    default_value = {"outcome": "unknown", "woken_by": [], "model": "", "prompt": ""}.get(missing_field)
    for field in body:
        assert field == complete | {"checked_at": 1.0, missing_field: default_value}
