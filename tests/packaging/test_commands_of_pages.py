"""
Every documented command runs with one real service, Prometheus and Alertmanager.

``SKIPPED_COMMANDS`` lists commands that do not run, and ``FAILING_COMMANDS`` commands that fail here.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from tests.packaging.running import CommandEnvironment, run_command_environment
from tests.packaging.test_documents import (
    COMMAND_ENDS,
    PAGES,
    list_calls,
    list_commands,
    read_line_environment,
    relative_name,
)
from tests.warm import Command, InteractiveCommand, queenright

# Skipped commands, with the reason and the test that covers them.
SKIPPED_COMMANDS = {
    r"serve --cluster .*": "it needs NATS and PostgreSQL: tests/cluster/test_cluster_document.py",
    r"up\b.*": "it starts the whole stack again: tests/end_to_end/test_up.py",
    r"run .* --model openai/.*": "it needs a key: tests/end_to_end/test_examples.py",
    r"judge run\b.*": "it prints nothing while nothing happens: tests/end_to_end/test_judge_job.py",
    r"nudge archivist .*": "it needs the demo fleet: tests/server/test_demo.py",
    r"judge score(?! --only).*": "it plays all scenarios, half a minute: tests/judge/test_scenarios.py",
}

# Commands that run until they are stopped, and the output to wait for.
UNTIL_STOPPED = {
    r"serve\b.*": b"Console http://",
}

# Commands that fail in this environment, with their exit code and output.
FAILING_COMMANDS: dict[str, tuple[int, str]] = {
    r"rules diff .*": (1, r"^\d+ changed; `queenright rules export` writes"),
    r"interventions --agent archivist": (1, "no worker 'archivist' is known"),  # it needs the demo fleet
    r"nudge .*": (1, "^Not carried out: the worker does not fetch instructions"),
    r"terminate .*": (1, "^Not carried out: the worker does not fetch instructions"),
    r"approvals approve .*": (1, "^worker-.*: not carried out: the worker does not fetch instructions"),
    # The built-in rules do not understand it; a model would.
    r"chat .* --act .*": (1, "^What happened: "),
    r"connect .*": (1, "without a terminal, pass --yes to write this"),
    r"telemetry( --json)?": (1, ""),
    r"permissions (allow|deny) .*": (
        1,
        "there is no permission request '.*'; list them:",
    ),
    r"recover .*": (1, "no task '.*' is known"),
    r"store copy .*": (1, r"another queenright \(process \d+\) is using .*; stop it"),
    r"judge once .*--selector .*": (3, "no workers found; check --selector"),
}

# Patterns of documented values, and their replacements in this environment.
REPLACEMENTS = {
    r"/(etc|var/lib)/(?P<rest>.*)": r"{folder}/\1/\g<rest>",
    r"~/(?P<rest>.*)": r"{folder}/\g<rest>",
    r"http://prometheus:9090|http://127.0.0.1:9090": "{prometheus}",
    r"http://alertmanager:9093": "{alertmanager}",
    r"http://127.0.0.1:4318": "{otlp}",
    r"http://127.0.0.1:842[01]|https://queenright.internal": "{url}",
    r"anthropic/.*|openai/.*": "scripted:{folder}/script.json",
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandEnvironment]:
    with run_command_environment(tmp_path_factory.mktemp("pages")) as command_environment:
        yield command_environment


def find_entry(table: Mapping[str, object], command: str) -> str | None:
    """Return the key of a table that matches a command, or None."""
    return next((key for key in table if re.fullmatch(key, command)), None)


def split_command(line: str) -> list[str]:
    """Return the words of a command, without shell syntax."""
    words = shlex.split(line, comments=True)
    words = words[words.index("queenright") + 1 :]
    return words[: next((index for index, word in enumerate(words) if word in COMMAND_ENDS), len(words))]


def replace_documented_values(line: str, environment: CommandEnvironment) -> list[str]:
    """Return the words of a command, with documented values replaced."""
    values = {
        "folder": environment.folder,
        "prometheus": environment.running_service.prometheus_url,
        "alertmanager": environment.running_service.alertmanager_url,
        "url": environment.running_service.url,
        "otlp": environment.running_service.otlp_url,
    }
    words = split_command(line)
    for index, word in enumerate(words):
        for pattern, replacement in REPLACEMENTS.items():
            if match := re.fullmatch(pattern, word):
                words[index] = match.expand(replacement).format(**values)
    return words


def replace_ids(words: list[str], environment: CommandEnvironment) -> list[str]:
    """Replace documented ids with existing ids, or with new ids if a command consumes them."""
    creators: dict[tuple[str, str], Callable[[], str]] = {
        ("approvals", "approve"): environment.request_approval,
        ("approvals", "deny"): environment.request_approval,
        ("escalations", "decide"): environment.create_escalation,
        ("tickets", "resolve"): environment.create_lost_ticket,
        ("silences", "expire"): lambda: find_newest_silence(environment),
    }
    if words[0] == "agents" and words[1] in ("trigger", "chat", "stop", "resume", "sessions"):
        environment.load_agent(words[2])
    if (create := creators.get((words[0], "".join(words[1:2])))) is not None:
        return [*words[:2], create(), *words[3:]]
    return [environment.ticket if word in ("01a2c4f8", "TICKET") else word for word in words]


def find_newest_silence(environment: CommandEnvironment) -> str:
    silences = httpx.get(f"{environment.running_service.url}/api/silences", trust_env=False).json()[
        "silences"
    ]
    return str(silences[0]["silence_id"])


def run_until_stopped(
    words: list[str], output: bytes, environment: CommandEnvironment, env: Mapping[str, str]
) -> int:
    """Run a command until it prints ``output``, press Ctrl-C, and return its exit code."""
    with InteractiveCommand(*words, cwd=environment.folder, env=env) as running_service:
        streams, text, deadline = [running_service.stdout, running_service.stderr], b"", time.monotonic() + 60
        while output not in text or not text:
            assert time.monotonic() < deadline, f"{shlex.join(words)}: {text.decode()}"
            ready = select.select(streams, [], [], 0.2)[0]
            pieces = [os.read(stream.fileno(), 65536) for stream in ready]
            assert all(pieces), f"{shlex.join(words)} has ended: {text.decode()}"
            text += b"".join(pieces)
            if not ready:
                environment.complete_step()
        running_service.send_signal(2)
        return running_service.wait()


def run_on_terminal(words: list[str], environment: CommandEnvironment, env: Mapping[str, str]) -> int:
    """Run a command on a terminal until it shows the worker, press q, and return its exit code."""
    controller, terminal_end = pty.openpty()
    running_service = Command(
        *words, cwd=environment.folder, env=env, streams=(terminal_end, terminal_end, terminal_end)
    )
    os.close(terminal_end)
    text = b""
    with contextlib.suppress(OSError):  # the terminal is closed
        while piece := os.read(controller, 65536):
            if b"researcher" not in text and b"researcher" in text + piece:
                os.write(controller, b"q")
            text += piece
    os.close(controller)
    assert b"researcher" in text, text.decode()
    return running_service.wait()


def wait_for_scrape(environment: CommandEnvironment) -> None:
    """Wait until Prometheus has the workers of the service."""
    deadline = time.monotonic() + 60
    query_url = f"{environment.running_service.prometheus_url}/api/v1/query?query=queenright_worker_info"
    while not httpx.get(query_url, trust_env=False).json()["data"]["result"]:
        assert time.monotonic() < deadline, "Prometheus has no queenright_worker_info after 60 s"
        environment.complete_step()
        time.sleep(0.1)


@pytest.mark.parametrize("page", [page for page in PAGES if list_commands(page)], ids=relative_name)
def test_documented_commands_run(environment: CommandEnvironment, page: Path) -> None:
    for line in list_commands(page):
        words = replace_documented_values(line, environment)
        line_variables = read_line_environment(line)
        text = shlex.join(words)
        if (
            find_entry(SKIPPED_COMMANDS, shlex.join(split_command(line)))
            or f"{line_variables}{text}" in environment.executed_commands
        ):
            continue
        environment.executed_commands.add(f"{line_variables}{text}")
        env = os.environ | {
            "QUEENRIGHT_URL": environment.running_service.url,
            "QUEENRIGHT_HTTP__PORT": "0",
            "QUEENRIGHT_OTLP__PORT": "0",
            # A second service cannot use the same storage.
            **({"QUEENRIGHT_STORAGE": str(environment.folder / "alone")} if words[0] == "serve" else {}),
            "HOME": str(environment.folder),
            "SHELL": "/bin/bash",
        }
        env |= {key: value.replace("$PWD", str(environment.folder)) for key, value in line_variables.items()}
        if (entry := find_entry(UNTIL_STOPPED, text)) is not None:
            assert run_until_stopped(words, UNTIL_STOPPED[entry], environment, env) == 0, (
                f"{relative_name(page)}: {line}"
            )
            continue
        if words[0] == "tui":
            terminal = env | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
            assert run_on_terminal(words, environment, terminal) == 0, f"{relative_name(page)}: {line}"
            continue
        if words[:2] == ["judge", "once"]:
            wait_for_scrape(environment)
        result = queenright(*replace_ids(words, environment), cwd=environment.folder, env=env)
        if words[:2] == ["stop-acting", "on"]:
            queenright("stop-acting", "off", cwd=environment.folder, env=env)
        entry_text = f"{relative_name(page)}: {line}: {result.returncode}\n{result.stdout}{result.stderr}"
        failing_entry = find_entry(FAILING_COMMANDS, text)
        code, reason = FAILING_COMMANDS[failing_entry] if failing_entry is not None else (0, "")
        # On a slow machine, the start grace of the looping worker may have ended, and then it has a ticket.
        codes = {0, 1} if failing_entry is None and words[:2] == ["judge", "once"] else {code}
        assert result.returncode in codes, entry_text
        assert re.search(reason, result.stdout + result.stderr, re.MULTILINE), entry_text
        assert "Traceback" not in result.stderr, entry_text


def test_skipped_commands_are_documented_and_tested_elsewhere() -> None:
    text = [shlex.join(split_command(line)) for page in PAGES for line in list_commands(page)]

    for table in (SKIPPED_COMMANDS, UNTIL_STOPPED, FAILING_COMMANDS):
        for key in table:
            assert any(re.fullmatch(key, command) for command in text), key
    for reason in SKIPPED_COMMANDS.values():
        assert Path(reason.rpartition(": ")[2]).is_file(), reason


@pytest.mark.parametrize("page", [page for page in PAGES if list_calls(page)], ids=relative_name)
def test_every_documented_command_is_covered(page: Path) -> None:
    """A call that is not recognized as a command would not be tested."""
    commands = "\n".join(list_commands(page))

    for call in list_calls(page):
        assert call in commands, f"{relative_name(page)}: {call}"
