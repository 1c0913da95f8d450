"""Exported rules in the formats of other stacks, and their comparison with the rules in use there."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import re
import tarfile
from collections.abc import AsyncIterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from queenright.alerting.export.alertmanager import queenright_section, render_config
from queenright.alerting.export.check import check_rules
from queenright.alerting.export.compare import compare, normalize_expression
from queenright.alerting.export.extra_files import Extras, read_texts
from queenright.alerting.export.kubernetes import Placement, kubernetes_files
from queenright.alerting.export.links import rule_links
from queenright.alerting.export.loaded_rules import (
    LoadedRule,
    UnreadableRulesError,
    parse_rule_groups,
    parse_rules_response,
    read_rule_files,
)
from queenright.alerting.export.mixin import archive, mixin_files
from queenright.alerting.files import templates_folder
from queenright.alerting.rules import Alert, Links, Selectors, rule_files, rule_groups
from queenright.alerting.settings import AlertingSettings
from queenright.cli.app import app
from queenright.grafana.files import dashboards_folder, provisioning_folder
from queenright.health.settings import HealthSettings, StallSettings
from queenright.server.ops.child_processes import Child
from queenright.server.ops.sockets import find_free_port
from tests.programs import VERSIONS, program, run
from tests.unpacked import unpack

HEALTH = HealthSettings()
SLOWER = HealthSettings(stall=StallSettings(unknown_seconds=1200))
GROUPS = rule_groups(HEALTH)
BUILT_IN = parse_rule_groups(GROUPS)
EXTRAS = Extras(
    dashboards=read_texts(dashboards_folder(), "*.json"),
    provisioning=read_texts(provisioning_folder(), "*.yml"),
)
FOLDER = kubernetes_files(
    GROUPS,
    EXTRAS,
    Placement(namespace="monitoring", labels={"release": "prometheus"}),
    selectors=Selectors(),
    service_url="http://queenright.agents:8420",
)
DURATION = re.compile(r"(0|(\d+y)?(\d+w)?(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?)")


def make_rule(name: str = "QueenrightLoop", **parts: Any) -> LoadedRule:
    fields = {"group": "queenright-agents", "is_alert": True, "expr": "up == 0", **parts}
    return LoadedRule(name=name, **fields)


# -- differences


def test_rules_equal_themselves() -> None:
    assert compare(BUILT_IN, BUILT_IN) == []


@given(st.sampled_from(BUILT_IN), st.data())
def test_blanks_are_not_a_difference(rule: LoadedRule, data: st.DataObject) -> None:
    blanks = st.sampled_from([" ", "\n", "  \n\t", "\n    "])
    code_parts = re.split(r'("[^"]*")', rule.expr)
    spread = "".join(
        part if at % 2 else re.sub(r"\s+", lambda _: data.draw(blanks), part)
        for at, part in enumerate(code_parts)
    )
    assert compare([rule], [replace(rule, expr=spread)]) == []


@pytest.mark.parametrize(
    ("expr", "other_expr"),
    [
        ("sum by(agent)(x{a='b'})", 'sum by (agent) (x{a="b"})'),
        ("x > 0.50", "x > .5e0".replace(".5e0", "0.5")),
        ("rate(x[60s])", "rate(x[1m])"),
        ("x offset 1h30m", "x offset 90m"),
        ("x > 0.00001", "x > 1e-05"),
    ],
)
def test_promql_formatting_is_not_a_difference(expr: str, other_expr: str) -> None:
    assert normalize_expression(expr) == normalize_expression(other_expr)


@pytest.mark.parametrize(
    ("expr", "other_expr"),
    [
        ("x >= 600", "x >= 900"),
        ("x > 600", "x >= 600"),
        ('x{a="b c"}', 'x{a="bc"}'),
        ("rate(x[5m])", "rate(x[6m])"),
        ("x and y", "x or y"),
        ("sum by (a) (x)", "sum by (b) (x)"),
    ],
)
def test_requested_change_is_a_difference(expr: str, other_expr: str) -> None:
    assert normalize_expression(expr) != normalize_expression(other_expr)


def test_changed_threshold_is_reported_as_a_change() -> None:
    differences = compare(parse_rule_groups(rule_groups(SLOWER)), BUILT_IN)

    changed_names = {difference.rule.name for difference in differences}
    assert {difference.kind for difference in differences} == {"changed"}
    assert changed_names == {"QueenrightWorkerStalled", "QueenrightLoop"}
    [stall_difference] = [
        difference for difference in differences if difference.rule.name == "QueenrightWorkerStalled"
    ]
    assert [
        (change.part, "900" in change.existing, "1200" in change.wanted)
        for change in stall_difference.changes
    ] == [("expr", True, True)]


def test_missing_rule_is_added_and_extra_rule_is_removed() -> None:
    in_use = [*(rule_ for rule_ in BUILT_IN if rule_.name != "QueenrightLoop"), make_rule("QueenrightOld")]

    assert [(rule_.kind, rule_.rule.name) for rule_ in compare(BUILT_IN, in_use)] == [
        ("added", "QueenrightLoop"),
        ("removed", "QueenrightOld"),
    ]


def test_missing_band_of_an_alert_is_named() -> None:
    bands = [rule for rule in BUILT_IN if rule.name == "QueenrightRetryStorm"]
    assert len(bands) == 3
    for missing_band in bands:
        [difference] = compare(bands, [band for band in bands if band != missing_band])
        assert (difference.kind, difference.rule) == ("added", missing_band)


def test_changed_label_is_reported_for_its_rule() -> None:
    in_use = [replace(rule, labels={**rule.labels, "severity": "critical"}) for rule in BUILT_IN]

    [difference] = [
        change for change in compare(BUILT_IN, in_use) if change.rule.name == "QueenrightRecoveryFailed"
    ]
    assert [(change.part, change.existing, change.wanted) for change in difference.changes] == [
        ("label severity", "critical", "warning")
    ]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"for_": 60}, ("for", "60 s", "0 s")),
        ({"keep_firing_for": 300}, ("keep_firing_for", "300 s", "0 s")),
        ({"group": "queenright-other"}, ("group", "queenright-other", "queenright-agents")),
        ({"annotations": {"summary": "x"}}, ("annotation summary", "x", "")),
    ],
)
def test_every_part_of_a_rule_is_compared(parts: dict[str, Any], expected: tuple[str, str, str]) -> None:
    [difference] = compare([make_rule()], [make_rule(**parts)])
    assert [(change.part, change.existing, change.wanted) for change in difference.changes] == [expected]


def test_duplicate_rule_is_reported_as_extra() -> None:
    assert [difference.kind for difference in compare([make_rule()], [make_rule(), make_rule()])] == [
        "duplicate"
    ]


def test_foreign_rules_are_ignored() -> None:
    assert (
        compare([], [make_rule("NodeDown", group="nodes"), make_rule("x", is_alert=False, group="mine")])
        == []
    )


# -- sources


def test_exported_files_contain_the_rules(tmp_path: Path) -> None:
    for name, text in rule_files(HEALTH).items():
        (tmp_path / name).write_text(text)
    assert compare(BUILT_IN, read_rule_files([tmp_path])) == []
    assert compare(BUILT_IN, read_rule_files(sorted(tmp_path.iterdir()))) == []


def test_folder_for_kubernetes_holds_the_rules(tmp_path: Path) -> None:
    for name, text in FOLDER.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    assert compare(BUILT_IN, read_rule_files([tmp_path])) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("groups: {", "it is not YAML"),
        ("a: 1", "is not a rule file"),
        ("groups: 5", "is not a rule file"),
        ("[]", "is not a rule file"),
        ("kind: PrometheusRule", "is not a rule file"),
        ("groups: [{name: x, rules: [{alert: y}]}]", "is not a rule file"),
    ],
)
def test_file_without_rules_is_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(text)
    with pytest.raises(UnreadableRulesError, match=words) as error_info:
        read_rule_files([file])
    assert str(file) in str(error_info.value)


def test_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableRulesError, match="No such file"):
        read_rule_files([tmp_path / "none.yml"])
    with pytest.raises(UnreadableRulesError, match=r"no file in .* contains rules"):
        read_rule_files([tmp_path])


@pytest.mark.parametrize("answer", [{}, [], "x", {"data": {"groups": [{"name": "x"}]}}, None])
def test_invalid_rules_response_is_rejected(answer: Any) -> None:
    with pytest.raises(UnreadableRulesError, match="Prometheus"):
        parse_rules_response(answer)


@pytest.fixture
async def prometheus(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a real Prometheus that has loaded the rules and scrapes nothing."""
    (tmp_path / "rules").mkdir()
    for name, text in rule_files(HEALTH).items():
        (tmp_path / "rules" / name).write_text(text)
    config = tmp_path / "prometheus.yml"
    config.write_text(f"rule_files: ['{tmp_path}/rules/*.yml']\n")
    port = find_free_port("127.0.0.1", 0, what="Prometheus", option="")
    child = await Child.start(
        "Prometheus",
        [
            program("prometheus", request.param),
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        tmp_path / "prometheus.log",
    )
    try:
        await child.wait_ready(f"http://127.0.0.1:{port}/-/ready")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1") as client:
            yield client
    finally:
        await child.stop()


@pytest.mark.parametrize("prometheus", VERSIONS, indirect=True)
async def test_real_prometheus_reports_the_rules_it_loaded(prometheus: httpx.AsyncClient) -> None:
    """Prometheus may print expressions in another form."""
    in_use = parse_rules_response((await prometheus.get("/rules")).json())

    assert len(in_use) == len(BUILT_IN)
    assert compare(BUILT_IN, in_use) == []
    assert {
        difference.rule.name for difference in compare(parse_rule_groups(rule_groups(SLOWER)), in_use)
    } == {
        "QueenrightWorkerStalled",
        "QueenrightLoop",
    }
    arguments = ["rules", "diff", "--prometheus", str(prometheus.base_url).removesuffix("/api/v1/")]
    arguments += ["--dashboards", Links().dashboards]
    result = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert result.exit_code == 0, result.output


# -- checks


def test_rules_have_no_fault_with_any_selectors() -> None:
    for selectors in (Selectors(), Selectors(service='job="a"', worker='job="b", cluster="c"')):
        assert check_rules(parse_rule_groups(rule_groups(HEALTH, selectors))) == []


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"expr": "queenright_agnets > 0"}, "unknown metric queenright_agnets"),
        ({"expr": "queenright_agents_bucket > 0"}, "unknown metric"),
        ({"expr": "sum(queenright_agents"}, "unbalanced brackets or quotes"),
        ({"expr": 'queenright_agents{state="x}'}, "unbalanced brackets or quotes"),
        ({"annotations": {}}, "the annotation runbook_url is missing"),
        ({"labels": {"source": "rules"}}, "the label severity is missing"),
        ({"name": "QueenrightNew"}, "the runbook QueenrightNew.md is missing"),
    ],
)
def test_faults_are_found_without_promtool(parts: dict[str, Any], words: str) -> None:
    [valid] = [rule for rule in BUILT_IN if rule.name == "QueenrightFleetDegraded"]
    other_rules = [rule for rule in BUILT_IN if not rule.is_alert]
    assert check_rules([valid, *other_rules]) == []
    assert any(words in fault for fault in check_rules([replace(valid, **parts), *other_rules]))


