"""Connecting coding agents: connect keeps their other settings, and disconnect restores the file."""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from queenright.cli.app import app
from queenright.cli.connecting import json_text
from queenright.cli.connecting.changes import Item, RequiredKey
from queenright.cli.connecting.clients import CLIENTS, TelemetryTarget
from queenright.cli.connecting.errors import AgentSettingsError
from queenright.cli.connecting.files import RecordStore, plan_connect, plan_disconnect, write
from queenright.cli.errors import UsageError
from queenright.server.serving import RunningService

SERVICE_TARGET = TelemetryTarget("http://127.0.0.1:4318", ("queenright",), {"user": "ada", "host": "laptop"})
OTHER_TARGET = TelemetryTarget("http://127.0.0.1:9999", ("queenright",), {"user": "ada", "host": "laptop"})
CLAUDE_ENTRIES = CLIENTS["claude-code"].settings(SERVICE_TARGET)["settings.json"]
CODEX_ENTRIES = CLIENTS["codex"].settings(SERVICE_TARGET)["config.toml"]
TOKEN_TEXT = "qr_0123456789abcdef_the-secret-of-a-reporter"

NAMES = st.sampled_from(["a", "env", "hooks", "model", "Stop", "Ünï\ud800 \"'\\", "OTEL_RESOURCE_ATTRIBUTES"])
TEXTS = st.text(max_size=12) | st.sampled_from(["\ud800", "}", '{"', "1"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(NAMES, v, max_size=3), max_leaves=8
)
HOOK_BLOCKS = st.dictionaries(
    st.sampled_from(["Stop", "PreToolUse", "Mine"]),
    st.lists(st.fixed_dictionaries({"hooks": st.just([{"type": "command", "command": "beep"}])}), max_size=2),
)
ENVIRONMENT_BLOCKS = st.dictionaries(
    st.sampled_from(["A", "OTEL_RESOURCE_ATTRIBUTES", "CLAUDE_CODE_ENABLE_TELEMETRY"]), st.just("1")
)
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "env": ENVIRONMENT_BLOCKS,
        "hooks": HOOK_BLOCKS,
        "model": VALUES,
        "permissions": VALUES,
        "é": VALUES,
    },
)


@st.composite
def draw_json_text(draw: st.DrawFn) -> bytes:
    """Draw a JSON settings file in one of the layouts that people and programs write."""
    indent = draw(st.sampled_from([None, 0, 1, 2, 4, "\t"]))
    separators = draw(st.sampled_from([None, (",", ":"), (" , ", " :  ")]))
    document_text = json.dumps(draw(DOCUMENTS), indent=indent, separators=separators)
    if draw(st.booleans()):
        document_text = document_text.replace("\n", "\r\n")
    space = st.sampled_from(["", "\n", "  ", "\r\n\n"])
    return (draw(space) + document_text + draw(space)).encode()


TOML_LINES = st.lists(
    st.sampled_from(
        [
            "# a comment",
            "",
            'model = "o" # why',
            "x.y = 1",
            "when = 2026-01-01",
            "",
        ]
    ),
    max_size=4,
    unique=True,
)
TOML_TABLES = st.lists(
    st.sampled_from(
        [
            '[projects."/a b"]\ntrust_level = "trusted"  # mine\n',
            "[otel]\nlog_user_prompt = true # note\n",
            "[[rows]]\nn = 1\n\n[[rows]]\nn = 2",
            "[tui]\n\n# end of it\n",
            "[ mcp_servers . x ]\ncommand = 'y'\nargs = [\n  1, # one\n]",
        ]
    ),
    max_size=5,
    unique=True,
)


@st.composite
def draw_toml_text(draw: st.DrawFn) -> bytes:
    document_text = "\n".join([*draw(TOML_LINES), *draw(TOML_TABLES)]) + draw(st.sampled_from(["", "\n"]))
    return (document_text.replace("\n", "\r\n") if draw(st.booleans()) else document_text).encode()


