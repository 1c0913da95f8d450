"""`config check` rejects settings that a service could not use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queenright.instrumentation.errors import QueenrightError
from queenright.server.ops.settings_files import check_files, check_usability
from queenright.server.settings import load_settings


def check_settings(block: dict[str, object]) -> None:
    Path("queenright.yaml").write_text(json.dumps(block))
    settings = load_settings()
    check_files(settings)
    check_usability(settings)


@pytest.fixture(autouse=True)
def _run_in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("block", "expected_error"),
    [
        ({"auth": {"tokens_file": "/"}}, "token file / "),
        ({"agents": {"load": ["nope"]}}, r"agents\.load: .*nope"),
        ({"step_logs": ["/nonexist"]}, "step_logs: /nonexist"),
        ({"storage": "/dev/null"}, "storage: /dev/null"),
        ({"storage": "/dev/null/below"}, "storage: /dev/null"),
        ({"judging": {"judge": {"model": "foo/bar"}}}, r"judging\.judge\.model: .*foo/bar"),
        ({"auth": {"tokens_file": "nope.json"}}, r"auth\.tokens_file: there is no file .*nope\.json; create"),
        ({"agents": {"roots": ["nope"]}}, r"agents\.roots: .*nope is not a folder; create it"),
        (
            {"agents": {"storage": "/dev/null"}},
            r"agents\.storage: /dev/null is not a folder; set it",
        ),
        (
            {"database": "postgresql://db/queenright?sslmode=verify-full&sslrootcert=/nope/ca.pem"},
            r"database: there is no file /nope/ca\.pem for sslrootcert; correct",
        ),
        (
            {"database": "postgresql://bee:a[b?c#d@db/queenright?sslcert=/nope/bee.pem"},
            r"database: there is no file /nope/bee\.pem for sslcert; correct",
        ),
        ({"alerting": {"dashboard_url": "javascript:alert(1)"}}, r"alerting\.dashboard_url: .*https://"),
        ({"alerting": {"runbook_url": "javascript:alert(1)"}}, r"alerting\.runbook_url: .*https://"),
    ],
)
def test_unusable_setting_is_rejected_with_its_name(block: dict[str, object], expected_error: str) -> None:
    with pytest.raises(QueenrightError, match=expected_error):
        check_settings(block)


def test_usable_settings_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()

    check_settings(
        {
            "storage": "new/folder",
            "step_logs": ["logs"],
            "judging": {"queen": {"model": "anthropic/claude-sonnet-4-5"}},
            "alerting": {"dashboard_url": "https://grafana.example/d/x?var-agent={agent}"},
        }
    )

    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("block", ["http", "otlp"])
def test_reachable_address_without_a_token_is_rejected(block: str) -> None:
    with pytest.raises(QueenrightError, match=r"0\.0\.0\.0 requires a token"):
        check_settings({block: {"host": "0.0.0.0"}})


def test_host_name_is_treated_like_the_address_that_it_resolves_to(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {"bees.internal": "127.0.0.1", "localhost": "192.0.2.1"}
    monkeypatch.setattr(
        "socket.getaddrinfo", lambda host, *_: [(0, 0, 0, "", (addresses.get(host, host), 0))]
    )

    check_settings({"http": {"host": "bees.internal"}})
    with pytest.raises(QueenrightError, match=r"192\.0\.2\.1 requires a token"):
        check_settings({"otlp": {"host": "localhost"}})
