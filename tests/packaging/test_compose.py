"""
docker-compose.yml is valid, has pinned images, and publishes ports on loopback only. The native programs
accept the files that it mounts.
"""

from __future__ import annotations

import re
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from socket import socket
from typing import Any

import pytest
import yaml

from queenright.server.access.tokens import parse_tokens
from queenright.server.ops.programs import ProgramNotFoundError, find_program
from queenright.server.settings import load_settings

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
# Tempo and the collector have no shell or HTTP client in their images, so `probe` checks them. `tempo-volume`
# exits immediately.
WITHOUT_HEALTH_CHECK = {"tempo", "otel-collector", "tempo-volume"}


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of secrets that `make compose` prepares."""
    folder = tmp_path_factory.mktemp("compose") / "secrets"
    prepare(folder)
    return folder


@pytest.fixture(scope="module")
def compose(secrets: Path) -> dict[str, Any]:
    text = COMPOSE.read_text().replace("./compose/secrets/", f"{secrets}/")
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def prepare(folder: Path) -> str:
    command: list[str | Path] = [sys.executable, ROOT / "compose" / "prepare.py", "--folder", folder]
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout


def list_receivers(folder: Path) -> dict[str, set[str]]:
    """Return the kinds of configuration of each receiver in Alertmanager's configuration."""
    loaded = yaml.safe_load((folder / "alertmanager.yml").read_text())
    return {receiver["name"]: set(receiver) - {"name"} for receiver in loaded["receivers"]}


def require_program(name: str) -> Path:
    path = find_program(name)
    if path is None:
        raise ProgramNotFoundError(name)
    return path


