from __future__ import annotations

import ast
import inspect
import json
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from queenright.alerting.rules import Alert, rule_groups
from queenright.health.breakers.registry import BreakerName
from queenright.health.settings import HealthSettings
from queenright.runtime.breaker_protocols import BreakerKind
from queenright.server.settings import InvalidSettingsError, Settings, load_settings

SPEC_BLOCK = """
health_monitoring:
  enabled: true
  heartbeat:
    interval_seconds: 300
    timeout_seconds: 600
  health_check:
    interval_seconds: 60
    checkpoint_stale_threshold_seconds: 1800
  intervention:
    nudge:
      enabled: true
      max_attempts: 3
      interval_seconds: 600
    escalation:
      timeout_seconds: 900
    termination:
      cleanup_timeout_seconds: 30
  circuit_breaker:
    default:
      failure_threshold: 3
      recovery_timeout_seconds: 60
      half_open_requests: 1
    overrides:
      tool_execution:
        failure_threshold: 5
        recovery_timeout_seconds: 30
      checkpoint_write:
        failure_threshold: 3
        recovery_timeout_seconds: 120
  recovery:
    max_attempts_per_task: 3
    max_attempts_per_hour: 5
    backoff_seconds: [60, 120, 240]
  alerting:
    stuck_agent:
      channels: ["slack", "pagerduty"]
      severity: "warning"
    circuit_breaker_open:
      channels: ["slack"]
      severity: "warning"
    recovery_failed:
      channels: ["slack", "pagerduty"]
      severity: "critical"
"""


@pytest.fixture(autouse=True)
def _run_in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_file(content: str) -> Path:
    file = Path("queenright.yaml")
    file.write_text(content, encoding="utf-8")
    return file


def _list_paths(block: type[BaseModel], *parents: str) -> Iterator[tuple[str, ...]]:
    for name, field in block.model_fields.items():
        yield (*parents, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _list_paths(field.annotation, *parents, name)


def test_settings_block_of_the_specification_is_valid() -> None:
    settings = load_settings(write_file(SPEC_BLOCK))

    assert settings.health_monitoring.circuit_breaker.overrides["tool_execution"].failure_threshold == 5


def test_argument_overrides_environment_overrides_file_overrides_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_file("http: {port: 1001}\notlp: {port: 1002}\nstorage: from-file\n")
    monkeypatch.setenv("QUEENRIGHT_HTTP__PORT", "2001")
    monkeypatch.setenv("QUEENRIGHT_STORAGE", "from-environment")

    settings = load_settings(defaults={"http": {"host": "127.0.0.9", "port": 1}}, storage="from-argument")

    assert settings.storage == Path("from-argument").absolute()
    assert settings.http.port == 2001
    assert settings.otlp.port == 1002
    assert settings.http.host == "127.0.0.9"


def test_unknown_key_is_rejected_with_its_path_and_a_suggestion() -> None:
    file = write_file("health_monitoring: {stall: {idle_second: 3}}")

    with pytest.raises(
        InvalidSettingsError, match=r"health_monitoring\.stall\.idle_second: no such setting.*idle_seconds"
    ):
        load_settings(file)


def test_name_that_resembles_no_setting_has_no_suggestion() -> None:
    with pytest.raises(InvalidSettingsError, match=r"alerting\.seconds: no such setting\. Known settings"):
        load_settings(write_file("alerting: {seconds: 3}"))


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("QUEENRIGHT_HTPP__PORT", "QUEENRIGHT_HTTP__PORT"),
        ("QUEENRIGHT_ALERTNG__CLUSTER", "QUEENRIGHT_ALERTING__CLUSTER"),
        ("QUEENRIGHT_FOO", None),
    ],
)
def test_unknown_variable_is_rejected_with_a_suggestion(
    monkeypatch: pytest.MonkeyPatch, variable: str, suggestion: str | None
) -> None:
    monkeypatch.setenv(variable, "1")

    with pytest.raises(InvalidSettingsError, match=f"{variable} is not a setting") as error:
        load_settings()
    assert ("Did you mean" in str(error.value)) == (suggestion is not None)
    assert suggestion is None or f"Did you mean {suggestion}?" in str(error.value)


