"""Every query of every panel has data after a run in which everything happened that panels are about."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import httpx
import pytest

from queenright.demo.fleet import Fleet
from queenright.grafana import queries
from queenright.server.up import Running
from tests.waiting import until

DASHBOARDS = Path(__file__).parents[2] / "grafana" / "dashboards"


async def test_every_query_of_every_panel_has_data(running: Running, tmp_path: Path) -> None:
    fleet = Fleet(
        Path(__file__).parents[2] / "docs",
        endpoint=running.otlp_url,
        registry=running.service.registry,
        storage=tmp_path,
    )
    fleet.start()
    try:
        feed = running.service.recent
        await until(
            lambda: any(e.type == "ticket_resolved" for e in feed),
            seconds=90,
            what="a ticket from start to end",
        )
        assert running.prometheus_url
        empty = await _empty_panels(running.prometheus_url)
    finally:
        await asyncio.to_thread(fleet.stop)

    assert empty == []


async def _empty_panels(prometheus_url: str) -> list[str]:
    """Return the queries that have no data over the run so far, after a few more scrapes at the most."""
    wanted = {
        f"{path.name}: {query.panel}: {query.expr}": query.expr
        for path in sorted(DASHBOARDS.glob("*.json"))
        for query in queries(json.loads(path.read_text("utf-8")), variables={"__rate_interval": "10s"})
    }
    assert len(wanted) > 20
    async with httpx.AsyncClient(base_url=prometheus_url, trust_env=False) as client:
        for _ in range(40):
            for name, expr in list(wanted.items()):
                now = time.time()
                span: dict[str, str | float] = {"query": expr, "start": now - 120, "end": now, "step": 1}
                answer = (await client.get("/api/v1/query_range", params=span)).json()
                if answer["status"] != "success":
                    pytest.fail(f"{name}: {answer}")
                if answer["data"]["result"]:
                    del wanted[name]
            if not wanted:
                break
            await asyncio.sleep(0.5)
    return sorted(wanted)