def list_mounts(service: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield the files and folders of the checkout that a service mounts, and their targets."""
    for volume in service.get("volumes", ()):
        if isinstance(volume, dict):
            source, target = volume["source"], volume["target"]
        else:
            source, target, *_ = volume.split(":")
        if source.startswith((".", "/")):
            yield ROOT / source, target


def localize_config(compose: dict[str, Any], service: str, config: str, folder: Path) -> Path:
    """Return a copy of a mounted configuration with paths of this machine."""
    sources = {target: source for source, target in list_mounts(compose["services"][service])}
    text = sources.pop(config).read_text()
    for target, source in sources.items():
        text = text.replace(target, str(source))
    for secret in compose["services"][service].get("secrets", ()):
        (folder / secret).write_text("http://127.0.0.1:1/services/secret\n")
        text = text.replace(f"/run/secrets/{secret}", str(folder / secret))
    copy = folder / Path(config).name
    copy.write_text(text)
    assert "/run/secrets" not in text
    return copy


def run_config_check(*command: str | Path) -> None:
    result = subprocess.run(command, text=True, capture_output=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_make_compose_first_checks_for_docker_compose() -> None:
    commands = subprocess.run(
        ["make", "--no-print-directory", "-n", "compose"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert commands.stdout.startswith("docker compose version")


def test_file_is_valid() -> None:
    run_config_check(
        sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE
    )


def test_every_image_is_pinned_to_a_version(compose: dict[str, Any]) -> None:
    images = [service["image"] for service in compose["services"].values()]
    dockerfile = (ROOT / "Dockerfile").read_text()
    images += re.findall(r"^ARG BASE=(\S+)", dockerfile, re.MULTILINE)

    assert set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) == {"${BASE}"}
    assert [image for image in images if not re.search(r":v?\d+\.\d+\.\d+", image)] == []


def test_every_port_is_on_loopback(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", ())]

    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_every_mounted_file_exists(compose: dict[str, Any]) -> None:
    sources = [source for service in compose["services"].values() for source, _ in list_mounts(service)]

    assert sources
    assert [source for source in sources if not source.exists()] == []


def test_every_service_has_a_health_check(compose: dict[str, Any]) -> None:
    without_check = {name for name, service in compose["services"].items() if "healthcheck" not in service}

    assert without_check == WITHOUT_HEALTH_CHECK


def test_secrets_are_files_and_not_environment_variables(compose: dict[str, Any]) -> None:
    declared_secrets = compose["secrets"]
    used_secrets = {
        secret for service in compose["services"].values() for secret in service.get("secrets", ())
    }
    variables = [
        name
        for service in compose["services"].values()
        for name in service.get("environment", {})
        if re.search("PASSWORD|SECRET|TOKEN|KEY", name) and not name.endswith("__FILE")
    ]

    assert set(declared_secrets) == used_secrets
    assert all(set(secret) == {"file"} for secret in declared_secrets.values())
    assert variables == []


def test_dockerfile_does_not_run_as_root() -> None:
    last_stage = (ROOT / "Dockerfile").read_text().rpartition("FROM ")[2]

    assert re.search(r"^USER [1-9]\d*$", last_stage, re.MULTILINE)


def test_dockerfile_copies_only_files_in_the_build_context() -> None:
    context_paths = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    folders = {path.parts[-2] for path in ROOT.glob("*/queenright")}

    assert {"pyproject.toml", "README.md", "LICENSE", "requirements"} <= context_paths
    assert folders <= context_paths


def test_services_settings_are_accepted(compose: dict[str, Any]) -> None:
    files = {target: source for source, target in list_mounts(compose["services"]["queenright"])}

    settings = load_settings(files["/etc/queenright/queenright.yaml"])

    assert settings.alerting.alertmanager_urls == ("http://alertmanager:9093",)
    trace_url = settings.alerting.trace_url.format(trace_id="abc")
    assert " " not in trace_url
    assert "%22query%22:%22abc%22" in trace_url


def test_hosts_in_the_configurations_are_services_and_their_ports(compose: dict[str, Any]) -> None:
    files = [source for service in compose["services"].values() for source, _ in list_mounts(service)]
    texts = [file.read_text() for file in files if file.is_file()]
    hosts = {host for text in texts for host in re.findall(r"https?://([a-z-]+):\d+", text)}

    assert hosts
    assert hosts <= set(compose["services"])


def test_prepare_creates_tokens_that_the_service_accepts(compose: dict[str, Any], secrets: Path) -> None:
    files = {target: source for source, target in list_mounts(compose["services"]["queenright"])}
    settings = load_settings(files["/etc/queenright/queenright.yaml"])

    tokens = parse_tokens(files[str(settings.auth.tokens_file)].read_text())

    found_tokens = [
        tokens.find((secrets / name).read_text(), time.time()) for name in ("queenright_token", "admin_token")
    ]
    assert [token and token.role for token in found_tokens] == ["reporter", "admin"]


def test_prepare_omits_receivers_without_a_secret(secrets: Path) -> None:
    assert {name: keys for name, keys in list_receivers(secrets).items() if keys} == {
        "judge": {"webhook_configs"}
    }


def test_secret_files_are_writable_by_their_owner(secrets: Path) -> None:
    modes = {
        name: stat.S_IMODE((secrets / name).stat().st_mode)
        for name in ("slack_api_url", "pagerduty_routing_key", "deadman_url")
    }

    assert set(modes.values()) == {0o644}
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "url",
    ["http://queenright:8420/ping", "http://alertmanager:9093", "http://localhost/", "http://127.0.0.1:9/"],
)
def test_prepare_refuses_a_deadman_check_within_the_stack(tmp_path: Path, url: str) -> None:
    folder = tmp_path / "secrets"
    prepare(folder)
    (folder / "deadman_url").write_text(url)

    result = subprocess.run(
        [sys.executable, ROOT / "compose" / "prepare.py", "--folder", folder], text=True, capture_output=True
    )

    assert result.returncode == 1
    assert f"{folder / 'deadman_url'} is {url!r}" in result.stderr
    assert "elsewhere" in result.stderr


def test_prepared_files_exist_before_the_engine_mounts_them() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"].values()
    volumes = [volume for service in services for volume in service.get("volumes", ())]
    secret_volumes = [volume for volume in volumes if "compose/secrets" in str(volume)]

    assert len(secret_volumes) == 2
    assert all(volume["bind"] == {"create_host_path": False} for volume in secret_volumes)


def test_prepare_keeps_secrets_and_turns_their_receivers_on(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    prepare(folder)
    expected_contents = {
        file.name: file.read_text() for file in folder.iterdir() if file.name != "alertmanager.yml"
    }
    for name, value in (("slack_api_url", "https://slack.test/x"), ("deadman_url", "https://check.test/y")):
        (folder / name).write_text(value)
        expected_contents[name] = value
    inode = (folder / "alertmanager.yml").stat().st_ino

    output = prepare(folder)

    assert {
        file.name: file.read_text() for file in folder.iterdir() if file.name in expected_contents
    } == expected_contents
    assert list_receivers(folder)["slack"] == {"slack_configs", "webhook_configs"}
    assert list_receivers(folder)["pagerduty"] == set()
    assert list_receivers(folder)["deadman"] == {"webhook_configs"}
    assert "slack.test" not in output
    # A running container keeps this file mounted, and would not see a new file with the same name.
    assert (folder / "alertmanager.yml").stat().st_ino == inode
    run_config_check(require_program("amtool"), "check-config", folder / "alertmanager.yml")


def test_deadman_check_is_outside_the_stack(tmp_path: Path) -> None:
    config = (ROOT / "alerting" / "alertmanager" / "alertmanager.yml").read_text()
    deadman = next(
        receiver for receiver in yaml.safe_load(config)["receivers"] if receiver["name"] == "deadman"
    )

    assert "queenright:8420" not in str(deadman)


def test_prometheus_accepts_its_configuration(compose: dict[str, Any], tmp_path: Path) -> None:
    config = localize_config(compose, "prometheus", "/etc/prometheus/prometheus.yml", tmp_path)

    run_config_check(require_program("promtool"), "check", "config", config)


def test_alertmanager_accepts_its_configuration(compose: dict[str, Any], tmp_path: Path) -> None:
    config = localize_config(compose, "alertmanager", "/etc/alertmanager/alertmanager.yml", tmp_path)

    run_config_check(require_program("amtool"), "check-config", config)


def test_prometheus_starts_with_its_configuration(compose: dict[str, Any], tmp_path: Path) -> None:
    config = localize_config(compose, "prometheus", "/etc/prometheus/prometheus.yml", tmp_path)

    wait_until_ready(require_program("prometheus"), config, f"--storage.tsdb.path={tmp_path / 'data'}")


def test_alertmanager_starts_with_its_configuration(compose: dict[str, Any], tmp_path: Path) -> None:
    config = localize_config(compose, "alertmanager", "/etc/alertmanager/alertmanager.yml", tmp_path)

    wait_until_ready(
        require_program("alertmanager"),
        config,
        f"--storage.path={tmp_path / 'data'}",
        "--cluster.listen-address=",
    )


def wait_until_ready(executable: Path, config: Path, *options: str) -> None:
    """Start a program with a configuration, and wait until it reports that it is ready."""
    with socket() as port_probe:
        port_probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{port_probe.getsockname()[1]}"
    log = config.parent / "log"
    command: list[str | Path] = [
        executable,
        f"--config.file={config}",
        f"--web.listen-address={address}",
        *options,
    ]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            deadline = time.monotonic() + 30
            while not has_response(f"http://{address}/-/ready"):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
        finally:
            process.terminate()


def has_response(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False
