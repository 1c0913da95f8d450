"""The examples of docs/client.md work."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from queenright.client import Queenright
from queenright.client import __all__ as public
from queenright.server.serving import RunningService
from tests.isolation import environment
from tests.server.conftest import looping

pytestmark = pytest.mark.asyncio(loop_scope="module")

DOCUMENT = (Path(__file__).parents[2] / "docs" / "client.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)


async def test_documented_code_runs(running_service: RunningService) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-u", "-W", "error", "-c", block),
            env=environment(QUEENRIGHT_URL=running_service.url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for block in BLOCKS
    ]
    # The second block follows events from its own start.
    assert processes[1].stdout is not None
    first_line = (await processes[1].stdout.readline()).decode()
    await running_service.service.ingest(list(looping(running_service.service.clock(), times=3)))
    output = [[text.decode() for text in await process.communicate()] for process in processes]

    assert first_line == "connected \n"
    assert [(process.returncode, err) for process, (_, err) in zip(processes, output, strict=True)] == [
        (0, "")
    ] * 3
    assert "looper" in output[0][0]
    assert len(output[1][0].splitlines()) == 3
    assert output[2][0].startswith("404 ")


async def test_client_document_names_every_call_group_and_export() -> None:
    with Queenright("http://here:1") as qr:
        for name in vars(qr):
            assert name.startswith("_") or f"`qr.{name}`" in DOCUMENT, name
    assert all(
        exported_name in DOCUMENT
        for exported_name in public
        if exported_name not in ("AsyncEventStream", "EventStream", "Event")
    )