class SettingsFile:
    """A folder with a settings file, and the record of changes to it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / "of-client" / name
        self.records = RecordStore(folder / "records")

    def write_original(self, content: bytes | None) -> None:
        if content is not None:
            self.path.parent.mkdir()
            self.path.write_bytes(content)

    @property
    def content(self) -> bytes | None:
        return self.path.read_bytes() if self.path.exists() else None

    def connect(self, entries: Any, *, should_replace: bool = True) -> None:
        write(plan_connect(self.path, entries, self.records, replace=should_replace), self.records)

    def disconnect(self) -> None:
        update = plan_disconnect(self.path, self.records)
        if update is not None:
            write(update, self.records)


@pytest.fixture
def settings_file(tmp_path: Path) -> SettingsFile:
    return SettingsFile(tmp_path, "settings.json")


def has_entry(document: Any, entry: RequiredKey | Item) -> bool:
    for step in entry.path:
        document = document[step]
    if isinstance(entry, Item):
        return entry.value in document
    return bool(document == entry.value or (entry.is_list and entry.value.split(",")[0] in document))


@given(content=draw_json_text() | st.none(), times=st.integers(1, 3), moves=st.booleans())
def test_disconnect_restores_json_settings_byte_for_byte(
    content: bytes | None, times: int, moves: bool
) -> None:
    """B94: connect once or repeatedly, possibly to another service, and then disconnect."""
    with tempfile.TemporaryDirectory() as folder:
        settings_file = SettingsFile(Path(folder), "settings.json")
        settings_file.write_original(content)
        if moves:
            settings_file.connect(CLIENTS["claude-code"].settings(OTHER_TARGET)["settings.json"])
        for _ in range(times):
            settings_file.connect(CLAUDE_ENTRIES)

        written_settings = json.loads(settings_file.content or b"")
        assert all(has_entry(written_settings, entry) for entry in CLAUDE_ENTRIES)
        assert b":9999" not in (settings_file.content or b"")
        settings_file.disconnect()

        assert settings_file.content == content
        assert content is not None or not settings_file.path.parent.exists()


@given(content=draw_toml_text() | st.none(), times=st.integers(1, 3))
def test_disconnect_restores_toml_settings_byte_for_byte(content: bytes | None, times: int) -> None:
    """B94: the same applies to Codex, whose settings have comments."""
    with tempfile.TemporaryDirectory() as folder:
        settings_file = SettingsFile(Path(folder), "config.toml")
        settings_file.write_original(content)
        for _ in range(times):
            settings_file.connect(CODEX_ENTRIES)

        written_settings = tomllib.loads((settings_file.content or b"").decode())
        assert written_settings["otel"]["exporter"] == CODEX_ENTRIES[0].value
        for line in (content or b"").decode().splitlines():
            assert line.strip() in (settings_file.content or b"").decode()
        settings_file.disconnect()

        assert settings_file.content == content


@given(content=draw_json_text(), own_value=VALUES, has_own_hook=st.booleans(), is_emptied=st.booleans())
def test_disconnect_keeps_values_that_a_person_changed(
    content: bytes, own_value: Any, has_own_hook: bool, is_emptied: bool
) -> None:
    """B94: disconnect removes only what connect added."""

    def change_settings(document: Any) -> Any:
        document["mine"] = own_value
        if has_own_hook:
            document.setdefault("hooks", {}).setdefault("Stop", []).insert(0, {"hooks": []})
        if is_emptied:
            document.pop("model", None)
        return document

    with tempfile.TemporaryDirectory() as folder:
        settings_file = SettingsFile(Path(folder), "settings.json")
        settings_file.write_original(content)
        settings_file.connect(CLAUDE_ENTRIES)
        changed_settings = change_settings(json.loads(settings_file.content or b""))
        settings_file.path.write_text(json.dumps(changed_settings, indent=3))
        settings_file.connect(CLAUDE_ENTRIES)
        settings_file.disconnect()

        assert json.loads(settings_file.content or b"") == change_settings(json.loads(content))


COMMENTS: Final = (
    b'{\n  // mine\n  "a": 1, // one\n  "b": [1, 2,], /* two */\n}\n',
    b"{ // nothing yet\n}\n",
    b'{"a": 1 /* inline */}',
    b"{/* one line */}",
    b'{"a": 1, "env": { /* one line */ }}',
    b'{\n  "a": 1 /* x, y */,\n}\n',
    b'{\n  "env": { // variables\n    "X": "//no", // a URL\n  },\n  // last\n}\n',
    b'// head\n{\r\n  "hooks": {\n    "Stop": [\n      {"hooks": []} // none\n    ]\n  }\n}\n// tail\n',
)


@pytest.mark.parametrize("content", [*COMMENTS, b"", b" \n"])
def test_disconnect_restores_commented_and_empty_settings_byte_for_byte(
    settings_file: SettingsFile, content: bytes
) -> None:
    """B94: some clients accept comments, trailing commas and an empty file."""
    settings_file.write_original(content)
    settings_file.connect(CLAUDE_ENTRIES)
    written_text = settings_file.content or b""

    assert all(has_entry(json_text.load(written_text.decode()), entry) for entry in CLAUDE_ENTRIES)
    assert all(comment in written_text for comment in re.findall(rb"// [a-zA-Z ]+|/\*.*?\*/", content))
    settings_file.disconnect()
    assert settings_file.content == content


@pytest.mark.parametrize("content", COMMENTS)
def test_comments_are_kept_if_a_person_changes_the_settings_after_connect(
    settings_file: SettingsFile, content: bytes
) -> None:
    settings_file.write_original(content)
    settings_file.connect(CLAUDE_ENTRIES)
    settings_file.path.write_bytes((settings_file.content or b"") + b"// later\n")

    settings_file.disconnect()

    remaining_text = settings_file.content or b""
    assert json_text.load(remaining_text.decode()) == json_text.load(content.decode())
    for comment in re.findall(rb"// [a-zA-Z ]+|/\*.*?\*/", content + b"// later"):
        assert comment in remaining_text


def test_disconnect_keeps_values_that_a_person_replaced(settings_file: SettingsFile) -> None:
    """B94: disconnect does not remove a value that a person set after connect."""
    settings_file.write_original(b'{"env": {}}')
    settings_file.connect(CLAUDE_ENTRIES)
    changed_text = settings_file.path.read_text().replace('"http://127.0.0.1:4318"', '"http://mine"')
    settings_file.path.write_text(changed_text)

    settings_file.disconnect()

    assert json.loads(settings_file.path.read_text()) == {
        "env": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://mine"}
    }


def test_file_that_changes_during_the_prompt_is_not_overwritten(settings_file: SettingsFile) -> None:
    settings_file.write_original(b"{}")
    update = plan_connect(settings_file.path, CLAUDE_ENTRIES, settings_file.records)
    settings_file.path.write_text('{"new": 1}')

    with pytest.raises(AgentSettingsError, match="was changed in the meantime"):
        write(update, settings_file.records)

    assert settings_file.content == b'{"new": 1}'


def test_symlinked_file_keeps_its_target_and_mode(settings_file: SettingsFile, tmp_path: Path) -> None:
    target = tmp_path / "dotfiles.json"
    target.write_text('{\n\t"a": 1\n}\n')
    target.chmod(0o640)
    settings_file.path.parent.mkdir()
    settings_file.path.symlink_to(target)

    settings_file.connect(CLAUDE_ENTRIES)

    assert settings_file.path.is_symlink()
    assert target.read_text().startswith('{\n\t"a": 1,\n\t"env": {\n\t\t"CLAUDE_CODE_ENABLE_TELEMETRY": "1"')
    assert target.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    settings_file.disconnect()
    assert target.read_text() == '{\n\t"a": 1\n}\n'
    assert settings_file.path.is_symlink()


# -- the commands ------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(tmp_path)
    yield folder
    assert not list(folder.rglob("*.tmp"))


def run_command(*arguments: str | Path) -> Result:
    """Run a command. `connect` uses a service that does not run, unless a URL is passed."""
    url_options = (
        ("--url", "http://127.0.0.1:9") if arguments[0] == "connect" and "--url" not in arguments else ()
    )
    return CliRunner().invoke(app, [str(word) for word in (*arguments, *url_options)])


def test_without_a_terminal_the_difference_is_shown_but_not_written(home: Path) -> None:
    result = run_command("connect", "claude-code")

    assert result.exit_code == 1
    assert '+    "CLAUDE_CODE_ENABLE_TELEMETRY": "1",' in result.output
    assert "--yes" in result.output
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("name", CLIENTS)
def test_connect_then_disconnect_restores_the_home_folder(home: Path, name: str) -> None:
    """B94: this holds for each client, if it has no settings yet."""
    assert run_command("connect", name, "--yes").exit_code == 0
    assert (home / CLIENTS[name].folder).is_dir()
    assert "already connected" in run_command("connect", name, "--yes").output

    assert run_command("disconnect", name, "--yes").exit_code == 0

    assert [path.name for path in home.iterdir()] == [".queenright"]
    assert "is not connected in" in run_command("disconnect", name).output


@pytest.mark.parametrize(
    ("name", "file", "content", "settings_file"),
    [
        ("claude-code", ".claude/settings.json", b'{\n  // one\n  "a": 1\n  "b": 2\n}', "line 4 column 3"),
        ("gemini", ".gemini/settings.json", b"{} /* mine", "line 1 column 4"),
        ("claude-code", ".claude/settings.json", b'{"a": "\xff"}', "line 1 column 8"),
        ("codex", ".codex/config.toml", b'[a]\nb = "\n', "line 2, column"),
        ("claude-code", ".claude/settings.json", b'{"hooks": {"Stop": 1}}', "hooks.Stop must be a list"),
        ("claude-code", ".claude/settings.json", b"[]", "the document must be an object"),
    ],
)
def test_invalid_settings_file_is_not_changed(
    home: Path, name: str, file: str, content: bytes, settings_file: str
) -> None:
    """B94: the error names the file, the position and the remedy."""
    path = home / file
    path.parent.mkdir()
    path.write_bytes(content)

    result = run_command("connect", name, "--yes")

    assert isinstance(result.exception, AgentSettingsError)
    assert str(path) in str(result.exception)
    assert settings_file in str(result.exception)
    assert "--print" in str(result.exception)
    assert path.read_bytes() == content


def test_setting_with_a_different_value_needs_replace(home: Path) -> None:
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    original_text = '{"env": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}}'
    path.write_text(original_text)

    result = run_command("connect", "claude-code", "--yes")

    assert result.exit_code == 1
    assert "env.OTEL_EXPORTER_OTLP_ENDPOINT is 'http://collector:4318'" in result.output
    assert "--replace" in result.output
    assert path.read_text() == original_text
    assert run_command("connect", "claude-code", "--yes", "--replace").exit_code == 0
    assert "collector" not in path.read_text()
    path.write_text(path.read_text().replace("{", '{"mine": 1, ', 1))
    assert run_command("disconnect", "claude-code", "--yes").exit_code == 0
    assert json.loads(path.read_text()) == {"mine": 1, **json.loads(original_text)}


@pytest.mark.parametrize("name", CLIENTS)
def test_token_is_never_printed(home: Path, tmp_path: Path, name: str) -> None:
    """B94: this covers the difference, --print, and the removal of the token."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN_TEXT}\n")
    file.chmod(0o600)

    results = [
        run_command("connect", name, "--token-file", file, "--print"),
        run_command("connect", name, "--token-file", file, "--yes"),
        run_command("disconnect", name),
        run_command("disconnect", name, "--yes"),
    ]

    assert [line.exit_code for line in results] == [0, 0, 1, 0]
    assert "the-secret" not in "".join(line.output for line in results)


