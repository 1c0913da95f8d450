"""Matchers in the settings of exported rules: invalid ones are rejected with a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from queenright.alerting.export.matchers import InvalidMatchersError, Scope, read_matchers
from tests.programs import run

VALID_MATCHERS = [
    ("", ""),
    (" ", ""),
    ('job="x"', 'job="x"'),
    ("job='x'", "job='x'"),
    ("job=`a\\d`", "job=`a\\d`"),
    ('job = "x" , cluster!="y",', 'job="x", cluster!="y"'),
    ('namespace=~"a|b",job!~"x.*"', 'namespace=~"a|b", job!~"x.*"'),
    (r"""a='say "hi"'""", r"""a='say "hi"'"""),
    (r'a="\x41\u00e9\n"', r'a="\x41\u00e9\n"'),
    ('cluster=""', 'cluster=""'),
    (r'job=~"(?i)\\pL+[[:digit:]]{2,3}\\Qa(\\E|(?s-i:b)|\\x{10FFFF}\\z"', None),
    ('job=~"(?P<name>x)+?"', None),
    ('a=""', None),
    ('job!=""', None),
]
SYNTAX = [
    'job="x',
    "job=x",
    "job",
    "job==x",
    '{job="x"}',
    'job="x"} or vector(1',
    'job="x",,a="b"',
    ",",
    'job="x" a="b"',
    "job='x\"",
    '9a="x"',
    'a-b="x"',
    'é="x"',
]


def list_rejected_matchers(file: Path, matchers: list[str]) -> set[int]:
    """Return the indices of the matchers that the real promtool rejects."""
    rules = [{"record": "x", "expr": f"queenright_agents{{{matcher}}}"} for matcher in matchers]
    file.write_text(yaml.safe_dump({"groups": [{"name": "x", "rules": rules}]}))
    result = run("promtool", "check", "rules", file)
    return {int(number) - 1 for number in re.findall(r"rule (\d+),", result.stdout + result.stderr)}


@pytest.mark.parametrize(("matchers_text", "expected"), VALID_MATCHERS)
def test_valid_matchers_are_accepted(matchers_text: str, expected: str | None) -> None:
    matchers = read_matchers(matchers_text, "service")
    assert expected is None or matchers == expected
    assert read_matchers(matchers, "service") == matchers


@pytest.mark.parametrize("matchers_text", SYNTAX)
def test_invalid_matchers_are_rejected(matchers_text: str) -> None:
    with pytest.raises(InvalidMatchersError) as error_info:
        read_matchers(matchers_text, "service")
    assert str(error_info.value).endswith(".")


def test_prometheus_agrees_about_valid_matchers(tmp_path: Path) -> None:
    """All matchers are in one file: promtool names every rule that it rejects."""
    inputs = [matchers_text for matchers_text, _ in VALID_MATCHERS]
    parsed_matchers = [read_matchers(matchers_text, "service") for matchers_text in inputs]
    rejected_indices = list_rejected_matchers(tmp_path / "rules.yml", [*inputs, *parsed_matchers, *SYNTAX])

    assert rejected_indices == set(range(2 * len(VALID_MATCHERS), 2 * len(VALID_MATCHERS) + len(SYNTAX)))


@pytest.mark.parametrize(
    ("matchers_text", "scope", "expected"),
    [
        ('__name__="x"', "service", "select the metrics themselves"),
        ('__address__="x"', "worker", "start with __"),
        ('agent="x"', "service", "label of Queenright's metrics"),
        ('kind!="stall"', "service", "namespace or cluster"),
        ('tool="x"', "worker", "label of Queenright's metrics"),
        ('le="1"', "worker", "label of Queenright's metrics"),
        ('job=""', "service", "nothing would match"),
        ("instance=~''", "worker", "nothing would match"),
    ],
)
def test_matchers_without_a_target_are_rejected(matchers_text: str, scope: Scope, expected: str) -> None:
    with pytest.raises(InvalidMatchersError, match=expected):
        read_matchers(matchers_text, scope)


def test_agent_label_is_allowed_for_workers() -> None:
    assert read_matchers('agent=~"team-a-.+"', "worker") == 'agent=~"team-a-.+"'
