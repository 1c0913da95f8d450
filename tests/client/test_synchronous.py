"""The synchronous client has the calls of the asynchronous one."""

from __future__ import annotations

import inspect
import subprocess
import sys

import httpx

from queenright.client import AsyncQueenright, Queenright


def test_both_clients_have_the_same_groups_and_calls() -> None:
    asynchronous, synchronous = AsyncQueenright("http://here:1"), Queenright("http://here:1")
    groups = _list_groups(asynchronous)

    assert "agents" in groups
    assert groups == _list_groups(synchronous)
    for name in groups:
        assert _list_calls(getattr(asynchronous, name)) == _list_calls(getattr(synchronous, name)), name


def _list_groups(client: object) -> list[str]:
    return sorted(name for name in vars(client) if not name.startswith("_"))


def _list_calls(group: object) -> dict[str, list[str]]:
    return {
        name: list(inspect.signature(call).parameters)
        for name, call in inspect.getmembers(group, inspect.ismethod)
        if not name.startswith("_")
    }


def test_both_clients_export_every_public_name() -> None:
    import queenright.client

    assert all(getattr(queenright.client, name).__name__ == name for name in queenright.client.__all__)


def test_synchronous_client_needs_no_event_loop() -> None:
    code = "import sys, queenright.client as c; c.Queenright(); sys.exit('asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_synchronous_client_works_inside_a_running_loop() -> None:
    rows = [{"number": 1}, {"number": 2}]
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json={"rows": rows, "next": None}))

    with Queenright("http://here:1", transport=transport) as client:
        assert list(client.agents.logs("bee")) == rows
