"""The glossary of docs/concepts.md: commands, API, pages and docs use one name for one thing."""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer

from queenright.cli.app import app
from queenright.server.up import serving
from tests.packaging.test_documents import PAGES, ROOT, name
from tests.server.conftest import demo_settings

GLOSSARY = ROOT / "docs" / "concepts.md"
TERMS = (
    *("worker", "session", "incarnation", "step", "verdict", "activity", "progress", "waiting", "held"),
    *("health", "outcome", "finding", "severity", "ticket", "triage", "intervention", "nudge", "escalate"),
    *("terminate", "recover", "incident", "storm", "notification", "outbox", "silence", "acknowledge"),
    *("checkpoint", "circuit breaker", "judge", "queen", "orchestrator", "provider"),
)
PACKAGES = ("instrumentation", "runtime", "health", "judge", "alerting", "server")
TEMPLATES = sorted(ROOT.glob("server/queenright/server/**/*.html"))


def rows() -> dict[str, list[str]]:
    """Return the words that must not be used, by term."""
    table = GLOSSARY.read_text("utf-8").split("## Glossary\n", 1)[1]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {term: re.findall(r'"([^"]+)"', banned) for term, _, banned in cells[2:]}


BANNED = {word: term for term, words in rows().items() for word in words}
PATTERN = re.compile(r"\b(" + "|".join(map(re.escape, BANNED)).replace(r"\ ", r"\s+") + r")\b", re.IGNORECASE)


def faults(text: str) -> list[str]:
    """Return each banned word of a text with the term to use instead."""
    found = (" ".join(match[0].lower().split()) for match in PATTERN.finditer(text))
    return [f"write {BANNED[word]!r} instead of {word!r}" for word in found]


def helps(command: Any, words: str = "queenright") -> Iterator[tuple[str, str]]:
    """Yield each command with its help and the help of its options."""
    options = [getattr(parameter, "help", None) or "" for parameter in command.params]
    yield words, "\n".join([command.help or "", command.epilog or "", *options])
    for called, inner in getattr(command, "commands", {}).items():
        yield from helps(inner, f"{words} {called}")


def descriptions(document: Any) -> Iterator[str]:
    """Yield every summary and description of the API's document."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key in ("summary", "description") and isinstance(value, str):
                yield value
            else:
                yield from descriptions(value)
    elif isinstance(document, list):
        for value in document:
            yield from descriptions(value)


def test_glossary_terms_list_their_forbidden_words() -> None:
    assert tuple(rows()) == TERMS
    assert all(rows().values())


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_pages_use_the_terms(page: Path) -> None:
    text = page.read_text("utf-8")
    text = text.split("## Glossary\n", 1)[0] if page == GLOSSARY else text
    text = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)

    assert faults(text) == []


def test_help_texts_use_the_terms() -> None:
    found = {words: faults(text) for words, text in helps(typer.main.get_command(app))}

    assert len(found) > 50
    assert {words: wrong for words, wrong in found.items() if wrong} == {}


def docstrings(file: Path) -> Iterator[str]:
    """Yield the docstrings of a module, of its classes, functions and attributes."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.value.value


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_use_the_terms(package: str) -> None:
    files = sorted((ROOT / package / "queenright").rglob("*.py"))

    assert [
        (str(file), wrong) for file in files for text in docstrings(file) if (wrong := faults(text))
    ] == []


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_templates_use_the_terms(template: Path) -> None:
    text = re.sub(r"<(script|style)\b.*?</\1>|{#.*?#}", "", template.read_text("utf-8"), flags=re.DOTALL)

    assert faults(html.unescape(re.sub(r"<[^>]*>", " ", text))) == []


async def test_the_api_document_uses_the_terms(tmp_path: Path) -> None:
    async with (
        serving(demo_settings(tmp_path)) as running,
        httpx.AsyncClient(base_url=running.url, trust_env=False) as client,
    ):
        document = (await client.get("/openapi.json")).json()

    texts = list(descriptions(document))

    assert len(texts) > 100
    assert [(text, wrong) for text in texts if (wrong := faults(text))] == []
