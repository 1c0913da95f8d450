"""The table of names."""

from __future__ import annotations

import re

from queenright.instrumentation import names


def test_every_name_is_defined_once() -> None:
    spellings = [
        value
        for name, value in vars(names).items()
        if name.isupper()
        and isinstance(value, str)
        and name not in ("SOURCE_QUEEN", "SOURCE_RULES", "SOURCE_MONITOR")
    ]

    assert len(spellings) == len(set(spellings))


def test_every_metric_is_in_the_table_and_follows_prometheus_naming() -> None:
    metrics = [value for value in vars(names).values() if isinstance(value, names.MetricName)]

    assert len(metrics) == len(names.METRICS)
    for metric in metrics:
        assert re.fullmatch(r"queenright_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.help.endswith(".")
        assert len(set(metric.labels)) == len(metric.labels)


def test_no_label_is_an_id() -> None:
    labels = {label for metric in names.METRICS.values() for label in metric.labels}

    assert not [
        label for label in labels if label.endswith("_id") or label in ("session", "incarnation", "ticket")
    ]


def test_standard_names_are_not_extended() -> None:
    own_names = [
        v for n, v in vars(names).items() if n.isupper() and isinstance(v, str) and "queenright" in v
    ]

    assert not [value for value in own_names if value.startswith("gen_ai.")]