@pytest.mark.parametrize(
    ("content", "expected_error"),
    [
        ("http: {port: 1}\notlp: {port: 2}\nhttp: {port: 3}\n", "line 3: http is already set in line 1"),
        ("alerting:\n  cluster: a\n  cluster: b\n", r"line 3: alerting\.cluster is already set in line 2"),
    ],
)
def test_repeated_key_is_rejected_with_its_line(content: str, expected_error: str) -> None:
    with pytest.raises(InvalidSettingsError, match=expected_error):
        load_settings(write_file(content))


@pytest.mark.parametrize(
    ("content", "expected_error"),
    [
        ("on: true\n", "line 1: on is not a name in YAML; the settings here are agents, "),
        ("1: x\n", "line 1: 1 is not a name in YAML"),
        ("? [a]\n: x\n", "line 1: a list or mapping is not a name in YAML"),
        ('http:\n  host: "a\\0b"\n', r"line 2: http\.host contains a NUL character; remove it"),
        (
            "health_monitoring:\n  stall: {idle_seconds: yes}\n",
            r"line 2: health_monitoring\.stall\.idle_seconds is yes; it must be a number",
        ),
        ("otlp: {port: true}\n", r"line 1: otlp\.port is true; it must be a number"),
    ],
)
def test_yaml_that_may_be_misread_is_rejected_with_its_line(content: str, expected_error: str) -> None:
    with pytest.raises(InvalidSettingsError, match=expected_error):
        load_settings(write_file(content))


@pytest.mark.parametrize(
    ("content", "expected_error"),
    [
        (
            'database: "postgresql://u:hunter2@h/db\n',
            r"YAML \(line 2, column 1\): .*unexpected end",
        ),
        ("a: 1\n  database: hunter2\n", r"is not valid YAML \(line 2, column 11\): mapping values"),
        ("database: *hunter2\n", r"is not valid YAML \(line 1, column 11\): found undefined alias"),
        ("database: !hunter2 x\n", r"is not valid YAML \(line 1, column 11\): "),
        ("http: {port: 1\nbad: [", r"YAML \(line 2, column 4\): .*expected ',' or '}'"),
        ("database: hunter2\x01\n", "is not valid YAML: it contains a character"),
    ],
)
def test_error_of_invalid_yaml_has_the_position_and_no_content(content: str, expected_error: str) -> None:
    with pytest.raises(InvalidSettingsError, match=expected_error) as error:
        load_settings(write_file(content))

    assert "hunter2" not in str(error.value)
    assert "unicode string" not in str(error.value)
    assert "check quotes, brackets and indentation" in str(error.value)


def test_settings_that_are_not_utf8_are_rejected(tmp_path: Path) -> None:
    file = tmp_path / "latin.yaml"
    file.write_bytes("storage: Bienenköni\n".encode("latin-1"))

    with pytest.raises(InvalidSettingsError, match="is not UTF-8 text; save it as UTF-8"):
        load_settings(file)


def test_invalid_value_is_rejected_with_path_value_and_allowed_values() -> None:
    file = write_file("health_monitoring: {stall: {idle_seconds: -3}}")

    with pytest.raises(InvalidSettingsError, match=r"stall\.idle_seconds: -3 is refused: .*greater than 0"):
        load_settings(file)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("stuck_agent.channels", ["slack"]),
        ("stuck_agent.severity", "critical"),
        ("recovery_failed.channels", ["slack"]),
        ("recovery_failed.severity", "warning"),
    ],
)
def test_fixed_alerting_key_is_rejected_with_a_remedy(kind: str, value: object) -> None:
    """002 §7: a key that would have no effect is rejected."""
    name, key = kind.split(".")
    block = {"health_monitoring": {"alerting": {name: {key: value}}}}
    Path("queenright.yaml").write_text(json.dumps(block))

    with pytest.raises(
        InvalidSettingsError, match=rf"alerting\.{name}\.{key}: .*a route of your own"
    ) as error:
        load_settings()
    assert "leave it out" in str(error.value)


