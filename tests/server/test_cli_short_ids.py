"""Abbreviated ids on the command line."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import pytest
from fastapi import HTTPException
from typer.testing import CliRunner

from queenright.cli.app import app
from queenright.cli.extras import explain_missing_extra
from queenright.cli.short_ids import UnresolvedIdError, resolve_session, resolve_task
from queenright.server.routes.short_ids import complete_id

FULL_ID = "018f6f7e-0000-7000-8000-0000000000c1"


@dataclass
class Row:
    session_id: str
    task_id: str = ""


@dataclass
class Service:
    """A client that can look up sessions."""

    rows: list[Row] = field(default_factory=list)

    @property
    def agents(self) -> Service:
        return self

    def list(self, **_: object) -> list[Row]:
        return self.rows


def make_service(*rows: Row) -> Any:
    return Service(list(rows))


@pytest.mark.parametrize("id_", ["../../etc", "a/b", "a b"])
def test_invalid_id_is_refused(id_: str) -> None:
    result = CliRunner().invoke(app, ["chat", id_])

    assert result.exit_code == 2
    assert f"{id_!r} is not an id" in " ".join(result.output.split())


def test_blank_id_is_refused() -> None:
    result = CliRunner().invoke(app, ["approvals", "deny", " "])

    assert (result.exit_code, "the id is empty" in result.output) == (2, True)


def test_id_prefix_selects_the_only_match() -> None:
    assert complete_id("018f6f7e", "silences", {FULL_ID: "a", "4a0a2d0c": "b"}) == FULL_ID
    assert complete_id(FULL_ID, "silences", {FULL_ID: "a", f"{FULL_ID}0": "b"}) == FULL_ID
    assert complete_id("b3c5", "silences", {FULL_ID: "a"}) == "b3c5"


def test_short_prefix_is_rejected_even_if_it_is_unique() -> None:
    """Otherwise `approvals approve 01` could terminate the only worker with a request."""
    with pytest.raises(HTTPException) as error:
        complete_id("01", "approvals", {FULL_ID: "ada"})

    assert error.value.status_code == 409
    assert error.value.detail == (
        f"'01' is too short for an abbreviated id: give at least 8 characters of {FULL_ID} (ada)"
    )
    assert complete_id("call_1", "requests", {"call_1": "ada", "call_12": "bob"}) == "call_1"


def test_ambiguous_prefix_lists_the_matches() -> None:
    with pytest.raises(HTTPException) as error:
        complete_id("4a", "approvals", {"4a01": "ada", "4a02": "bob", "b3": "eve"})

    assert error.value.status_code == 409
    assert (
        error.value.detail
        == "2 approvals begin with '4a': 4a01 (ada), 4a02 (bob); give more characters of the id"
    )


@pytest.mark.parametrize("suffix", ["…n-7f3a", "7f3a", "session-7f3a"])
def test_session_id_suffix_selects_the_session(suffix: str) -> None:
    rows = make_service(Row("session-7f3a"), Row("session-9b21"))

    assert resolve_session(rows, "researcher", suffix) == "session-7f3a"


def test_ambiguous_session_id_suffix_lists_the_matches() -> None:
    with pytest.raises(UnresolvedIdError, match="2 sessions end with '…1'"):
        resolve_session(make_service(Row("a-1"), Row("b-1")), "researcher", "…1")


def test_only_abbreviated_task_ids_are_looked_up() -> None:
    rows = make_service(Row("session-7f3a", "session-7f3a"), Row("session-9b21", "nightly"))

    assert resolve_task(rows, "7f3a") == "7f3a"
    assert resolve_task(rows, "…7f3a") == "session-7f3a"


def test_version_is_printed() -> None:
    result = CliRunner().invoke(app, ["--version"])

    assert (result.exit_code, result.output) == (0, f"queenright {version('queenright')}\n")


def test_version_is_printed_without_the_optional_packages() -> None:
    program = (
        "import sys; sys.modules['typer'] = None; sys.argv = ['queenright', '--version'];"
        "from queenright.cli import main; main()"
    )

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (result.returncode, result.stdout) == (0, f"queenright {version('queenright')}\n")


@pytest.mark.parametrize(
    ("module", "extra"), [("typer", "server"), ("textual.app", "tui"), ("litellm", "llm")]
)
def test_missing_package_names_the_extra_that_installs_it(module: str, extra: str) -> None:
    assert f"pip install 'queenright[{extra}] @ " in str(explain_missing_extra(module))


def test_missing_module_that_no_extra_installs_names_no_extra() -> None:
    assert explain_missing_extra("queenright.nowhere") is None
