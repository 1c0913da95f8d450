"""Recorded runs of real frameworks: the service's results, and the documentation about them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.clients.fixtures import Record
from tests.clients.recording import FOLDER_PREFIX
from tests.clients.scenarios import SCENARIOS
from tests.clients.test_fixtures import ABSOLUTE, EMAILS, HARMLESS, KEYS, list_texts
from tests.frameworks.fixtures import FOLDER, fixture_path, load_fixture
from tests.frameworks.install import format_versions, pins_file
from tests.frameworks.matrix import EXPECTED, HEADER, measure, render_table, render_variables
from tests.frameworks.pairs import PAIRS, list_runs
from tests.isolation import ROOT
from tests.server.telemetry.replay import replay, split_record, summarize

PATHS = sorted(FOLDER.glob("*/*.jsonl"))
DOCUMENT = ROOT / "docs" / "frameworks.md"


@pytest.mark.parametrize("name", PAIRS)
async def test_service_gives_the_expected_result_for_a_pair(name: str, tmp_path: Path) -> None:
    """B84 to B91, B94: over HTTP, in a service with its own judge, tickets and clock."""
    assert await measure(PAIRS[name], tmp_path) == EXPECTED[name]


COMPARED_FIELDS = ("names", "steps", "tools", "model calls", "failed model calls", "outcome")
UNORDERED = {"anthropic-openllmetry"}
"""
Both of its libraries report each call, with one output token more or less. Each call is a trace of its own:
when it began says of which run it is, so that records of begins out of order make others of it.
"""


NESTED = {"llama-index-openinference"}
"""
One library makes two spans of a model call, one inside the other, and only the inner one has the tokens. The
outer one is sent last; where it arrives in a request before the inner one, both count.
"""


@given(path=st.sampled_from(PATHS), seed=st.integers(0, 2**32))
def test_order_splits_repeats_and_delays_do_not_change_a_run(path: Path, seed: int) -> None:
    """
    B84, B86: spans and records that arrive late, in pieces, in another order and repeatedly are one run.
    """
    is_unordered = path.parent.name in UNORDERED
    assume(not (is_unordered and path.stem.endswith("-watched")))
    assume(path.parent.name not in NESTED)
    given_records, chance = load_fixture(path).records, Random(seed)
    moved = [
        Record(record.at + chance.uniform(0.0, 10.0), piece.path, piece.body)
        for record in given_records
        for piece in split_record(record)
        for _ in range(chance.choice((1, 1, 2)))
    ]
    moved.sort(key=lambda record: record.at)

    found, expected = summarize(replay(moved)), summarize(replay(given_records))
    assert {name: found[name] for name in COMPARED_FIELDS} == {
        name: expected[name] for name in COMPARED_FIELDS
    }
    assert found["tokens"] == pytest.approx(expected["tokens"], rel=0.01 if is_unordered else 0)


@pytest.mark.parametrize("pair", PAIRS)
def test_fixtures_have_pinned_versions_and_no_machine_names(pair: str) -> None:
    for path in FOLDER.glob(f"{pair}/*.jsonl"):
        fixture = load_fixture(path)
        text = path.read_text(encoding="utf-8")
        strings = [string for line in text.splitlines() for string in list_texts(json.loads(line))]

        assert fixture_path(fixture.client, fixture.name) == path
        assert fixture.version == format_versions(PAIRS[fixture.client])
        assert FOLDER_PREFIX not in text
        assert str(ROOT) not in text
        assert KEYS.findall(text) == []
        assert set(EMAILS.findall(text)) <= {"user@example.com"}
        found = {one for string in strings for one in ABSOLUTE.findall(string) if not HARMLESS.match(one)}
        # Texts are truncated after scrubbing, and end in dots.
        assert [one for one in found if not one.startswith("/opt/tools/") and not one.endswith("...")] == []


def test_every_pair_is_recorded_in_every_scenario() -> None:
    runs = list_runs(list(PAIRS), list(SCENARIOS))
    expected = {(pair.name, f"{one.name}-{variant}" if variant else one.name) for pair, one, variant in runs}

    assert {(path.parent.name, path.stem) for path in PATHS} == expected
    assert all(pins_file(pair).is_file() for pair in PAIRS.values())


def test_documented_tables_equal_the_tested_ones() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")

    assert set(EXPECTED) == set(PAIRS)
    assert HEADER in text
    assert render_table() in text
    assert render_variables() in text


def test_readme_links_to_the_table() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert re.search(r"\(docs/frameworks\.md\)", readme)