def test_two_alerts_with_equal_labels_are_a_fault() -> None:
    [valid] = [rule for rule in BUILT_IN if rule.name == "QueenrightWatchdog"]
    assert [fault.partition(":")[0] for fault in check_rules([valid, valid])] == ["QueenrightWatchdog"]


# -- links


@pytest.mark.parametrize(
    ("template", "dashboards"),
    [
        ("", ""),
        ("https://g.example/d/queenright-agent?var-agent={agent}", "https://g.example/d"),
        ("https://g.example/sub/d/mine/slug?x={agent}", "https://g.example/sub/d"),
        ("https://elsewhere.example/{agent}", ""),
    ],
)
def test_dashboard_url_defaults_to_that_of_notifications(template: str, dashboards: str) -> None:
    assert rule_links(AlertingSettings(dashboard_url=template)).dashboards == dashboards


def test_arguments_win_over_settings() -> None:
    links = rule_links(
        AlertingSettings(console_url="https://q.example"), dashboards="https://other.example/d"
    )
    assert (links.runbooks, links.dashboards) == ("https://q.example/runbooks", "https://other.example/d")
    assert rule_links(AlertingSettings(), runbooks="https://w.example/r").runbooks == "https://w.example/r"


# -- archive


def test_archive_is_reproducible_and_complete() -> None:
    files = mixin_files(rule_files(HEALTH), EXTRAS, service_url="http://queenright:8420")
    data = archive(files)

    assert data == archive(dict(reversed(list(files.items()))))
    assert gzip.decompress(data)[:14] == b"queenright-mix"
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = tar.getmembers()
        assert all(
            (member.mtime, member.uid, member.gid, member.mode, member.isfile()) == (0, 0, 0, 0o644, True)
            for member in members
        )
        names = {member.name.removeprefix("queenright-mixin/") for member in members}
    assert names == set(files)
    assert {"README.md", "alertmanager/alertmanager.yml", "alertmanager/templates/queenright.tmpl"} <= names
    assert {f"runbooks/{rule.name}.md" for rule in BUILT_IN if rule.is_alert} <= names
    assert {f"grafana/dashboards/{name}" for name in EXTRAS.dashboards} <= names
    assert {f"prometheus/rules/{name}" for name in rule_files(HEALTH)} <= names
    assert any(name.startswith("grafana/provisioning/") for name in names)