@pytest.mark.parametrize(
    ("channels", "severity"),
    [(["slack"], "critical"), (["slack", "pagerduty"], "warning"), (["pagerduty"], "critical"), ([], "info")],
)
def test_breaker_channels_that_contradict_the_severity_are_rejected(
    channels: list[str], severity: str
) -> None:
    """002 §7: only critical alerts go to PagerDuty."""
    block = {"alerting": {"circuit_breaker_open": {"channels": channels, "severity": severity}}}
    Path("queenright.yaml").write_text(json.dumps({"health_monitoring": block}))

    with pytest.raises(
        InvalidSettingsError, match=r"circuit_breaker_open.*change the severity, or leave channels out"
    ):
        load_settings()


@pytest.mark.parametrize(
    ("options", "channels", "severity"),
    [
        ({}, {"slack"}, "warning"),
        ({"channels": ["slack"]}, {"slack"}, "warning"),
        ({"severity": "critical"}, {"slack", "pagerduty"}, "critical"),
        ({"channels": ["pagerduty", "slack"], "severity": "critical"}, {"slack", "pagerduty"}, "critical"),
    ],
)
def test_channels_and_severity_of_a_breaker_reach_its_alert_rule(
    options: dict[str, object], channels: set[str], severity: str
) -> None:
    """002 §7: Alertmanager routes critical alerts to Slack and PagerDuty, and other alerts to Slack."""
    block = {"health_monitoring": {"alerting": {"circuit_breaker_open": options}}}
    Path("queenright.yaml").write_text(json.dumps(block))
    health = load_settings().health_monitoring

    assert set(health.alerting.circuit_breaker_open.channels) == channels
    rules = [rule for group in rule_groups(health) for rule in group.rules]
    [breaker] = [rule for rule in rules if rule.name == "QueenrightCircuitBreakerOpen"]
    assert isinstance(breaker, Alert)
    assert breaker.severity == severity


def test_alerting_block_of_the_specification_is_valid() -> None:
    """002 §7: the block is accepted as the specification has it."""
    block = {
        "stuck_agent": {"channels": ["slack", "pagerduty"], "severity": "warning"},
        "circuit_breaker_open": {"channels": ["slack"], "severity": "warning"},
        "recovery_failed": {"channels": ["slack", "pagerduty"], "severity": "critical"},
    }
    Path("queenright.yaml").write_text(json.dumps({"health_monitoring": {"alerting": block}}))
    assert load_settings().health_monitoring == HealthSettings()


def test_bands_that_do_not_rise_are_rejected() -> None:
    file = write_file("health_monitoring: {bands: {high: 9}}")

    with pytest.raises(InvalidSettingsError, match=r"warning 5 < medium 10 < high 9"):
        load_settings(file)


@pytest.mark.parametrize(
    ("content", "expected_error"),
    [("a: [", "not valid YAML"), ("- a", "contains a list"), ("http: 3", r"http: 3 is refused")],
)
def test_file_that_is_not_a_mapping_is_rejected(content: str, expected_error: str) -> None:
    with pytest.raises(InvalidSettingsError, match=expected_error):
        load_settings(write_file(content))


@pytest.mark.parametrize(
    "value",
    [-1, [[1]], {"a": {}}, True, None, float("nan"), "x" * 200],
)
def test_error_about_a_value_has_no_terms_of_the_parser(value: object) -> None:
    terms = re.compile(r"Input should|[Vv]alid |dictionary|instance|[Tt]uple|frozenset|pathlib|Value error")
    errors = []
    for path in _list_paths(Settings):
        settings_value = value
        for name in reversed(path):
            settings_value = {name: settings_value}
        try:
            load_settings(write_file(json.dumps(settings_value)))
        except InvalidSettingsError as error:
            errors.append(str(error))

    assert errors
    assert not [message for message in errors if terms.search(message) or len(message) > 1_000]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("http: 3", "http: 3 is refused: it must be a mapping of settings; known settings: host, port."),
        ("storage: 3", "storage: 3 is refused: it must be a path."),
        (
            "alerting: {alertmanager_urls: 'http://x'}",
            "alerting.alertmanager_urls: 'http://x' is refused: it must be a list, such as [a, b].",
        ),
        (
            "health_monitoring: {recovery: {backoff_seconds: []}}",
            "health_monitoring.recovery.backoff_seconds: [] is refused: it must not be empty.",
        ),
        (
            "health_monitoring: {intervention: {dry_run: [foo]}}",
            (
                "health_monitoring.intervention.dry_run.0: 'foo' is refused: it must be 'nudge', 'escalate', "
                "'terminate', 'recover' or 'answer'."
            ),
        ),
        (
            "health_monitoring: {stall: {idle_seconds: .nan}}",
            "health_monitoring.stall.idle_seconds: nan is refused: it must be a number.",
        ),
    ],
)
def test_error_about_a_value_is_one_line_with_a_remedy(content: str, message: str) -> None:
    with pytest.raises(InvalidSettingsError) as error:
        load_settings(write_file(content))

    assert str(error.value) == f"Settings refused (queenright.yaml):\n  {message}"


