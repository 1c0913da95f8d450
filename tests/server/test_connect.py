"""Connecting coding agents: their settings are kept, and disconnect restores the file."""

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

SERVICE = TelemetryTarget("http://127.0.0.1:4318", ("queenright",), {"user": "ada", "host": "laptop"})
OTHER = TelemetryTarget("http://127.0.0.1:9999", ("queenright",), {"user": "ada", "host": "laptop"})
CLAUDE = CLIENTS["claude-code"].settings(SERVICE)["settings.json"]
CODEX = CLIENTS["codex"].settings(SERVICE)["config.toml"]
TOKEN = "qr_0123456789abcdef_the-secret-of-a-reporter"

NAMES = st.sampled_from(["a", "env", "hooks", "model", "Stop", "Ünï\ud800 \"'\\", "OTEL_RESOURCE_ATTRIBUTES"])
TEXTS = st.text(max_size=12) | st.sampled_from(["\ud800", "}", '{"', "1"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(NAMES, v, max_size=3), max_leaves=8
)
HOOKS = st.dictionaries(
    st.sampled_from(["Stop", "PreToolUse", "Mine"]),
    st.lists(st.fixed_dictionaries({"hooks": st.just([{"type": "command", "command": "beep"}])}), max_size=2),
)
ENVIRONMENT = st.dictionaries(
    st.sampled_from(["A", "OTEL_RESOURCE_ATTRIBUTES", "CLAUDE_CODE_ENABLE_TELEMETRY"]), st.just("1")
)
DOCUMENTS = st.fixed_dictionaries(
    {}, optional={"env": ENVIRONMENT, "hooks": HOOKS, "model": VALUES, "permissions": VALUES, "é": VALUES}
)


@st.composite
def json_texts(draw: st.DrawFn) -> bytes:
    """Draw a settings file in one of the layouts in which people and programs write JSON."""
    indent = draw(st.sampled_from([None, 0, 1, 2, 4, "\t"]))
    separators = draw(st.sampled_from([None, (",", ":"), (" , ", " :  ")]))
    text = json.dumps(draw(DOCUMENTS), indent=indent, separators=separators)
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    space = st.sampled_from(["", "\n", "  ", "\r\n\n"])
    return (draw(space) + text + draw(space)).encode()


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
def toml_texts(draw: st.DrawFn) -> bytes:
    text = "\n".join([*draw(TOML_LINES), *draw(TOML_TABLES)]) + draw(st.sampled_from(["", "\n"]))
    return (text.replace("\n", "\r\n") if draw(st.booleans()) else text).encode()


class SettingsFile:
    """A folder with a settings file, and the records of changes to it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / "of-client" / name
        self.records = RecordStore(folder / "records")

    def begin(self, content: bytes | None) -> None:
        if content is not None:
            self.path.parent.mkdir()
            self.path.write_bytes(content)

    @property
    def content(self) -> bytes | None:
        return self.path.read_bytes() if self.path.exists() else None

    def connect(self, wanted: Any, *, replace: bool = True) -> None:
        write(plan_connect(self.path, wanted, self.records, replace=replace), self.records)

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


@given(content=json_texts() | st.none(), times=st.integers(1, 3), moves=st.booleans())
def test_disconnect_restores_json_settings_byte_for_byte(
    content: bytes | None, times: int, moves: bool
) -> None:
    """B94: connect once or repeatedly, also to another service, then disconnect."""
    with tempfile.TemporaryDirectory() as folder:
        settings_file = SettingsFile(Path(folder), "settings.json")
        settings_file.begin(content)
        if moves:
            settings_file.connect(CLIENTS["claude-code"].settings(OTHER)["settings.json"])
        for _ in range(times):
            settings_file.connect(CLAUDE)

        written = json.loads(settings_file.content or b"")
        assert all(has_entry(written, one) for one in CLAUDE)
        assert b":9999" not in (settings_file.content or b"")
        settings_file.disconnect()

        assert settings_file.content == content
        assert content is not None or not settings_file.path.parent.exists()


@given(content=toml_texts() | st.none(), times=st.integers(1, 3))
def test_disconnect_restores_toml_settings_byte_for_byte(content: bytes | None, times: int) -> None:
    """B94: the same for Codex, with comments."""
    with tempfile.TemporaryDirectory() as folder:
        settings_file = SettingsFile(Path(folder), "config.toml")
        settings_file.begin(content)
        for _ in range(times):
            settings_file.connect(CODEX)

        written = tomllib.loads((settings_file.content or b"").decode())
        assert written["otel"]["exporter"] == CODEX[0].value
        for line in (content or b"").decode().splitlines():
            assert line.strip() in (settings_file.content or b"").decode()
        settings_file.disconnect()

        assert settings_file.content == content


@given(content=json_texts(), mine=VALUES, hook=st.booleans(), emptied=st.booleans())
def test_disconnect_keeps_values_changed_by_a_person(
    content: bytes, mine: Any, hook: bool, emptied: bool
) -> None:
    """B94: disconnect removes only what connect added."""

    def change(document: Any) -> Any:
        document["mine"] = mine
        if hook:
            document.setdefault("hooks", {}).setdefault("Stop", []).insert(0, {"hooks": []})
        if emptied:
            document.pop("model", None)
        return document

    with tempfile.TemporaryDirectory() as folder:
        settings_file = SettingsFile(Path(folder), "settings.json")
        settings_file.begin(content)
        settings_file.connect(CLAUDE)
        changed = change(json.loads(settings_file.content or b""))
        settings_file.path.write_text(json.dumps(changed, indent=3))
        settings_file.connect(CLAUDE)
        settings_file.disconnect()

        assert json.loads(settings_file.content or b"") == change(json.loads(content))


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
    settings_file.begin(content)
    settings_file.connect(CLAUDE)
    written = settings_file.content or b""

    assert all(has_entry(json_text.load(written.decode()), one) for one in CLAUDE)
    assert all(comment in written for comment in re.findall(rb"// [a-zA-Z ]+|/\*.*?\*/", content))
    settings_file.disconnect()
    assert settings_file.content == content


@pytest.mark.parametrize("content", COMMENTS)
def test_comments_are_kept_if_settings_are_changed_after_connect(
    settings_file: SettingsFile, content: bytes
) -> None:
    settings_file.begin(content)
    settings_file.connect(CLAUDE)
    settings_file.path.write_bytes((settings_file.content or b"") + b"// later\n")

    settings_file.disconnect()

    left = settings_file.content or b""
    assert json_text.load(left.decode()) == json_text.load(content.decode())
    for comment in re.findall(rb"// [a-zA-Z ]+|/\*.*?\*/", content + b"// later"):
        assert comment in left


def test_disconnect_keeps_values_replaced_by_a_person(settings_file: SettingsFile) -> None:
    """B94: disconnect does not remove a value that a person set after connect."""
    settings_file.begin(b'{"env": {}}')
    settings_file.connect(CLAUDE)
    text = settings_file.path.read_text().replace('"http://127.0.0.1:4318"', '"http://mine"')
    settings_file.path.write_text(text)

    settings_file.disconnect()

    assert json.loads(settings_file.path.read_text()) == {
        "env": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://mine"}
    }


def test_file_changed_during_the_prompt_is_not_overwritten(settings_file: SettingsFile) -> None:
    settings_file.begin(b"{}")
    update = plan_connect(settings_file.path, CLAUDE, settings_file.records)
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

    settings_file.connect(CLAUDE)

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


def run_command(*words: str | Path) -> Result:
    """Run a command; by default `connect` uses a service that does not run."""
    absent = ("--url", "http://127.0.0.1:9") if words[0] == "connect" and "--url" not in words else ()
    return CliRunner().invoke(app, [str(word) for word in (*words, *absent)])


def test_without_a_terminal_the_difference_is_shown_and_nothing_written(home: Path) -> None:
    result = run_command("connect", "claude-code")

    assert result.exit_code == 1
    assert '+    "CLAUDE_CODE_ENABLE_TELEMETRY": "1",' in result.output
    assert "--yes" in result.output
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("name", CLIENTS)
def test_connect_then_disconnect_restores_the_home_folder(home: Path, name: str) -> None:
    """B94: for each client, if it has no settings yet."""
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
    """B94: the error names the file, the position, and the remedy."""
    path = home / file
    path.parent.mkdir()
    path.write_bytes(content)

    result = run_command("connect", name, "--yes")

    assert isinstance(result.exception, AgentSettingsError)
    assert str(path) in str(result.exception)
    assert settings_file in str(result.exception)
    assert "--print" in str(result.exception)
    assert path.read_bytes() == content


def test_setting_with_another_value_needs_replace(home: Path) -> None:
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    before = '{"env": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}}'
    path.write_text(before)

    refused = run_command("connect", "claude-code", "--yes")

    assert refused.exit_code == 1
    assert "env.OTEL_EXPORTER_OTLP_ENDPOINT is 'http://collector:4318'" in refused.output
    assert "--replace" in refused.output
    assert path.read_text() == before
    assert run_command("connect", "claude-code", "--yes", "--replace").exit_code == 0
    assert "collector" not in path.read_text()
    path.write_text(path.read_text().replace("{", '{"mine": 1, ', 1))
    assert run_command("disconnect", "claude-code", "--yes").exit_code == 0
    assert json.loads(path.read_text()) == {"mine": 1, **json.loads(before)}


@pytest.mark.parametrize("name", CLIENTS)
def test_token_is_never_printed(home: Path, tmp_path: Path, name: str) -> None:
    """B94: not in the difference, with --print, or when it is removed."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)

    done = [
        run_command("connect", name, "--token-file", file, "--print"),
        run_command("connect", name, "--token-file", file, "--yes"),
        run_command("disconnect", name),
        run_command("disconnect", name, "--yes"),
    ]

    assert [line.exit_code for line in done] == [0, 0, 1, 0]
    assert "the-secret" not in "".join(line.output for line in done)


def test_secrets_in_the_settings_are_masked(home: Path) -> None:
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    path.write_text(
        '{\n  "env": {\n    "ANTHROPIC_API_KEY": "sk-ant-api03-0123456789abcdefghijklmnop"\n  }\n}\n'
    )

    result = run_command("connect", "claude-code")

    assert "ANTHROPIC_API_KEY" in result.output
    assert "0123456789abcdefghijklmnop" not in result.output


def test_settings_with_a_token_are_owner_only(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)

    run_command("connect", "claude-code", "--token-file", file, "--yes")

    path = home / ".claude/settings.json"
    assert path.stat().st_mode & 0o077 == 0
    written = json.loads(path.read_text())
    assert written["env"]["OTEL_EXPORTER_OTLP_HEADERS"] == f"Authorization=Bearer {TOKEN}"
    assert written["hooks"]["Stop"][0]["hooks"][0]["headers"] == {"Authorization": f"Bearer {TOKEN}"}
    assert TOKEN not in json.dumps(written["hooks"]["SessionStart"])


def test_settings_of_a_project_contain_no_user_and_no_token(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)

    refused = run_command("connect", "claude-code", "--scope", "project", "--token-file", file)
    result = run_command("connect", "claude-code", "--scope", "project", "--yes")

    assert "--scope user" in str(refused.exception)
    assert result.exit_code == 0
    written = (tmp_path / ".claude/settings.json").read_text()
    assert "user" not in json.loads(written)["hooks"]["Stop"][0]["hooks"][0]["url"]
    assert "OTEL_RESOURCE_ATTRIBUTES" not in written
    assert '"queenright hook claude-code' in written
    assert list(home.glob(".claude")) == []


def test_printed_settings_are_documents(home: Path) -> None:
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
    ("otlp", "written"),
    [
        ({"port": 5318}, "http://127.0.0.1:5318"),
        ({"host": "10.0.0.5", "port": 5318}, "http://10.0.0.5:5318"),
        ({"host": "0.0.0.0"}, "http://127.0.0.1:4318"),
    ],
)
async def test_connect_asks_the_service_for_its_telemetry_address(
    home: Path, running: RunningService, otlp: dict[str, Any], written: str
) -> None:
    port = running.service.settings.otlp.model_copy(update={"port": 4318} | otlp)
    running.service.settings = running.service.settings.model_copy(update={"otlp": port})

    completed = await asyncio.to_thread(
        run_command, "connect", "claude-code", "--print", "--url", running.url
    )

    assert f'"OTEL_EXPORTER_OTLP_ENDPOINT": "{written}"' in completed.output