def test_secrets_in_the_settings_are_masked(home: Path) -> None:
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    path.write_text(
        '{\n  "env": {\n    "ANTHROPIC_API_KEY": "sk-ant-api03-0123456789abcdefghijklmnop"\n  }\n}\n'
    )

    result = run_command("connect", "claude-code")

    assert "ANTHROPIC_API_KEY" in result.output
    assert "0123456789abcdefghijklmnop" not in result.output


def test_settings_file_with_a_token_is_readable_only_by_its_owner(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN_TEXT)
    file.chmod(0o600)

    run_command("connect", "claude-code", "--token-file", file, "--yes")

    path = home / ".claude/settings.json"
    assert path.stat().st_mode & 0o077 == 0
    written_settings = json.loads(path.read_text())
    assert written_settings["env"]["OTEL_EXPORTER_OTLP_HEADERS"] == f"Authorization=Bearer {TOKEN_TEXT}"
    assert written_settings["hooks"]["Stop"][0]["hooks"][0]["headers"] == {
        "Authorization": f"Bearer {TOKEN_TEXT}"
    }
    assert TOKEN_TEXT not in json.dumps(written_settings["hooks"]["SessionStart"])


def test_settings_of_a_project_contain_no_user_and_no_token(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN_TEXT)

    refused_result = run_command("connect", "claude-code", "--scope", "project", "--token-file", file)
    result = run_command("connect", "claude-code", "--scope", "project", "--yes")

    assert "--scope user" in str(refused_result.exception)
    assert result.exit_code == 0
    written_text = (tmp_path / ".claude/settings.json").read_text()
    assert "user" not in json.loads(written_text)["hooks"]["Stop"][0]["hooks"][0]["url"]
    assert "OTEL_RESOURCE_ATTRIBUTES" not in written_text
    assert '"queenright hook claude-code' in written_text
    assert list(home.glob(".claude")) == []