def test_missing_settings_file_is_named() -> None:
    with pytest.raises(InvalidSettingsError, match=r"nowhere\.yaml cannot be read"):
        load_settings(Path("nowhere.yaml"))


def test_unknown_environment_variable_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEENRIGHT_STORAG", "x")

    with pytest.raises(
        InvalidSettingsError, match=r"QUEENRIGHT_STORAG is not a setting\. Did you mean QUEENRIGHT_STORAGE"
    ):
        load_settings()


def test_unknown_nested_environment_variable_is_rejected_with_its_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QUEENRIGHT_HTTP__BACKLOG__STREAMS", "4")

    with pytest.raises(
        InvalidSettingsError, match=r"http\.backlog: no such setting\. Known settings: host, port"
    ):
        load_settings()


def list_blocks(block: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield block
    for field in block.model_fields.values():
        if isinstance(field.default, BaseModel) and not field.exclude:
            yield from list_blocks(type(field.default))


@pytest.mark.parametrize("block", dict.fromkeys(list_blocks(Settings)), ids=lambda block: block.__name__)
def test_each_setting_has_a_help_text(block: type[BaseModel]) -> None:
    [definition] = ast.parse(inspect.getsource(block)).body
    assert isinstance(definition, ast.ClassDef)
    fields_with_help = {
        field.target.id
        for field, following in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
    }
    settings = {
        name
        for name, field in block.model_fields.items()
        if not field.exclude and not isinstance(field.default, BaseModel)
    }

    assert settings - fields_with_help == set()


def test_settings_page_lists_each_setting_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text("utf-8")
    [block] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)

    assert yaml.safe_load(block) == Settings().model_dump(mode="json")


def test_credentials_in_settings_are_masked_wherever_they_are_shown() -> None:
    settings = load_settings(
        otlp={"forward": "https://user:hunter2@collector:4318/x"},
        alerting={"alertmanager_urls": ["http://user:hunter2@alertmanager:9093"]},
    )

    assert "hunter2" not in repr(settings)
    assert "hunter2" not in settings.model_dump_json()
    assert "https://collector:4318/x" in settings.model_dump_json()


SECRET_URL = "postgresql://bee:hunter2 hunter2@db:5432/hive?sslpassword=hunter2&host=/run"


def test_database_password_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEENRIGHT_DATABASE", SECRET_URL)

    settings = load_settings()

    assert settings.database_url == SECRET_URL
    assert "hunter2" not in repr(settings)
    assert settings.model_dump(mode="json")["database"] == (
        "postgresql://bee:[redacted]@db:5432/hive?sslpassword=[redacted]&host=/run"
    )


@pytest.mark.parametrize(
    "address",
    [
        "bee:hunter2@db/hive",
        "mysql://bee:hunter2@db/hive",
        "postgresql://bee:hun@ter2@db",
        ["bee:hunter2@db"],
        "postgresql://bee:hunter2@db:99999/hive",
        "postgresql://bee:hunter2@db:0/hive",
        "postgresql://",
        "postgresql://bee:hunter2@",
    ],
)
def test_error_about_an_invalid_database_url_does_not_repeat_it(address: object) -> None:
    with pytest.raises(InvalidSettingsError, match=r"database: \[redacted\] is refused: ") as error:
        load_settings(database=address)

    assert "hun" not in str(error.value)


def test_default_database_is_a_file_in_the_storage_folder(tmp_path: Path) -> None:
    assert load_settings(storage=tmp_path).database_url == f"sqlite:///{tmp_path / 'queenright.db'}"


