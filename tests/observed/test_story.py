"""What must be true of the story for anything else to be worth asking."""

from __future__ import annotations

from queenright.instrumentation import names
from tests.story.told import Story


def test_prometheus_has_seen_every_metric_there_is(story: Story) -> None:
    known = story.prometheus.get("/label/__name__/values").json()["data"]

    suffixes = {"histogram": "_bucket"}
    expected = {f"{m.name}{suffixes.get(m.kind, '')}" for m in names.METRICS.values()}

    assert sorted(expected - set(known)) == []
