"""Completions of the command line, also in a real bash."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from queenright.cli.app import app
from queenright.cli.completion import SCRIPTS, install_script, list_proposals
from queenright.instrumentation.errors import QueenrightError
from tests.warm import PROGRAM, queenright

AGENTS = [
    {"agent_id": "researcher", "state": "healthy", "ended": False},
    {"agent_id": "writer", "state": "stuck", "ended": False},
    {"agent_id": "writer", "state": "healthy", "ended": False},  # Another session of the same agent.
    {"agent_id": "gone", "state": "healthy", "ended": True},
    {"agent_id": "$(touch evil)", "state": "healthy", "ended": False},
]
TICKETS = [
    {"ticket_id": "01JAAA", "severity": "high", "status": "open", "agent_id": "writer"},
    {"ticket_id": "01JBBB", "severity": "low", "status": "resolved", "agent_id": "writer"},
]
BREAKERS = [{"name": "tool_execution:researcher:search", "state": "open"}]


class Service(http.server.BaseHTTPRequestHandler):
    """An HTTP service that serves three lists to callers with the token."""

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != "Bearer secret":
            self.send_error(401)
            return
        name = self.path.partition("?")[0].removeprefix("/api/")
        lists = {"agents": AGENTS, "tickets": TICKETS, "breakers": BREAKERS}
        body = json.dumps({name: lists[name], "next": None}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log no requests."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{service.server_port}"
        service.shutdown()


@pytest.fixture(autouse=True)
def use_service(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEENRIGHT_URL", url)
    monkeypatch.setenv("QUEENRIGHT_TOKEN", "secret")


@pytest.mark.parametrize(
    ("line", "expected_words"),
    [
        ("queenright ter", ["terminate"]),
        ("queenright tickets una", ["unacknowledge"]),
        ("queenright nudge --mess", ["--message"]),
        ("queenright stop-acting ", ["on", "off", "status"]),
        ("queenright nudge ", ["researcher", "writer"]),
        ("queenright nudge w", ["writer"]),
        ("queenright nudge --by ada --json r", ["researcher"]),
        ("queenright tickets acknowledge ", ["01JAAA"]),
        ("queenright chat ", ["01JAAA"]),
        ("queenright breakers reset tool_execution:r", ["tool_execution:researcher:search"]),
        ("queenright run ", []),
        ("queenright nudge 'w", []),
    ],
)
def test_completion_proposes_names(line: str, expected_words: list[str]) -> None:
    assert [word for word, _ in list_proposals(app, line)] == expected_words


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "nonsense", "http://["])
def test_without_a_service_completion_is_empty_and_prints_nothing(address: str) -> None:
    assert list(list_proposals(app, f"queenright nudge --url '{address}' ")) == []


def test_without_access_no_names_are_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUEENRIGHT_TOKEN")

    assert list(list_proposals(app, "queenright nudge ")) == []


def test_token_in_a_file_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("QUEENRIGHT_TOKEN")
    (tmp_path / "token").write_text("secret\n")

    proposals = list_proposals(app, f"queenright nudge --token-file {tmp_path / 'token'} w")

    assert list(proposals) == [("writer", "stuck")]


@pytest.mark.parametrize(
    ("line", "replies"),
    [
        ("queenright nudge ", ["researcher", "writer"]),
        # Bash replaces only the part after the last colon.
        ("queenright breakers reset tool_execution:res", ["researcher:search"]),
        ("queenright ter", ["terminate"]),
    ],
)
def test_bash_completes(tmp_path: Path, line: str, replies: list[str]) -> None:
    script = f"""
    {SCRIPTS["bash"]}
    COMP_LINE={line!r} COMP_POINT={len(line)}
    _queenright_completion {PROGRAM}
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    result = subprocess.run(
        ["bash", "--norc", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert result.stdout.split() == replies
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_installed_once(tmp_path: Path, shell: str) -> None:
    env = {**os.environ, "SHELL": f"/bin/{shell}", "HOME": str(tmp_path)}
    (tmp_path / ".bashrc").write_text("alias ll='ls -l'\n")

    result = queenright("--show-completion", cwd=tmp_path, env=env)
    first_result, second_result = (
        queenright("--install-completion", cwd=tmp_path, env=env) for _ in range(2)
    )

    assert result.stdout == SCRIPTS[shell].strip() + "\n"
    assert (result.returncode, first_result.returncode, second_result.returncode) == (0, 0, 0), (
        first_result.stderr
    )
    file = Path(first_result.stdout.split(f"completion for {shell} in ")[1].partition(";")[0])
    assert file.read_text() == result.stdout
    if shell != "fish":
        startup = (tmp_path / f".{shell}rc").read_text()
        assert startup.count("# queenright") == 1
        assert startup.startswith("alias ll" if shell == "bash" else "fpath")


def test_unknown_shell_is_refused_with_the_supported_ones(tmp_path: Path) -> None:
    with pytest.raises(QueenrightError, match=r"no completion for 'csh'; available for: bash, zsh, fish"):
        install_script("csh", tmp_path)