@pytest.mark.parametrize(
    "url",
    ["collector:4318", "http://bee:hunter2@h:99999/", "http://bee:hunter2@h:0", ["http://bee:hunter2@h"]],
)
def test_invalid_forward_url_is_rejected_at_the_start(url: object) -> None:
    with pytest.raises(
        InvalidSettingsError, match=r"otlp\.forward: \[redacted\] is refused: it must"
    ) as error:
        load_settings(otlp={"forward": url})

    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"), [("QUEENRIGHT_HTTP", "hunter2"), ("QUEENRIGHT_AGENTS__LOAD", "[h")]
)
def test_error_about_invalid_json_in_the_environment_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(
        InvalidSettingsError, match=f"{name} is not valid JSON .*QUEENRIGHT_HTTP__PORT"
    ) as error:
        load_settings()

    assert "hunter2" not in str(error.value)


def test_error_about_a_secret_does_not_repeat_it() -> None:
    file = write_file("otlp: {forward: [https://user:hunter2@host]}")

    with pytest.raises(InvalidSettingsError) as error:
        load_settings(file)

    assert "hunter2" not in str(error.value)


# -- variables of agents --------------------------------------------------------------------------


def test_variables_of_agents_are_accepted_by_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users may start the service in a shell that has the variables from the instrumentation page."""
    root = Path(__file__).parents[2]
    pages = [*(root / "docs").rglob("*.md"), *(root / "instrumentation" / "queenright").rglob("*.py")]
    documented_variables = {
        name for page in pages for name in re.findall(r"\bQUEENRIGHT_[A-Z]\w*", page.read_text("utf-8"))
    }
    settings = {f"QUEENRIGHT_{name}".upper() for name in Settings.model_fields}
    agent_variables = {name for name in documented_variables if name.split("__")[0] not in settings}
    for name in agent_variables:
        monkeypatch.setenv(name, "http://127.0.0.1:8420")

    assert "QUEENRIGHT_ENDPOINT" in agent_variables
    loaded_settings = load_settings()
    assert (
        loaded_settings.model_dump()
        == Settings(storage=loaded_settings.storage, agents=loaded_settings.agents).model_dump()
    )


# -- values that would only fail much later -------------------------------------------------------


@pytest.mark.parametrize("block", ["recovery", "intervention.escalation"])
@pytest.mark.parametrize(
    ("url", "expected_fault"),
    [
        ("hunter2 is not a url", "a space or a control character"),
        ("hunter2", "does not begin with http:// or https://"),
        ("", "does not begin with http:// or https://"),
        ("ftp://hunter2", "does not begin with http:// or https://"),
        ("file:///hunter2", "does not begin with http:// or https://"),
        ("https:///hunter2", "the URL has no host"),
        ("https://:80/hunter2", "the URL has no host"),
        ("https://host:99999/hunter2", "the host or the port is invalid"),
        ("https://host:0/hunter2", "the port is 0"),
        ("https://[hunter2", "the host or the port is invalid"),
        ("https://host/hunter2\n", "a space or a control character"),
    ],
)
def test_error_about_an_invalid_webhook_url_does_not_repeat_it(
    block: str, url: str, expected_fault: str
) -> None:
    settings_block: dict[str, object] = {"webhook_url": url}
    for block_name in reversed(block.split(".")):
        settings_block = {block_name: settings_block}

    with pytest.raises(InvalidSettingsError) as error:
        load_settings(health_monitoring=settings_block)

    path = f"health_monitoring.{block}.webhook_url"
    assert f"{path}: [redacted] is refused: " in str(error.value)
    assert f"{expected_fault}" in str(error.value)
    assert "write a URL like https://" in str(error.value)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "expected_error"),
    [
        ("tool_exec", r"overrides\.tool_exec: 'tool_exec' is refused: .*did you mean 'tool_execution'\?$"),
        ("tool_exec:bee:search", "did you mean 'tool_execution:bee:search'"),
        (
            "bee:tool_execution",
            "where kind is one of tool_execution, checkpoint_write, external_api, recovery",
        ),
        (" tool_execution", "did you mean 'tool_execution'"),
        ("", "where kind is one of tool_execution"),
        ("tool_execution:", "for all breakers of this kind write 'tool_execution'"),
        ("tool_execution::", "for all breakers of this kind write 'tool_execution'"),
        ("tool_execution:bee:", "for all targets write 'tool_execution:bee'"),
    ],
)
def test_override_that_matches_no_breaker_is_rejected(name: str, expected_error: str) -> None:
    overrides = {name: {"failure_threshold": 2}}

    with pytest.raises(InvalidSettingsError, match=expected_error):
        load_settings(health_monitoring={"circuit_breaker": {"overrides": overrides}})


def test_each_breaker_name_can_be_overridden() -> None:
    names = [
        *BreakerKind,
        "tool_execution::search",
        "checkpoint_write:researcher",
        "tool_execution:a%3Ab:search",
        "external_api:researcher:ollama/llama3:8b",
    ]
    assert [str(BreakerName.parse(name)) for name in names] == names

    settings = load_settings(
        health_monitoring={"circuit_breaker": {"overrides": {name: {} for name in names}}}
    )

    assert [*settings.health_monitoring.circuit_breaker.overrides] == names


def test_relative_paths_are_resolved_when_settings_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of an agent may change the working folder of the process."""
    Path("own.yaml").write_text("agents: {roots: [bees]}\nauth: {tokens_file: t.json}\n")
    settings = load_settings(Path("own.yaml"))
    folder = Path.cwd()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    monkeypatch.chdir(elsewhere)

    reread_settings = settings.read_again()
    assert reread_settings is not None
    assert reread_settings.model_dump() == settings.model_dump()
    assert settings.agents.roots == (folder / "bees",)
    assert (settings.auth.tokens_file, settings.storage) == (folder / "t.json", folder / ".queenright")
    assert settings.model_fields_set == {"agents", "auth"}


