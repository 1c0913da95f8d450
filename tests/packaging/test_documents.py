"""Links in the docs resolve, and the documented commands are valid."""

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

# Tokens that end a command in a shell line.
COMMAND_ENDS = {"|", "&&", "||", ";", "&", ">", "2>", "<"}


def relative_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def list_anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


COMMAND_LINE = re.compile(r"^(?:\$ )?((?:[A-Z_]+=\S+ )*queenright [-\w].*)")
DATA_LANGUAGES = ("yaml", "json", "python", "promql", "mermaid")


def list_block_lines(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the language and text of each line in a page's code blocks; continued lines are joined."""
    language = None
    for line in page.read_text("utf-8").replace("\\\n", " ").splitlines():
        if line.lstrip().startswith("```"):
            language = line.strip("` ") if language is None else None
        elif language is not None and " [--" not in line:  # a synopsis
            yield language, line


def list_commands(page: Path) -> list[str]:
    """Return the lines of a page that call `queenright`, with the variables that they set."""
    return [
        match[1]
        for kind, line in list_block_lines(page)
        if kind not in DATA_LANGUAGES and (match := COMMAND_LINE.match(line))
    ]


def list_calls(page: Path) -> list[str]:
    """Return each call of a `queenright` command in the code blocks of a page, without comments."""
    names = "|".join(map(re.escape, sorted(COMMANDS, key=len, reverse=True)))
    lines = (line.partition(" # ")[0] for kind, line in list_block_lines(page) if kind not in DATA_LANGUAGES)
    return [match[0] for line in lines for match in re.finditer(rf"(?<![`\w/-])queenright ({names})\b", line)]


def read_line_environment(line: str) -> dict[str, str]:
    """Return the variables that a line sets for its command."""
    words = shlex.split(line, comments=True)
    return dict(word.split("=", 1) for word in words[: words.index("queenright")])


def check_command(line: str) -> None:
    """Parse a line with its options and arguments, without running it."""
    command: Any = typer.main.get_command(app)
    name, *words = shlex.split(line, comments=True)[len(read_line_environment(line)) :]
    end = next((index for index, word in enumerate(words) if word in COMMAND_ENDS), len(words))
    words = words[:end]
    while words and words[0] in getattr(command, "commands", {}):
        name, *words = words
        command = command.commands[name]
    if not (words == [] and getattr(command, "invoke_without_command", False)):
        # Options such as `--version` would run during parsing.
        command.make_context(name, words, resilient_parsing=name == "queenright")


@pytest.mark.parametrize("page", PAGES, ids=relative_name)
def test_links_of_pages_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        target_path = (page.parent / path).resolve() if path else page
        assert target_path.exists(), f"{relative_name(page)} links to {target}"
        if anchor and target_path.suffix == ".md":
            assert anchor in list_anchors(target_path), f"{relative_name(page)} links to {target}"


@pytest.mark.parametrize("page", [page for page in PAGES if list_commands(page)], ids=relative_name)
def test_commands_on_pages_are_known(page: Path) -> None:
    for line in list_commands(page):
        try:
            check_command(line)
        except Exception as error:
            pytest.fail(f"{relative_name(page)}: {line}: {error}")


def test_health_layer_has_a_runbook_for_each_manual_task() -> None:
    """002 §11: the documentation covers architecture, configuration and runbooks."""
    for page in ("health", "interventions", "breakers", "recovery", "settings", "storage", "api"):
        assert (ROOT / "docs" / f"{page}.md").is_file()
    for runbook in RUNBOOKS:
        assert list_commands(ROOT / "docs" / "runbooks" / f"{runbook}.md")


def list_texts(source: Path) -> Iterator[str]:
    """Yield the texts in a source file, with `…` for inserted values."""
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
    program = "\n".join(text for file in files for text in list_texts(file))

    assert len(cells) > 15
    assert [reason for cell in cells for reason in cell.split("`")[1::2] if reason not in program] == []


def test_durations_of_slow_tests_are_published() -> None:
    assert render_table() in (ROOT / "CONTRIBUTING.md").read_text("utf-8")


IMPORT = re.compile(r"^ *(from queenright[\w.]* import (?:\([^)]*\)|.+))$", re.MULTILINE)


def test_imports_of_python_examples_work() -> None:
    for page in PAGES:
        for statement in IMPORT.findall(page.read_text("utf-8")):
            exec(statement, {})