@pytest.mark.parametrize("version", VERSIONS)
def test_archive_is_valid_for_promtool_and_amtool(tmp_path: Path, version: str) -> None:
    packed_files = tmp_path / "mixin.tar.gz"
    packed_files.write_bytes(archive(mixin_files(rule_files(HEALTH), EXTRAS, service_url="http://q")))
    unpack(packed_files, tmp_path)
    mixin = tmp_path / "queenright-mixin"
    rules = sorted((mixin / "prometheus" / "rules").glob("*.yml"))

    result = run("promtool", "check", "rules", "--lint=all", "--lint-fatal", *rules, version=version)
    assert result.returncode == 0, result.stdout + result.stderr
    config = mixin / "alertmanager" / "alertmanager.yml"
    config.write_text(
        config.read_text().replace("/etc/alertmanager/templates", f"{mixin}/alertmanager/templates")
    )
    result = run("amtool", "check-config", config, version=version)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 templates" in result.stdout


# -- dead man's switch


def get_deadman_url(files: dict[str, str], name: str) -> str:
    """Return the URL of the Watchdog's receiver in an exported file."""
    complete = yaml.safe_load(files[name])
    config = complete.get("alertmanager", {}).get("config", complete)
    [receiver] = [receiver for receiver in config["receivers"] if receiver["name"].endswith("deadman")]
    [webhook] = receiver["webhook_configs"]
    return str(webhook["url"])