def test_paths_in_the_default_settings_file_are_relative_to_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings()
    folder = Path.cwd()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "queenright.yaml").write_text("http: {port: 1}\n")
    monkeypatch.chdir(elsewhere)
    (folder / "queenright.yaml").write_text("http: {port: 2}\n")

    reread_settings = settings.read_again()

    assert reread_settings is not None
    assert reread_settings.http.port == 2


@pytest.mark.parametrize("content", ["[" * 3000, "a: " + "{b: " * 3000])
def test_deeply_nested_settings_file_is_rejected(content: str) -> None:
    Path("queenright.yaml").write_text(content)

    with pytest.raises(InvalidSettingsError, match=r"queenright\.yaml is nested too deeply"):
        load_settings()


def test_settings_from_a_pipe_are_read_only_once() -> None:
    """With `--config <(...)`, a second read would return nothing."""
    read_end, write_end = os.pipe()
    try:
        os.write(write_end, b"http:\n  port: 8555\n")
        os.close(write_end)

        settings = load_settings(Path(f"/dev/fd/{read_end}"))

        assert settings.http.port == 8555
        with pytest.raises(InvalidSettingsError, match=f"/dev/fd/{read_end} is a pipe"):
            settings.read_again()
    finally:
        os.close(read_end)


@pytest.mark.parametrize(
    "ports_yaml",
    [
        "http: {port: 4318}",
        "otlp: {port: 8420}",
        "{http: {port: 7}, otlp: {port: 7}}",
        "{http: {port: 7, host: localhost}, otlp: {port: 7}}",
    ],
)
def test_two_listeners_on_one_port_are_rejected_with_both_names(tmp_path: Path, ports_yaml: str) -> None:
    """`config check` rejects settings with which `serve` could not listen."""
    file = tmp_path / "queenright.yaml"
    file.write_text(ports_yaml, encoding="utf-8")

    with pytest.raises(
        InvalidSettingsError, match=r"\n  http\.port and otlp\.port are both (4318|8420|7); give"
    ):
        load_settings(file)


@pytest.mark.parametrize(
    "ports_yaml",
    ["{http: {port: 0}, otlp: {port: 0}}", "{http: {port: 7}, otlp: {port: 7, host: 127.0.0.2}}"],
)
def test_two_listeners_on_distinct_addresses_are_accepted(tmp_path: Path, ports_yaml: str) -> None:
    """Any free port, or one port on two addresses, is possible."""
    file = tmp_path / "queenright.yaml"
    file.write_text(ports_yaml, encoding="utf-8")

    settings = load_settings(file)

    assert settings.http.port == settings.otlp.port
