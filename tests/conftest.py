"""Configuration and hooks of all tests."""

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

# Background jobs of a script ignore these signals, and child processes of the tests would inherit that.
for _ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_ignored) is signal.SIG_IGN:
        signal.signal(_ignored, signal.default_int_handler if _ignored == signal.SIGINT else signal.SIG_DFL)


def _interrupt(number: int, frame: object) -> NoReturn:
    """
    Interrupt like Python's own handler.

    `asyncio.Runner` replaces that handler by one that references the task. When it restores the handler after
    each test, the `signal` module formats it with the task and its result, which may be a whole service.
    """
    raise KeyboardInterrupt


signal.signal(signal.SIGINT, _interrupt)

# The duration of an example depends on the load of the machine, so there is no deadline. `make test` tries
# the same examples each time, so that it fails only after a change; `make test-slow` searches for new ones.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("gate", _COMMON, derandomize=True, max_examples=25, stateful_step_count=25)
settings.register_profile("search", _COMMON, max_examples=200, print_blob=True)
settings.load_profile("gate")

_TESTS = Path(__file__).parent

_START_TIME = pytest.StashKey[float]()

_NOT_RUN = "not run, because the time limit had passed"

_MAX_REPORT_LENGTH = 4000
"""Maximum characters of the guard's report that are shown: a sender may retry many times."""

# The files of such a folder share one start of the programs.
_INDIVISIBLE_FOLDERS = {"observed"}

# Files that import a large package run in one process.
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


def _test_file(nodeid: str) -> str:
    """Return the path of a test's file, relative to the folder of the tests."""
    return nodeid.partition("::")[0].removeprefix("tests/")


@functools.cache
def _is_indivisible(file: str) -> bool:
    """Return whether the tests of a file share a fixture, which each process would set up again."""
    path = _TESTS / file
    return any(
        'scope="module"' in candidate.read_text("utf-8")
        for candidate in (path, path.with_name("conftest.py"))
        if candidate.is_file()
    )


def _scheduling_unit(nodeid: str) -> str:
    """Return the unit that runs in one process: a test, or a file, folder or group that is not split."""
    file = _test_file(nodeid)
    if PurePath(file).parts[0] in _INDIVISIBLE_FOLDERS:
        return PurePath(file).parts[0]
    if file in _LARGE_IMPORTS:
        return _LARGE_IMPORTS[file]
    # Only one process starts a PostgreSQL server.
    if "postgres" in nodeid:
        return "postgres"
    return file if _is_indivisible(file) else nodeid


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--minutes``: tests that have not begun by then are skipped and listed."""
    parser.addoption("--minutes", type=float, metavar="N", help="start no test after this many minutes")


def pytest_configure(config: pytest.Config) -> None:
    """Start the clock of ``--minutes``."""
    config.stash[_START_TIME] = time.monotonic()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the test if the time limit has passed."""
    minutes = item.config.option.minutes
    if minutes is not None and time.monotonic() - item.config.stash[_START_TIME] > minutes * 60:
        pytest.skip(_NOT_RUN)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report on one line which tests did not run."""
    reports = [
        report for report in terminalreporter.stats.get("skipped", []) if _NOT_RUN in str(report.longrepr)
    ]
    if reports:
        files = sorted({_test_file(report.nodeid) for report in reports})
        terminalreporter.write_line(f"{len(reports)} tests {_NOT_RUN}: {', '.join(files)}")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests that run only in `make test-slow`."""
    if is_slow(_test_file(item.nodeid), item):
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute the tests over the processes by unit."""
    config.option.loadscopereorder = False
    scheduling = LoadScopeScheduling(config, log)
    scheduling._split_scope = _scheduling_unit
    return scheduling


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile in parallel on a clean checkout: each process first imports different test files."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    # Modules and tests are never freed, so the collector has nothing to find while they load.
    gc.disable()
    if session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    files = sorted(_TESTS.rglob("test_*.py"))
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        # The collection reports errors.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.relative_to(_TESTS.parent).with_suffix("").parts))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the tests that mostly wait for other programs, so that others use the processors meanwhile."""
    indivisible = [item for item in items if _scheduling_unit(item.nodeid) != item.nodeid]
    divisible = [item for item in items if _scheduling_unit(item.nodeid) == item.nodeid]
    waiting_items = [item for item in divisible if PurePath(_test_file(item.nodeid)).parts[0] == "end_to_end"]
    working_items = [item for item in divisible if item not in waiting_items]
    positions = {
        id(item): index / len(group)
        for group in (waiting_items, working_items)
        for index, item in enumerate(group)
    }
    items[:] = indivisible + sorted(divisible, key=lambda item: positions[id(item)])


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exclude tests and modules from garbage collection, which saves 7 % of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Fail a test that used a default port, even if its code handled the refusal."""
    yield
    if refusals := isolation.take_refusals():
        pytest.fail(
            f"{refusals[:_MAX_REPORT_LENGTH]}\nUse port 0, or an endpoint that the test starts.",
            pytrace=False,
        )


@pytest.fixture
def port() -> Iterator[int]:
    """Reserve a port of 127.0.0.1 for a child that starts late, or twice."""
    from tests.ports import reserve_port

    with reserve_port() as port:
        yield port
