from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

PROVISIONING = Path(__file__).parents[2] / "grafana" / "provisioning"


def load_datasources() -> dict[str, dict[str, Any]]:
    sources = yaml.safe_load((PROVISIONING / "datasources" / "datasources.yml").read_text())
    return {source["type"]: source for source in sources["datasources"]}


def test_exemplar_links_to_the_trace_store() -> None:
    sources = load_datasources()

    [destination] = sources["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]

    assert destination == {"name": "trace_id", "datasourceUid": sources["tempo"]["uid"]}


def test_exactly_one_source_is_the_default() -> None:
    assert [source["name"] for source in load_datasources().values() if source.get("isDefault")] == [
        "Prometheus"
    ]


def test_tempo_metrics_generator_features_are_off() -> None:
    options = load_datasources()["tempo"]["jsonData"]

    assert not options["nodeGraph"]["enabled"]
    assert not {"tracesToMetrics", "serviceMap"} & options.keys()


def test_dashboards_are_read_only_in_the_browser() -> None:
    [provider] = yaml.safe_load((PROVISIONING / "dashboards" / "dashboards.yml").read_text())["providers"]

    assert not provider["allowUiUpdates"]
    assert provider["options"]["path"] == "/etc/grafana/dashboards"
