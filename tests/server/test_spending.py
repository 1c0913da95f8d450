"""What a run has spent since its trouble began: on its ticket, wherever that is shown."""

from __future__ import annotations

import httpx

from queenright.runtime.events import AgentEvent, EventType
from queenright.server.up import Running
from tests.server.conftest import looping
from tests.server.test_cli_acting import queenright
from tests.waiting import until


async def test_ticket_says_what_the_run_has_spent_since_its_trouble_began(
    running: Running, http: httpx.AsyncClient
) -> None:
    """B106: the price of a call without one is not known, and not nothing."""
    service = running.service
    events = list(looping(service.clock(), times=5))
    who = {"agent_id": "looper", "session_id": events[0].session_id}
    calls = [
        AgentEvent(type=EventType.LLM_CALL_COMPLETED, time=at, data={"input_tokens": 1_000, **more}, **who)
        for at, more in ((events[0].time, {"cost_usd": 7.0}), (events[-1].time, {"cost_usd": 0.25}))
    ]
    unpriced = AgentEvent(
        type=EventType.LLM_CALL_COMPLETED, time=events[-1].time, data={"output_tokens": 500}, **who
    )

    await service.ingest([events[0], calls[0], *events[1:], calls[1], unpriced])
    await until(lambda: service.tickets.open_tickets(), "a ticket")
    [ticket] = (await http.get("/api/tickets")).json()["tickets"]
    shown = await queenright(running, "tickets", "show", ticket["ticket_id"])
    page = (await http.get(f"/tickets/{ticket['ticket_id']}")).text

    spent = "$0.25 (1,500 tokens, 500 not priced) since the trouble began"
    assert ticket["trouble_since"] > events[0].time
    assert (ticket["spent_usd"], ticket["spent_tokens"], ticket["spent_unpriced_tokens"]) == (0.25, 1500, 500)
    assert spent in " ".join(shown.out.split())
    assert spent in page