async def test_connect_writes_the_port_that_a_service_took(home: Path, running: RunningService) -> None:
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


async def test_check_lists_arriving_and_missing_sources(home: Path, running: RunningService) -> None:
    lines = ("connect", "claude-code", "--check", "--url", running.url)

    nothing = await asyncio.to_thread(run_command, *lines)
    await asyncio.to_thread(run_command, "connect", "claude-code", "--yes", "--otlp-url", running.otlp_url)
    settings = json.loads((home / ".claude/settings.json").read_text())
    [hook] = settings["hooks"]["UserPromptSubmit"][0]["hooks"]
    call = {"hook_event_name": "UserPromptSubmit", "session_id": "s-1", "cwd": "/home/ada/honey"}
    async with httpx.AsyncClient(verify=False, trust_env=False) as http:
        assert (await http.post(hook["url"], json={})).status_code == 400
        refused = await asyncio.to_thread(run_command, *lines)
        assert (await http.post(hook["url"], json=call)).status_code == 200
    partial = await asyncio.to_thread(run_command, *lines)

    assert nothing.exit_code == partial.exit_code == 1
    assert "`queenright connect claude-code`" in nothing.output
    assert "Claude Code" in nothing.output
    assert (
        f"claude-code/{os.environ.get('USER') or 'root'}" in partial.output or "/honey s-1" in partial.output
    )
    assert "not written" not in partial.output
    assert all(part in refused.output for part in ("1 request", "/hooks/claude-code", "400"))
    assert "were refused" not in partial.output
    assert "missing: " in partial.output


@pytest.mark.parametrize("name", ["claude-code", "codex"])
def test_only_the_permission_hook_waits(name: str) -> None:
    """
    B91, B93: the waiting hook is our command, which gives up within a second if the service is unavailable.
    """
    waiting_hooks = replace(SERVICE, permission_seconds=60)
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
        SERVICE
    )


def test_waiting_is_refused_for_a_client_that_takes_no_answer() -> None:
    refused = run_command("connect", "gemini", "--print", "--permission-seconds", "60")

    assert isinstance(refused.exception, UsageError)
    assert "Gemini CLI" in str(refused.exception)
