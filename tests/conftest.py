"""What holds for all tests."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from tests import isolation
from tests.certificates import share_certificates
from tests.databases import database_url, postgres, share_compiled_statements
from tests.slow import is_slow

isolation.isolate()
share_certificates()
share_compiled_statements()

__all__ = ["database_url", "postgres"]

# What is started in the background of a script ignores these, and so would every process of the tests.
for _ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_ignored) is signal.SIG_IGN:
        signal.signal(_ignored, signal.default_int_handler if _ignored == signal.SIGINT else signal.SIG_DFL)


def _interrupt(number: int, frame: object) -> NoReturn:
    """
    Do what Python's own handler does.

    `asyncio.Runner` replaces that one by a handler that holds the task. Asked for it after each coroutine of
    a test, the `signal` module writes it down with the task and its result: a whole service.
    """
    raise KeyboardInterrupt


signal.signal(signal.SIGINT, _interrupt)

# How fast an example runs says how busy the machine is, not whether the code is right. `make test` tries the
# same examples each time, so that it fails for a change only; `make test-slow` searches for new ones.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("gate", _COMMON, derandomize=True, max_examples=25, stateful_step_count=25)
settings.register_profile("search", _COMMON, max_examples=200, print_blob=True)
settings.load_profile("gate")

_TESTS = Path(__file__).parent

_BEGAN = pytest.StashKey[float]()

_NOT_RUN = "not run, as the time is over"

_SHOWN = 4000
"""So many characters of what the guard refused are shown: a sender tries again and again."""

# One start of everything serves all the files of these.
_WHOLE_FOLDERS = {"observed"}

# One process imports what takes seconds to import.
_LARGE_IMPORTS = {
    "judge/test_chat.py": "litellm",
    "judge/test_invalid_answers.py": "litellm",
    "judge/test_model_requests.py": "litellm",
    "judge/test_models.py": "litellm",
    "judge/test_stack_command.py": "litellm",
    "runtime/test_agent_models.py": "litellm",
    "runtime/test_litellm_provider.py": "litellm",
    "server/otlp/test_otlp_pydantic_ai.py": "pydantic_ai",
    "server/test_config_check.py": "litellm",
    "server/test_demo.py": "litellm",
}


def _file(nodeid: str) -> str:
    """Return the file of a test, within the folder of the tests."""
    return nodeid.partition("::")[0].removeprefix("tests/")


@functools.cache
def _is_whole(file: str) -> bool:
    """Return whether the tests of a file share something, which is made anew in each process."""
    path = _TESTS / file
    return any(
        'scope="module"' in one.read_text("utf-8")
        for one in (path, path.with_name("conftest.py"))
        if one.is_file()
    )


def _unit(nodeid: str) -> str:
    """Return what a process takes at once: a test, or the file or folder that stays whole."""
    file = _file(nodeid)
    if PurePath(file).parts[0] in _WHOLE_FOLDERS:
        return PurePath(file).parts[0]
    if file in _LARGE_IMPORTS:
        return _LARGE_IMPORTS[file]
    # One process starts a server.
    if "postgres" in nodeid:
        return "postgres"
    return file if _is_whole(file) else nodeid


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run end in time: what has not begun by then is skipped, and named as such."""
    parser.addoption("--minutes", type=float, metavar="N", help="begin no test after so many minutes")


def pytest_configure(config: pytest.Config) -> None:
    """Start the clock of ``--minutes``."""
    config.stash[_BEGAN] = time.monotonic()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the test if the time is over."""
    minutes = item.config.option.minutes
    if minutes is not None and time.monotonic() - item.config.stash[_BEGAN] > minutes * 60:
        pytest.skip(_NOT_RUN)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name in one line what was not run."""
    reports = [one for one in terminalreporter.stats.get("skipped", []) if _NOT_RUN in str(one.longrepr)]
    if reports:
        files = sorted({_file(report.nodeid) for report in reports})
        terminalreporter.write_line(f"{len(reports)} tests {_NOT_RUN}: {', '.join(files)}")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what `make test` leaves to `make test-slow`."""
    if is_slow(_file(item.nodeid), item):
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let several processes share the tests."""
    config.option.loadscopereorder = False
    scheduling = LoadScopeScheduling(config, log)
    scheduling._split_scope = _unit
    return scheduling


def pytest_sessionstart(session: pytest.Session) -> None:
    """Share the compiling on a clean checkout: each process imports other files of the tests first."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    # Modules and tests come to stay: until all are there, the collector has nothing to find.
    gc.disable()
    if session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    files = sorted(_TESTS.rglob("test_*.py"))
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        # An error is shown by the collection.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.relative_to(_TESTS.parent).with_suffix("").parts))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the tests that mostly wait for other programs: the others use the processors in between."""
    whole = [item for item in items if _unit(item.nodeid) != item.nodeid]
    others = [item for item in items if _unit(item.nodeid) == item.nodeid]
    waiting = [item for item in others if PurePath(_file(item.nodeid)).parts[0] == "end_to_end"]
    working = [item for item in others if item not in waiting]
    due = {id(item): place / len(some) for some in (waiting, working) for place, item in enumerate(some)}
    items[:] = whole + sorted(others, key=lambda item: due[id(item)])


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let the collector not go through all tests and modules again and again: that is 7 % of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Fail the test that used a default port: what its code did about the refusal does not count."""
    yield
    if refused := isolation.take_refusals():
        pytest.fail(f"{refused[:_SHOWN]}\nUse port 0, or an endpoint of the test's own.", pytrace=False)


@pytest.fixture
def port() -> Iterator[int]:
    """Reserve a port of 127.0.0.1 for a child that starts late, or twice."""
    from tests.ports import reserve_port

    with reserve_port() as port:
        yield port
