"""Links on the pages lead somewhere, and their commands are valid."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from queenright.cli.app import app
from queenright.cli.command_table import COMMANDS
from tests.slow import render_table

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/*/*.md"),
        ROOT / "tests" / "detection" / "README.md",
    ]
)
RUNBOOKS = ("manual-intervention", "circuit-breaker-reset", "recovery-troubleshooting", "postgresql-failover")

# Tokens that end a command in a line of shell.
ENDS = {"|", "&&", "||", ";", "&", ">", "2>", "<"}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links spell them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


CALL = re.compile(r"^(?:\$ )?((?:[A-Z_]+=\S+ )*queenright [-\w].*)")
DATA = ("yaml", "json", "python", "promql", "mermaid")


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines of a page's blocks with their language; continued lines are joined."""
    language = None
    for line in page.read_text("utf-8").replace("\\\n", " ").splitlines():
        if line.lstrip().startswith("```"):
            language = line.strip("` ") if language is None else None
        elif language is not None and " [--" not in line:  # a synopsis
            yield language, line


def commands(page: Path) -> list[str]:
    """Return the lines of a page that call `queenright`, with their environment."""
    return [call[1] for kind, line in blocks(page) if kind not in DATA and (call := CALL.match(line))]


def calls(page: Path) -> list[str]:
    """Return calls of our commands in blocks of code, outside comments."""
    known = "|".join(map(re.escape, sorted(COMMANDS, key=len, reverse=True)))
    lines = (line.partition(" # ")[0] for kind, line in blocks(page) if kind not in DATA)
    return [call[0] for line in lines for call in re.finditer(rf"(?<![`\w/-])queenright ({known})\b", line)]


def environment(line: str) -> dict[str, str]:
    """Return the environment that a line sets for its command."""
    words = shlex.split(line, comments=True)
    return dict(word.split("=", 1) for word in words[: words.index("queenright")])


def understood(line: str) -> None:
    """Parse a line with its options and arguments, without running it."""
    command: Any = typer.main.get_command(app)
    called, *words = shlex.split(line, comments=True)[len(environment(line)) :]
    end = next((at for at, word in enumerate(words) if word in ENDS), len(words))
    words = words[:end]
    while words and words[0] in getattr(command, "commands", {}):
        called, *words = words
        command = command.commands[called]
    if not (words == [] and getattr(command, "invoke_without_command", False)):
        # Options of the program itself act as soon as they are read.
        command.make_context(called, words, resilient_parsing=called == "queenright")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_of_pages_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{name(page)} links to {target}"
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{name(page)} links to {target}"


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=name)
def test_commands_on_pages_are_known(page: Path) -> None:
    for line in commands(page):
        try:
            understood(line)
        except Exception as error:
            pytest.fail(f"{name(page)}: {line}: {error}")


def test_health_layer_has_a_runbook_for_each_manual_task() -> None:
    """002 §11: documentation and runbooks are complete: architecture, configuration, runbooks."""
    for page in ("health", "interventions", "breakers", "recovery", "settings", "storage", "api"):
        assert (ROOT / "docs" / f"{page}.md").is_file()
    for runbook in RUNBOOKS:
        assert commands(ROOT / "docs" / "runbooks" / f"{runbook}.md")


def texts(source: Path) -> Iterator[str]:
    """Yield the texts in a file of code, with `…` for what it inserts."""
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_reasons_of_the_recovery_runbook_are_texts_of_the_program() -> None:
    page = (ROOT / "docs" / "runbooks" / "recovery-troubleshooting.md").read_text("utf-8")
    table = page.split("| reason |", 1)[1].split("\n## ", 1)[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    files = [file for package in ("health", "runtime") for file in ROOT.glob(f"{package}/**/*.py")]
    program = "\n".join(text for file in files for text in texts(file))

    assert len(cells) > 15
    assert [reason for cell in cells for reason in cell.split("`")[1::2] if reason not in program] == []


def test_durations_of_slow_tests_are_published() -> None:
    assert render_table() in (ROOT / "CONTRIBUTING.md").read_text("utf-8")


IMPORT = re.compile(r"^ *(from queenright[\w.]* import (?:\([^)]*\)|.+))$", re.MULTILINE)


def test_imports_of_python_examples_work() -> None:
    for page in PAGES:
        for statement in IMPORT.findall(page.read_text("utf-8")):
            exec(statement, {})