def export_all(tmp_path: Path, *words: str) -> tuple[dict[str, str], dict[str, str]]:
    """Run both exports with an Alertmanager configuration; return their files and output."""
    files, objects_by_name = {}, {}
    for form, name in (("mixin", "mixin.tar.gz"), ("kubernetes", "kubernetes")):
        target = tmp_path / name
        result = CliRunner().invoke(app, ["rules", "export", "--format", form, "-o", str(target), *words])
        assert result.exit_code == 0, result.output
        objects_by_name[form] = result.stderr
    unpack(tmp_path / "mixin.tar.gz", tmp_path)
    for path in (
        "queenright-mixin/alertmanager/alertmanager.yml",
        "kubernetes/alertmanager-snippet.yaml",
        "kubernetes/helm-values-alertmanager.yaml",
    ):
        files[path] = (tmp_path / path).read_text()
    return files, objects_by_name


def test_watchdog_goes_to_the_deadman_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = "https://hc-ping.com/5d2f3c1e"
    files, output = export_all(tmp_path, "--deadman-url", url)

    assert {get_deadman_url(files, name) for name in files} == {url}
    assert "deadman" not in "".join(output.values())


def test_missing_deadman_url_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the URL, Queenright would look alive, and nothing would raise the alarm."""
    monkeypatch.chdir(tmp_path)
    files, output = export_all(tmp_path)

    for name, text in files.items():
        host = httpx.URL(get_deadman_url(files, name)).host
        assert host.endswith(".invalid"), name
        assert "deadman" in host
        # The file has the notice too, for readers who did not see the command's output.
        assert any("--deadman-url" in line for line in text.splitlines() if line.startswith("#")), name
    for text in output.values():
        assert "would go unnoticed" in text
        assert "--deadman-url" in text


@pytest.mark.parametrize("url", ["hc-ping.com/x", "ftp://x", "http://", "https://a b"])
def test_invalid_deadman_url_is_rejected(tmp_path: Path, url: str) -> None:
    words = ["rules", "export", "--format", "mixin", "-o", str(tmp_path / "m.tar.gz"), "--deadman-url", url]
    result = CliRunner().invoke(app, words)

    assert result.exit_code != 0
    assert not (tmp_path / "m.tar.gz").exists()
    assert "--deadman-url" in (result.output + str(result.exception))


@pytest.mark.parametrize("version", VERSIONS)
def test_configuration_without_a_deadman_url_is_valid_for_amtool(tmp_path: Path, version: str) -> None:
    config = tmp_path / "alertmanager.yml"
    config.write_text(render_config("http://queenright:8420", templates=templates_folder()))
    result = run("amtool", "check-config", config, version=version)
    assert result.returncode == 0, result.stdout + result.stderr


# -- Kubernetes


def list_kubernetes_objects() -> dict[str, dict[str, Any]]:
    names_in_kustomization = yaml.safe_load(FOLDER["kustomization.yaml"])["resources"]
    return {name: yaml.safe_load(FOLDER[name]) for name in names_in_kustomization}


def assert_keys(value: dict[str, Any], required: set[str], optional: AbstractSet[str] = frozenset()) -> None:
    assert required <= value.keys() <= required | optional, value.keys()


def test_kustomization_lists_all_objects() -> None:
    kustomization = yaml.safe_load(FOLDER["kustomization.yaml"])
    assert_keys(kustomization, {"apiVersion", "kind", "resources"})
    assert (kustomization["apiVersion"], kustomization["kind"]) == (
        "kustomize.config.k8s.io/v1beta1",
        "Kustomization",
    )
    other_names = {"kustomization.yaml", "alertmanager-snippet.yaml", "helm-values.yaml"}
    other_names |= {"helm-values-alertmanager.yaml", *(f"templates/{name}" for name in EXTRAS.templates)}
    assert set(kustomization["resources"]) == set(FOLDER) - other_names


def test_every_object_is_named_labelled_and_small_enough_for_kubectl() -> None:
    identities = set()
    for name, item in list_kubernetes_objects().items():
        assert_keys(item, {"apiVersion", "kind", "metadata"}, {"spec", "data"})
        metadata = item["metadata"]
        assert_keys(metadata, {"name", "namespace", "labels"}, {"annotations"})
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", metadata["name"])
        assert metadata["namespace"] == "monitoring"
        assert metadata["labels"]["release"] == "prometheus"
        assert all(isinstance(value, str) for value in metadata["labels"].values())
        identities.add((item["kind"], metadata["name"]))
        # kubectl stores a copy of the applied object in an annotation, which is limited to 256 KiB.
        assert len(json.dumps(item)) < 262_144, name
    assert len(identities) == len(list_kubernetes_objects())


def test_exported_rules_follow_operator_options() -> None:
    """The schema of PrometheusRule, monitoring.coreos.com/v1: its keys, and the form of durations."""
    rule_object = list_kubernetes_objects()["prometheusrule.yaml"]
    assert (rule_object["apiVersion"], rule_object["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert_keys(rule_object["spec"], {"groups"})
    names = [group["name"] for group in rule_object["spec"]["groups"]]
    assert len(set(names)) == len(names)
    for group in rule_object["spec"]["groups"]:
        assert_keys(group, {"name", "rules"}, {"interval", "limit", "labels", "query_offset"})
        for rule in group["rules"]:
            if "alert" in rule:
                assert_keys(rule, {"alert", "expr", "labels", "annotations"}, {"for", "keep_firing_for"})
            else:
                assert_keys(rule, {"record", "expr"}, {"labels"})
            texts = {**rule.get("labels", {}), **rule.get("annotations", {}), "expr": rule["expr"]}
            assert all(isinstance(text, str) for text in texts.values())
            for part in ("for", "keep_firing_for"):
                assert DURATION.fullmatch(rule.get(part, "0"))


def test_monitors_use_the_job_names_of_rules_and_dashboards() -> None:
    service, pods = (
        list_kubernetes_objects()["servicemonitor.yaml"],
        list_kubernetes_objects()["podmonitor.yaml"],
    )
    assert (service["kind"], pods["kind"]) == ("ServiceMonitor", "PodMonitor")
    assert_keys(service["spec"], {"selector", "endpoints", "namespaceSelector"})
    assert_keys(pods["spec"], {"selector", "podMetricsEndpoints", "namespaceSelector"})
    jobs = []
    for endpoint in (*service["spec"]["endpoints"], *pods["spec"]["podMetricsEndpoints"]):
        assert_keys(endpoint, {"port", "path", "interval", "relabelings"})
        [relabelling] = endpoint["relabelings"]
        assert_keys(relabelling, {"targetLabel", "replacement"})
        assert relabelling["targetLabel"] == "job"
        jobs.append(relabelling["replacement"])
    assert jobs == ["queenright", "queenright-workers"]


def test_renamed_job_is_in_rules_and_monitors() -> None:
    selectors = Selectors(service='cluster="a", job="hive"', worker='job="bees"')
    files = kubernetes_files(
        rule_groups(HEALTH, selectors), EXTRAS, Placement(), selectors=selectors, service_url="http://q"
    )

    assert "replacement: hive" in files["servicemonitor.yaml"]
    assert "replacement: bees" in files["podmonitor.yaml"]
    assert 'up{cluster="a", job="hive"} == 0' in files["prometheusrule.yaml"]
    assert "namespace" not in yaml.safe_load(files["prometheusrule.yaml"])["metadata"]


def test_every_dashboard_is_a_config_map_for_grafanas_sidecar() -> None:
    rows = [row for row in list_kubernetes_objects().values() if row["kind"] == "ConfigMap"]
    assert len(rows) == len(EXTRAS.dashboards)
    for row in rows:
        assert row["metadata"]["labels"]["grafana_dashboard"] == "1"
        [(name, text)] = row["data"].items()
        assert text == EXTRAS.dashboards[name.removeprefix("queenright-")]


def test_helm_gets_the_same_rules_monitors_and_dashboards() -> None:
    values = yaml.safe_load(FOLDER["helm-values.yaml"])
    assert_keys(values, {"additionalPrometheusRulesMap", "prometheus", "grafana"})
    assert (
        values["additionalPrometheusRulesMap"]["queenright"]
        == list_kubernetes_objects()["prometheusrule.yaml"]["spec"]
    )
    prometheus = values["prometheus"]
    assert_keys(prometheus, {"prometheusSpec", "additionalServiceMonitors", "additionalPodMonitors"})
    [service], [pods] = prometheus["additionalServiceMonitors"], prometheus["additionalPodMonitors"]
    assert service["endpoints"] == list_kubernetes_objects()["servicemonitor.yaml"]["spec"]["endpoints"]
    assert (
        pods["podMetricsEndpoints"]
        == list_kubernetes_objects()["podmonitor.yaml"]["spec"]["podMetricsEndpoints"]
    )
    boards = values["grafana"]["dashboards"]["queenright"]
    assert {json.loads(board["json"])["uid"] for board in boards.values()} == {
        json.loads(text)["uid"] for text in EXTRAS.dashboards.values()
    }
    [provider] = values["grafana"]["dashboardProviders"]["dashboardproviders.yaml"]["providers"]
    assert provider["options"]["path"].endswith("/dashboards/queenright")


def find_receivers(config: Path, version: str, **labels: str) -> str:
    result = run(
        "amtool",
        *("config", "routes", "test", f"--config.file={config}"),
        *(f"{name}={value}" for name, value in labels.items()),
        version=version,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize("version", VERSIONS)
def test_snippet_leaves_foreign_alerts_alone(tmp_path: Path, version: str) -> None:
    values = yaml.safe_load(FOLDER["helm-values-alertmanager.yaml"])["alertmanager"]
    templates = tmp_path / "queenright.tmpl"
    [(_, text)] = values["templateFiles"].items()
    templates.write_text(text)
    foreign_receivers = values["config"]
    foreign_receivers["templates"] = [str(templates)]
    foreign_receivers["receivers"].append({"name": "theirs"})
    foreign_receivers["route"]["receiver"] = "theirs"
    config = tmp_path / "alertmanager.yml"
    config.write_text(yaml.safe_dump(foreign_receivers))

    result = run("amtool", "check-config", config, version=version)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (
        find_receivers(config, version, alertname="NodeDown", severity="critical", source="monitor")
        == "theirs"
    )
    for alert in (rule for group in GROUPS for rule in group.rules if isinstance(rule, Alert)):
        if alert.name in ("QueenrightFleetDegraded", "QueenrightWatchdog", "QueenrightLoop"):
            labels = {"severity": alert.severity, "source": alert.source}
            receiver = find_receivers(config, version, alertname=alert.name, **labels)
            assert receiver.startswith("queenright-"), alert.name
    queen_receivers = {"alertname": "QueenrightIntervention", "source": "queen", "severity": "critical"}
    assert (
        find_receivers(config, version, **queen_receivers, ticket_id="t1")
        == "queenright-pagerduty,queenright-slack"
    )
    assert find_receivers(config, version, **queen_receivers) == "queenright-slack-and-pagerduty"


def test_snippet_has_its_own_slack_url() -> None:
    part = queenright_section(render_config("http://queenright:8420"))

    assert set(part) == {"route", "inhibit_rules", "receivers"}
    assert all(receiver["name"].startswith("queenright-") for receiver in part["receivers"])
    slack = [
        slack_config for receiver in part["receivers"] for slack_config in receiver.get("slack_configs", ())
    ]
    assert slack
    assert {receiver_config["api_url_file"] for receiver_config in slack} == {
        "/etc/alertmanager/secrets/queenright-alerting/slack_api_url"
    }
    names = {receiver["name"] for receiver in part["receivers"]}
    used_receivers = set(re.findall(r"'receiver': '([^']+)'", str(part["route"])))
    assert used_receivers <= names


def test_snippet_equals_the_part_in_the_full_configuration() -> None:
    snippet = yaml.safe_load(FOLDER["alertmanager-snippet.yaml"])
    part = queenright_section(render_config("http://queenright.agents:8420"))
    assert snippet["route"] == {"routes": [part["route"]]}
    assert snippet["inhibit_rules"] == part["inhibit_rules"]
    assert snippet["receivers"] == part["receivers"]
    assert "&id" not in FOLDER["alertmanager-snippet.yaml"]
