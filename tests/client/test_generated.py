"""The client that is not awaited is made from the other one."""

from __future__ import annotations

import inspect
import subprocess
import sys
from functools import cached_property

from queenright.client import AsyncQueenright, Queenright
from tests.client import generated


def test_generated_sync_client_is_up_to_date() -> None:
    found = generated.made()

    assert {file.name for file in generated.GENERATED.glob("*.py")} == set(found)
    for name, text in found.items():
        assert (generated.GENERATED / name).read_text("utf-8") == text, (
            "python -m tests.client.generated --write"
        )


def test_sync_client_awaits_nothing() -> None:
    for file in generated.GENERATED.glob("*.py"):
        words = file.read_text("utf-8").partition('"""\n')[2]
        assert not [w for w in ("await ", "async ", "Async", "asyncio", "Awaitable") if w in words], file.name


def test_both_have_the_same_groups_and_calls() -> None:
    one, other = AsyncQueenright("http://here:1"), Queenright("http://here:1")
    groups = _groups(one)

    assert "agents" in groups
    assert groups == _groups(other)
    for name in groups:
        assert _calls(getattr(one, name)) == _calls(getattr(other, name)), name


def _groups(client: object) -> list[str]:
    return [name for name, what in vars(type(client)).items() if isinstance(what, cached_property)]


def _calls(group: object) -> dict[str, list[str]]:
    return {
        name: list(inspect.signature(call).parameters)
        for name, call in inspect.getmembers(group, inspect.ismethod)
        if not name.startswith("_")
    }


def test_both_clients_export_every_public_name() -> None:
    import queenright.client

    assert all(getattr(queenright.client, name).__name__ == name for name in queenright.client.__all__)
    looked = (
        "import sys, queenright.client as c; c.Queenright; sys.exit('asynchronous' in str(list(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", looked], check=False).returncode == 0
