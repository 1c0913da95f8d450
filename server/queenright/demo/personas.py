"""
The agents of the demo fleet, each with its own way to work or fail.

A persona is a script for the scripted model, with real tool calls on real files. ``rng`` is seeded, so every
run of the demo is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from queenright.demo.agent import Sleep, Task
from queenright.demo.model import LARGE_MODEL, SCRIPTED_MODEL, Call, ProviderError, Reply
from queenright.demo.tools import Library, Tool

Script = Iterator[Reply | ProviderError]


@dataclass(frozen=True, slots=True)
class Persona:
    """
    One agent of the fleet.

    ``starts_after`` is in seconds from the fleet's start, ``pause_seconds`` is the time between two runs.
    The agent works for ``team``, in ``repository``.
    """

    agent: str
    task: Task
    script: Callable[[Library, Random], Script]
    starts_after: float = 0.0
    pause_seconds: float = 3.0
    team: str = "docs"
    repository: str = "handbook"
    model: str = SCRIPTED_MODEL
    provider: str = "demo"
    extra_tools: Callable[[Library, Sleep], dict[str, Tool]] | None = None


def _call_tool(tool: str, timeout: float | None = None, **arguments: object) -> Reply:
    return Reply((Call(tool, arguments, timeout),))


def _summarise_files(library: Library, rng: Random) -> Script:
    """Read and summarise files, with an accepted answer every few steps."""
    for path in rng.sample(library.files, k=min(30, len(library.files))):
        yield _call_tool("read_file", path=path)
        yield _call_tool("summarise", path=path)
        yield Reply(answer=f"{path}: noted.")


def _read_slowly(library: Library, rng: Random) -> Script:
    """Make a long tool call before each answer: slow but healthy."""
    for path in rng.sample(library.files, k=min(12, len(library.files))):
        yield _call_tool("deep_read", timeout=60.0, path=path)
        yield Reply(answer=f"{path}: read to the end.")


def _deep_read(library: Library, wait: Sleep) -> dict[str, Tool]:
    def deep_read(path: str) -> object:
        wait(4.0)
        return library.summarise(path)

    return {"deep_read": deep_read}


def _ask_user(library: Library, rng: Random) -> Script:
    """Prepare something, then wait for the user."""
    for path in rng.sample(library.files, k=min(8, len(library.files))):
        yield _call_tool("summarise", path=path)
        yield Reply(question=f"Shall I file {path} under documents?")
        yield Reply(answer="Filed.")


def _try_missing_files(library: Library, rng: Random) -> Script:
    """Try a few missing files, then find the right one."""
    for path in rng.sample(library.files, k=min(20, len(library.files))):
        for guess in range(rng.randint(2, 4)):
            yield _call_tool("read_file", path=f"draft-{guess}/{path}")
        yield _call_tool("read_file", path=path)
        yield Reply(answer=f"{path}: proofread.")


def _repeat_search(library: Library, rng: Random) -> Script:
    """Search for a missing word many times before trying something else."""
    for path in rng.sample(library.files, k=min(2, len(library.files))):
        yield _call_tool("read_file", path=path)
    for _ in range(150):
        yield _call_tool("search", word="philosopher's stone")
    yield _call_tool("search", word="health")
    for path in rng.sample(library.files, k=min(40, len(library.files))):
        yield _call_tool("summarise", path=path)
        yield Reply(answer=f"{path} may help.")


def _hang_in_tool(library: Library, rng: Random) -> Script:
    """Work for a while, hang in a tool call, and continue after a nudge."""
    paths = rng.sample(library.files, k=min(56, len(library.files)))
    paths_before, paths_after = paths[:28], paths[28:] or paths
    for path in paths_before:
        yield _call_tool("summarise", path=path)
        yield Reply(answer=f"{path}: surveyed.")
    yield _call_tool("index_everything", timeout=20.0)
    yield Reply(answer="Never mind the index: on with the survey.")
    for path in paths_after:
        yield _call_tool("summarise", path=path)
        yield Reply(answer=f"{path}: surveyed.")


def _index_everything(library: Library, wait: Sleep) -> dict[str, Tool]:
    def index_everything() -> object:
        if wait(60.0):
            raise TimeoutError("cancelled after a nudge")
        return {"files": len(library.files)}

    return {"index_everything": index_everything}


def _lose_provider(library: Library, rng: Random) -> Script:
    """Deliver a few files, then the provider refuses every request."""
    for path in rng.sample(library.files, k=min(8, len(library.files))):
        yield _call_tool("read_file", path=path)
        yield Reply(answer=f"{path}: delivered.")
    while True:
        yield ProviderError("529 overloaded_error: the provider refuses all requests")


def _overspend(library: Library, rng: Random) -> Script:
    """Translate many files with a model that is too expensive for it."""
    for path in rng.sample(library.files, k=min(60, len(library.files))):
        yield _call_tool("deep_read", timeout=60.0, path=path)
        yield Reply(answer=f"{path}: translated.")


def _make_courier(agent: str, task: Task, starts_after: float) -> Persona:
    """Return an agent of the team whose provider soon refuses every request, which is an incident."""
    return Persona(
        agent,
        task,
        _lose_provider,
        starts_after,
        600.0,
        team="delivery",
        repository="newsletter",
        provider="demo-east",
    )


FLEET: tuple[Persona, ...] = (
    Persona(
        "researcher",
        Task("search", "Find the source of the quotation.", turn_seconds=0.12),
        _repeat_search,
        1.0,
        240.0,
        team="research",
        repository="papers",
    ),
    Persona("librarian", Task("catalogue", "Catalogue the files.", turn_seconds=0.6), _summarise_files),
    Persona(
        "archivist",
        Task("archive", "Read everything closely.", turn_seconds=1.0, has_checkpoints=True),
        _read_slowly,
        0.5,
        team="research",
        repository="papers",
        extra_tools=_deep_read,
    ),
    Persona(
        "concierge",
        Task("desk", "File what the user agrees to.", turn_seconds=0.8, answer_seconds=15.0),
        _ask_user,
        1.0,
    ),
    Persona(
        "proofreader", Task("proofread", "Proofread the files.", turn_seconds=0.5), _try_missing_files, 1.5
    ),
    Persona(
        "surveyor",
        Task("survey", "Survey the files.", turn_seconds=0.8),
        _hang_in_tool,
        2.0,
        120.0,
        team="research",
        repository="papers",
        extra_tools=_index_everything,
    ),
    Persona(
        "translator",
        Task("translate", "Translate the files.", turn_seconds=0.8),
        _overspend,
        3.0,
        240.0,
        repository="website",
        model=LARGE_MODEL,
        extra_tools=_deep_read,
    ),
    _make_courier("courier", Task("deliver", "Deliver the files.", turn_seconds=1.2), 2.5),
    _make_courier("dispatcher", Task("plan", "Plan the deliveries.", turn_seconds=1.2), 2.7),
    _make_courier("mailroom", Task("sort", "Sort the files.", turn_seconds=1.2), 2.9),
)