def test_printed_settings_are_valid_documents(home: Path) -> None:
    claude = run_command("connect", "claude-code", "--print")
    codex = run_command("connect", "codex", "--print")

    assert "Stop" in json.loads(claude.stdout)["hooks"]
    toml, _, hooks = codex.stdout.partition("{\n")
    assert "exporter" in tomllib.loads(toml)["otel"]
    assert "Stop" in json.loads("{\n" + hooks)["hooks"]
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    "url", ["nonsense", "http://", "ftp://x", "http://u:p@x", "http://x:y", "http://x?q=1"]
)
def test_invalid_url_is_a_usage_error(home: Path, url: str) -> None:
    result = run_command("connect", "claude-code", "--otlp-url", url)

    assert "is not a URL" in str(result.exception)


@pytest.mark.parametrize(
    ("otlp", "expected_url"),
    [
        ({"port": 5318}, "http://127.0.0.1:5318"),
        ({"host": "10.0.0.5", "port": 5318}, "http://10.0.0.5:5318"),
        ({"host": "0.0.0.0"}, "http://127.0.0.1:4318"),
    ],
)
async def test_connect_asks_the_service_for_its_telemetry_address(
    home: Path, running: RunningService, otlp: dict[str, Any], expected_url: str
) -> None:
    port = running.service.settings.otlp.model_copy(update={"port": 4318} | otlp)
    running.service.settings = running.service.settings.model_copy(update={"otlp": port})

    completed = await asyncio.to_thread(
        run_command, "connect", "claude-code", "--print", "--url", running.url
    )

    assert f'"OTEL_EXPORTER_OTLP_ENDPOINT": "{expected_url}"' in completed.output


