"""Commands, API, console and docs use the terms of the glossary in docs/concepts.md."""

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
from queenright.server.serving import serving
from tests.packaging.test_documents import PAGES, ROOT, relative_name
from tests.server.conftest import demo_settings

GLOSSARY = ROOT / "docs" / "concepts.md"
BANNED_WORDS: dict[str, tuple[str, ...]] = {
    "worker": ("watched process", "supervised agent"),
    "session": ("life of an agent",),
    "incarnation": ("new life", "second life", "earlier life", "this life", "one life", "life of the worker"),
    "step": ("work unit", "unit of labour"),
    "verdict": ("step judgement",),
    "activity": ("sign of life",),
    "progress": ("gets further", "getting further"),
    "waiting": ("rightly idle", "rightly waits"),
    "held": ("frozen by",),
    "health": ("well-being", "how it is doing"),
    "outcome": ("manner of end",),
    "finding": ("detector hit", "detection result", "anomaly", "anomalies"),
    "severity": ("badness",),
    "ticket": ("trouble ticket", "case file", "incident ticket"),
    "triage": ("queen's verdict",),
    "intervention": ("countermeasure",),
    "nudge": ("poke",),
    "escalate": ("hand up", "pass upwards"),
    "terminate": ("put down", "do away with"),
    "recover": ("brought back", "bring back", "revive", "resurrect", "reboot"),
    "incident": ("crowd",),
    "storm": ("avalanche", "alert storm", "mass failure"),
    "notification": ("what people got", "what people were told"),
    "outbox": ("send queue", "delivery queue", "notification queue"),
    "silence": ("nobody hears", "keep quiet about", "mute", "snooze"),
    "acknowledge": ("in hand", "ack", "acked"),
    "checkpoint": ("save point", "savepoint", "restore point"),
    "circuit breaker": ("fuse",),
    "judge": ("assessor",),
    "queen": ("triager", "triage agent"),
    "orchestrator": ("coordinator",),
    "provider": ("model vendor", "model supplier", "llm vendor"),
    "cluster": ("service pool", "server farm"),
    "partition": ("shard", "data partition"),
    "owner": ("leader", "active process", "main process"),
    "standby": ("follower", "hot spare", "secondary process"),
}
"""Banned words, by the term of the glossary to use instead."""
PACKAGES = ("instrumentation", "runtime", "health", "judge", "alerting", "grafana", "server")
TEXT_PACKAGES = (
    "alerting/queenright",
    "health/queenright",
    "judge/queenright",
    "runtime/queenright",
    "server/queenright",
)
CONSOLE = sorted(path for path in ROOT.glob("server/console/src/**/*.ts*") if ".test." not in path.name)
OTHER_TEXTS = sorted(
    path
    for pattern in (
        "alerting/runbooks/*.md",
        "alerting/prometheus/rules/*.yml",
        "alerting/alertmanager/**/*.tmpl",
        "judge/queenright/judge/prompts/*.md",
        "judge/queenright/judge/*.toml",
        "compose/*.y*ml",
        "docker-compose.yml",
        "Makefile",
    )
    for path in ROOT.glob(pattern)
)
TEMPLATES = sorted(ROOT.glob("server/queenright/server/**/*.html"))


TERMS_BY_BANNED_WORD = {word: term for term, words in BANNED_WORDS.items() for word in words}
PATTERN = re.compile(
    r"\b(" + "|".join(map(re.escape, TERMS_BY_BANNED_WORD)).replace(r"\ ", r"\s+") + r")\b", re.IGNORECASE
)


def find_banned_words(text: str) -> list[str]:
    """Return each banned word in a text, with the term to use instead."""
    words = (" ".join(match[0].lower().split()) for match in PATTERN.finditer(text))
    return [f"write {TERMS_BY_BANNED_WORD[word]!r} instead of {word!r}" for word in words]


def list_helps(command: Any, words: str = "queenright") -> Iterator[tuple[str, str]]:
    """Yield each command with its help and the help of its options."""
    options = [getattr(parameter, "help", None) or "" for parameter in command.params]
    yield words, "\n".join([command.help or "", command.epilog or "", *options])
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from list_helps(subcommand, f"{words} {name}")


def list_descriptions(document: Any) -> Iterator[str]:
    """Yield every summary and description in the API document."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key in ("summary", "description") and isinstance(value, str):
                yield value
            else:
                yield from list_descriptions(value)
    elif isinstance(document, list):
        for value in document:
            yield from list_descriptions(value)


def test_glossary_has_each_term() -> None:
    table = GLOSSARY.read_text("utf-8").split("## Glossary\n", 1)[1]

    assert re.findall(r"^\| ([^|]+) \| [^|]+ \|$", table, re.MULTILINE)[2:] == list(BANNED_WORDS)


@pytest.mark.parametrize("page", PAGES, ids=relative_name)
def test_pages_use_the_glossary_terms(page: Path) -> None:
    text = page.read_text("utf-8")
    text = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)

    assert find_banned_words(text) == []


@pytest.mark.parametrize("file", OTHER_TEXTS, ids=relative_name)
def test_runbooks_messages_and_prompts_use_the_terms(file: Path) -> None:
    assert find_banned_words(file.read_text("utf-8")) == []


def test_help_texts_use_the_terms() -> None:
    faults_by_command = {
        words: find_banned_words(text) for words, text in list_helps(typer.main.get_command(app))
    }

    assert len(faults_by_command) > 50
    assert {words: faults for words, faults in faults_by_command.items() if faults} == {}


def list_docstrings(file: Path) -> Iterator[str]:
    """Yield the docstrings of a module, its classes, functions and attributes."""
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
        (str(file), faults)
        for file in files
        for text in list_docstrings(file)
        if (faults := find_banned_words(text))
    ] == []


def list_strings(file: Path) -> Iterator[str]:
    """Yield the strings of a module, except docstrings and patterns for user input."""
    nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
    docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node not in docstrings
            and "(?:" not in node.value
        ):
            yield node.value


@pytest.mark.parametrize("package", TEXT_PACKAGES)
def test_strings_use_the_terms(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))

    assert files
    assert [
        (str(file), faults)
        for file in files
        for text in list_strings(file)
        if (faults := find_banned_words(text))
    ] == []


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_templates_use_the_terms(template: Path) -> None:
    text = re.sub(r"<(script|style)\b.*?</\1>|{#.*?#}", "", template.read_text("utf-8"), flags=re.DOTALL)

    assert find_banned_words(html.unescape(re.sub(r"<[^>]*>", " ", text))) == []


@pytest.mark.parametrize("source", CONSOLE, ids=lambda path: path.name)
def test_console_uses_the_terms(source: Path) -> None:
    # The whole source is checked, because names in code are terms too.
    text = re.sub(r"^import .*$", "", source.read_text("utf-8"), flags=re.MULTILINE)

    assert find_banned_words(text) == []


async def test_api_document_uses_the_terms(tmp_path: Path) -> None:
    async with (
        serving(demo_settings(tmp_path)) as running_service,
        httpx.AsyncClient(base_url=running_service.url, trust_env=False) as client,
    ):
        document = (await client.get("/openapi.json")).json()

    texts = list(list_descriptions(document))

    assert len(texts) > 100
    assert [(text, faults) for text in texts if (faults := find_banned_words(text))] == []
