"""What the service and the documentation report about recorded runs of real frameworks."""

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
    """B84 to B91, B94: the service has its own judge, tickets and clock, and receives the runs over HTTP."""
    assert await measure(PAIRS[name], tmp_path) == EXPECTED[name]


COMPARED_FIELDS = ("names", "steps", "tools", "model calls", "failed model calls", "outcome")
ORDER_DEPENDENT_PAIRS = {"anthropic-openllmetry"}
"""
Two libraries report each call, and their output tokens differ by one. Each call is a separate trace, and its
start time decides to which run it belongs. Start records in another order therefore give other runs.
"""


NESTED_SPAN_PAIRS = {"llama-index-openinference"}
"""
One library reports a model call as two nested spans, and only the inner span has the tokens. The outer span
is sent last. If it arrives in a request before the inner span, both count.
"""


@given(path=st.sampled_from(PATHS), seed=st.integers(0, 2**32))
def test_order_splits_repeats_and_delays_do_not_change_a_run(path: Path, seed: int) -> None:
    """
    B84, B86: spans and records are one run even if they arrive late, in parts, out of order or repeatedly.
    """
    is_order_dependent = path.parent.name in ORDER_DEPENDENT_PAIRS
    assume(not (is_order_dependent and path.stem.endswith("-watched")))
    assume(path.parent.name not in NESTED_SPAN_PAIRS)
    records, random = load_fixture(path).records, Random(seed)
    moved = [
        Record(record.at + random.uniform(0.0, 10.0), piece.path, piece.body)
        for record in records
        for piece in split_record(record)
        for _ in range(random.choice((1, 1, 2)))
    ]
    moved.sort(key=lambda record: record.at)

    actual_run, expected_run = summarize(replay(moved)), summarize(replay(records))
    assert {name: actual_run[name] for name in COMPARED_FIELDS} == {
        name: expected_run[name] for name in COMPARED_FIELDS
    }
    assert actual_run["tokens"] == pytest.approx(
        expected_run["tokens"], rel=0.01 if is_order_dependent else 0
    )


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
        paths = {one for string in strings for one in ABSOLUTE.findall(string) if not HARMLESS.match(one)}
        # Texts are truncated after scrubbing, and end in dots.
        assert [one for one in paths if not one.startswith("/opt/tools/") and not one.endswith("...")] == []


def test_every_pair_is_recorded_in_every_scenario() -> None:
    runs = list_runs(list(PAIRS), list(SCENARIOS))
    expected_fixtures = {
        (pair.name, f"{scenario.name}-{variant}" if variant else scenario.name)
        for pair, scenario, variant in runs
    }

    assert {(path.parent.name, path.stem) for path in PATHS} == expected_fixtures
    assert all(pins_file(pair).is_file() for pair in PAIRS.values())


def test_documented_tables_equal_the_expected_results() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")

    assert set(EXPECTED) == set(PAIRS)
    assert HEADER in text
    assert render_table() in text
    assert render_variables() in text


def test_readme_links_to_the_table() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert re.search(r"\(docs/frameworks\.md\)", readme)