async def test_connect_writes_the_port_that_the_service_chose(home: Path, running: RunningService) -> None:
    completed = await asyncio.to_thread(
        run_command, "connect", "claude-code", "--print", "--url", running.url
    )

    assert f'"OTEL_EXPORTER_OTLP_ENDPOINT": "{running.otlp_url}"' in completed.output


def test_connect_without_a_service_writes_its_host_and_the_default_port(home: Path) -> None:
    result = run_command("connect", "claude-code", "--print", "--url", "http://127.0.0.2:9")

    assert '"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.2:4318"' in result.output


def test_connect_requires_the_telemetry_address_of_an_https_service(home: Path) -> None:
    result = run_command("connect", "claude-code", "--yes", "--url", "https://127.0.0.1:9")

    assert isinstance(result.exception, UsageError)
    assert "pass --otlp-url, such as https://127.0.0.1:4318" in str(result.exception)
    assert list(home.iterdir()) == []


async def test_check_lists_received_and_missing_sources(home: Path, running: RunningService) -> None:
    lines = ("connect", "claude-code", "--check", "--url", running.url)

    empty_result = await asyncio.to_thread(run_command, *lines)
    await asyncio.to_thread(run_command, "connect", "claude-code", "--yes", "--otlp-url", running.otlp_url)
    settings = json.loads((home / ".claude/settings.json").read_text())
    [hook] = settings["hooks"]["UserPromptSubmit"][0]["hooks"]
    call = {"hook_event_name": "UserPromptSubmit", "session_id": "s-1", "cwd": "/home/ada/honey"}
    async with httpx.AsyncClient(verify=False, trust_env=False) as http:
        assert (await http.post(hook["url"], json={})).status_code == 400
        refused_result = await asyncio.to_thread(run_command, *lines)
        assert (await http.post(hook["url"], json=call)).status_code == 200
    partial_result = await asyncio.to_thread(run_command, *lines)

    assert empty_result.exit_code == partial_result.exit_code == 1
    assert "`queenright connect claude-code`" in empty_result.output
    assert "Claude Code" in empty_result.output
    assert (
        f"claude-code/{os.environ.get('USER') or 'root'}" in partial_result.output
        or "/honey s-1" in partial_result.output
    )
    assert "not written" not in partial_result.output
    assert all(phrase in refused_result.output for phrase in ("1 request", "/hooks/claude-code", "400"))
    assert "were refused" not in partial_result.output
    assert "missing: " in partial_result.output


@pytest.mark.parametrize("name", ["claude-code", "codex"])
def test_only_the_permission_hook_waits_for_a_decision(name: str) -> None:
    """
    B91, B93: the waiting hook is our command, which gives up within a second if the service is unavailable.
    """
    waiting_hooks = replace(SERVICE_TARGET, permission_seconds=60)
    hooks = {
        item.path[1]: item.value["hooks"][0]
        for items in CLIENTS[name].settings(waiting_hooks).values()
        for item in items
        if isinstance(item, Item)
    }

    is_waiting = hooks.pop("PermissionRequest")
    assert is_waiting["timeout"] == 61
    assert is_waiting["command"].endswith("--wait 60")
    assert {hook["timeout"] for hook in hooks.values()} == {1}
    assert not any("--wait" in hook.get("command", "") for hook in hooks.values())
    assert CLIENTS[name].settings(replace(waiting_hooks, permission_seconds=0)) == CLIENTS[name].settings(
        SERVICE_TARGET
    )


def test_waiting_is_rejected_for_a_client_that_cannot_receive_decisions() -> None:
    result = run_command("connect", "gemini", "--print", "--permission-seconds", "60")

    assert isinstance(result.exception, UsageError)
    assert "Gemini CLI" in str(result.exception)
