"""Every command that a page shows is run, on one real service where one is needed."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import shlex
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from queenright.server.up import Running, serving
from tests.packaging.test_documents import ENDS, PAGES, ROOT, commands, name
from tests.server.conftest import demo_settings, looping
from tests.waiting import until
from tests.warm import queenright

# What is not run here, by how it begins, and why.
NOT_HERE = {
    "up": "it needs Prometheus and Alertmanager: tests/end_to_end/test_up.py",
    "serve": "it goes on until it is stopped: every test of the service",
    "tui": "it needs a terminal: tests/tui",
    "events": "it goes on until it is stopped: tests/client",
    "code": "it needs a model: tests/server/test_cli_shell.py",
    "judge once": "it needs a Prometheus: tests/end_to_end/test_judge_job.py",
    "judge run": "it needs a Prometheus: tests/end_to_end/test_judge_job.py",
    "judge score": "it needs a model, or plays all scenarios: tests/judge/test_scenarios.py",
    "rules diff --prometheus": "it needs a Prometheus: tests/end_to_end/test_judge_job.py",
    "--install-completion": "it changes the home folder: tests/server/test_cli_completion.py",
}

# Those to which the answer here is no (exit code 1), by how they begin, and why.
SAID_NO = {
    "terminate": "nothing runs the worker, so that nobody says that it has stopped",
    "nudge": "nothing runs the worker",
    "recover": "there is nothing to bring it back from",
    "approvals approve": "nobody asked for one",
    "approvals deny": "nobody asked for one",
    "escalations decide": "nobody asked for one",
    "silences": "there is no Alertmanager",
    "tickets": "there is one ticket, and each page does something with it",
    "breakers reset": "no circuit breaker is there",
    "agents": "no agent is loaded",
    "dashboards check": "the folder is not there",
    "rules diff": "the rules that were written are for other settings",
    "token revoke": "it was revoked on another page",
    "token create": "it was made on another page",
    "run": "what is wrong with the folder is its answer",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the commands run: a service, and a folder with what the pages speak of."""

    running: Running
    folder: Path
    ticket: str
    seen: set[str] = field(default_factory=set)
    """What ran on a page before."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("pages")
    shutil.copytree(ROOT / "examples", folder / "examples")
    step = {"kind": "tool", "name": "b", "args": "x", "result_excerpt": "y"}
    run = json.dumps({"dataset": "d", "run_id": "r", "steps": [step]}) + "\n"
    (folder / "runs.jsonl").write_text(run)
    (folder / "runs.jsonl.gz").write_bytes(gzip.compress(run.encode()))
    (folder / "queenright.yaml").write_text(f"storage: {folder / '.queenright'}\n")
    found: list[Running] = []
    ticket: list[str] = []
    stop = threading.Event()

    async def serve() -> None:
        async with serving(demo_settings(folder / ".queenright")) as running:
            service = running.service
            await service.ingest(list(looping(service.clock(), agent="researcher")))
            await until(lambda: service.tickets.open_tickets(), "a ticket")
            ticket.append(service.tickets.open_tickets()[0].ticket_id)
            found.append(running)
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    asyncio.run(until(lambda: found or not thread.is_alive(), "a service"))
    yield Place(found[0], folder, ticket[0])
    stop.set()
    thread.join()


def begins(words: list[str], table: dict[str, str]) -> bool:
    return any(words[: len(key.split())] == key.split() for key in table)


def here(line: str, place: Place) -> list[str]:
    """Return the words of a command, with what is here in place of what a page speaks of."""
    words = shlex.split(line, comments=True)[1:]
    words = words[: next((at for at, word in enumerate(words) if word in ENDS), len(words))]
    local = [re.sub(r"^/(etc|var/lib)/", f"{place.folder}/", word) for word in words]
    return [place.ticket if word in ("01J...", "TICKET") else word for word in local]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=name)
def test_what_a_page_says_to_run_runs(place: Place, page: Path) -> None:
    env = os.environ | {"QUEENRIGHT_URL": place.running.url, "HOME": str(place.folder)}
    for line in commands(page):
        words = here(line, place)
        if begins(words, NOT_HERE) or (said := shlex.join(words)) in place.seen:
            continue
        place.seen.add(said)
        done = queenright(*words, cwd=place.folder, env=env)
        said = f"{name(page)}: {line}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0 or (done.returncode == 1 and begins(words, SAID_NO)), said
        assert "Traceback" not in done.stderr, said
        assert "No Queenright answers" not in done.stderr, said


def test_what_is_said_not_to_run_is_on_a_page() -> None:
    lines = [shlex.split(line, comments=True)[1:] for page in PAGES for line in commands(page)]

    for table in (NOT_HERE, SAID_NO):
        for key in table:
            assert any(begins(words, {key: ""}) for words in lines), key
