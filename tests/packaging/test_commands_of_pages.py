"""
Every documented command runs with one real service, Prometheus and Alertmanager.

``SKIPPED_COMMANDS`` lists skipped commands, ``FAILING_COMMANDS`` failing ones with their output.
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

from tests.packaging.running import CommandRoom, running_in
from tests.packaging.test_documents import (
    ENDS,
    PAGES,
    line_environment,
    list_calls,
    list_commands,
    relative_name,
)
from tests.warm import Command, Talking, queenright

# Skipped commands, with the reason and the test that covers them.
SKIPPED_COMMANDS = {
    r"serve --cluster .*": "it needs NATS and PostgreSQL: tests/cluster/test_cluster_document.py",
    r"up\b.*": "it starts the whole stack again: tests/end_to_end/test_up.py",
    r"run .* --model openai/.*": "it needs a key: tests/end_to_end/test_examples.py",
    r"judge run\b.*": "it prints nothing while nothing happens: tests/end_to_end/test_judge_job.py",
    r"nudge archivist .*": "it needs the demo fleet: tests/server/test_demo.py",
    r"judge score(?! --only).*": "it plays all scenarios, half a minute: tests/judge/test_scenarios.py",
}

# Commands that run until stopped, and output that they print before.
UNTIL_STOPPED = {
    r"serve\b.*": b"Console http://",
}

# Commands that fail here: exit code and expected output.
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

# Documented values, with their replacements here.
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
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandRoom]:
    with running_in(tmp_path_factory.mktemp("pages")) as found:
        yield found


def find_entry(table: Mapping[str, object], command: str) -> str | None:
    """Return the entry of a table that matches a command."""
    return next((key for key in table if re.fullmatch(key, command)), None)


def split_command(line: str) -> list[str]:
    """Return the words of a command, without shell syntax."""
    found = shlex.split(line, comments=True)
    found = found[found.index("queenright") + 1 :]
    return found[: next((at for at, word in enumerate(found) if word in ENDS), len(found))]


def replace_documented_values(line: str, place: CommandRoom) -> list[str]:
    """Return the words of a command, with documented values replaced."""
    known = {
        "folder": place.folder,
        "prometheus": place.running.prometheus_url,
        "alertmanager": place.running.alertmanager_url,
        "url": place.running.url,
        "otlp": place.running.otlp_url,
    }
    found = split_command(line)
    for at, word in enumerate(found):
        for stands, what in REPLACEMENTS.items():
            if matched := re.fullmatch(stands, word):
                found[at] = matched.expand(what).format(**known)
    return found


def replace_ids(found: list[str], place: CommandRoom) -> list[str]:
    """Replace documented ids by existing ones, new ones where a command consumes them."""
    made: dict[tuple[str, str], Callable[[], str]] = {
        ("approvals", "approve"): place.approval,
        ("approvals", "deny"): place.approval,
        ("escalations", "decide"): place.escalation,
        ("tickets", "resolve"): place.lost_ticket,
        ("silences", "expire"): lambda: newest_silence(place),
    }
    if found[0] == "agents" and found[1] in ("trigger", "chat", "stop", "resume", "sessions"):
        place.load(found[2])
    if (make := made.get((found[0], "".join(found[1:2])))) is not None:
        return [*found[:2], make(), *found[3:]]
    return [place.ticket if word in ("01a2c4f8", "TICKET") else word for word in found]


def newest_silence(place: CommandRoom) -> str:
    silences = httpx.get(f"{place.running.url}/api/silences", trust_env=False).json()["silences"]
    return str(silences[0]["silence_id"])


def run_until_stopped(found: list[str], said: bytes, place: CommandRoom, env: Mapping[str, str]) -> int:
    """Run a command until it prints ``said``, press Ctrl-C, and return its exit code."""
    with Talking(*found, cwd=place.folder, env=env) as running:
        streams, text, until = [running.stdout, running.stderr], b"", time.monotonic() + 60
        while said not in text or not text:
            assert time.monotonic() < until, f"{shlex.join(found)}: {text.decode()}"
            ready = select.select(streams, [], [], 0.2)[0]
            pieces = [os.read(stream.fileno(), 65536) for stream in ready]
            assert all(pieces), f"{shlex.join(found)} has ended: {text.decode()}"
            text += b"".join(pieces)
            if not ready:
                place.complete_step()
        running.send_signal(2)
        return running.wait()


def run_on_terminal(found: list[str], place: CommandRoom, env: Mapping[str, str]) -> int:
    """Run a command on a terminal until it shows the worker, press q, and return its exit code."""
    controller, terminal_end = pty.openpty()
    running = Command(*found, cwd=place.folder, env=env, streams=(terminal_end, terminal_end, terminal_end))
    os.close(terminal_end)
    text = b""
    with contextlib.suppress(OSError):  # the terminal is closed
        while piece := os.read(controller, 65536):
            if b"researcher" not in text and b"researcher" in text + piece:
                os.write(controller, b"q")
            text += piece
    os.close(controller)
    assert b"researcher" in text, text.decode()
    return running.wait()


def wait_for_scrape(place: CommandRoom) -> None:
    """Wait until Prometheus has the workers of the service."""
    until = time.monotonic() + 60
    ask = f"{place.running.prometheus_url}/api/v1/query?query=queenright_worker_info"
    while not httpx.get(ask, trust_env=False).json()["data"]["result"]:
        assert time.monotonic() < until, "within 60 s: queenright_worker_info in Prometheus"
        place.complete_step()
        time.sleep(0.1)


@pytest.mark.parametrize("page", [page for page in PAGES if list_commands(page)], ids=relative_name)
def test_documented_commands_run(place: CommandRoom, page: Path) -> None:
    for line in list_commands(page):
        found = replace_documented_values(line, place)
        result = line_environment(line)
        text = shlex.join(found)
        if find_entry(SKIPPED_COMMANDS, shlex.join(split_command(line))) or f"{result}{text}" in place.seen:
            continue
        place.seen.add(f"{result}{text}")
        env = os.environ | {
            "QUEENRIGHT_URL": place.running.url,
            "QUEENRIGHT_HTTP__PORT": "0",
            "QUEENRIGHT_OTLP__PORT": "0",
            # One service uses the database of the others.
            **({"QUEENRIGHT_STORAGE": str(place.folder / "alone")} if found[0] == "serve" else {}),
            "HOME": str(place.folder),
            "SHELL": "/bin/bash",
        }
        env |= {key: value.replace("$PWD", str(place.folder)) for key, value in result.items()}
        if (entry := find_entry(UNTIL_STOPPED, text)) is not None:
            assert run_until_stopped(found, UNTIL_STOPPED[entry], place, env) == 0, (
                f"{relative_name(page)}: {line}"
            )
            continue
        if found[0] == "tui":
            terminal = env | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
            assert run_on_terminal(found, place, terminal) == 0, f"{relative_name(page)}: {line}"
            continue
        if found[:2] == ["judge", "once"]:
            wait_for_scrape(place)
        done = queenright(*replace_ids(found, place), cwd=place.folder, env=env)
        if found[:2] == ["stop-acting", "on"]:
            queenright("stop-acting", "off", cwd=place.folder, env=env)
        entry_text = f"{relative_name(page)}: {line}: {done.returncode}\n{done.stdout}{done.stderr}"
        no = find_entry(FAILING_COMMANDS, text)
        code, reason = FAILING_COMMANDS[no] if no is not None else (0, "")
        # On a slow machine the start grace of the looping worker has ended by now, and it has a ticket.
        codes = {0, 1} if no is None and found[:2] == ["judge", "once"] else {code}
        assert done.returncode in codes, entry_text
        assert re.search(reason, done.stdout + done.stderr, re.MULTILINE), entry_text
        assert "Traceback" not in done.stderr, entry_text


def test_skipped_commands_are_documented_and_tested_elsewhere() -> None:
    text = [shlex.join(split_command(line)) for page in PAGES for line in list_commands(page)]

    for table in (SKIPPED_COMMANDS, UNTIL_STOPPED, FAILING_COMMANDS):
        for key in table:
            assert any(re.fullmatch(key, one) for one in text), key
    for reason in SKIPPED_COMMANDS.values():
        assert Path(reason.rpartition(": ")[2]).is_file(), reason


@pytest.mark.parametrize("page", [page for page in PAGES if list_calls(page)], ids=relative_name)
def test_every_documented_command_is_covered(page: Path) -> None:
    """Every call of the program in any code block is run or listed above."""
    taken = "\n".join(list_commands(page))

    for call in list_calls(page):
        assert call in taken, f"{relative_name(page)}: {call}"
