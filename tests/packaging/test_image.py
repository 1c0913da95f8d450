"""The image that the Dockerfile builds, started as in docker-compose.yml."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packaging.image import BASE, IMAGE, Buildah, buildah_with_base, make_pip_secrets
from tests.packaging.stack import NO_START_GRACE, parse_seconds
from tests.packaging.test_compose import COMPOSE, list_mounts, prepare
from tests.packaging.test_documents import ROOT
from tests.waiting import until

COMPOSE_SERVICE: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]["queenright"]
USER = 10001
DATA = "/var/lib/queenright"
MAX_MEGABYTES = 450
"""Maximum number of megabytes that the image may add to its base."""

ACCOUNT_FILES = r"etc/(passwd|group|shadow|gshadow|subuid|subgid)-?"
# An agent that repeats one call, and then waits for the ticket about it.
AGENT = """\
import subprocess, time
from queenright.instrumentation import Worker

def tickets():
    return subprocess.check_output(["queenright", "tickets", "list", "--json"], text=True)

with Worker("container_agent") as worker:
    for _ in range(25):
        with worker.step("researcher") as step:
            with step.tool("search", {"q": "hive"}) as call:
                call.result("nothing")
            step.verdict("RETRY")
    while "container_agent" not in (found := tickets()):
        time.sleep(0.5)
print(found)
"""
# Prints packages that are installed, although queenright does not require them.
UNREQUIRED_PACKAGES_SCRIPT = """\
import importlib.metadata as metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as name_of

def required(name, extras):
    if (name, extras) in seen:
        return
    seen.add((name, extras))
    for line in metadata.distribution(name).requires or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            required(name_of(requirement.name), tuple(sorted(requirement.extras)))

seen = set()
required("queenright", ("cluster", "llm", "mcp", "postgres", "server", "tui"))
here = {name_of(d.name) for d in metadata.distributions() if "/opt/queenright/" in str(d.locate_file(""))}
print(*sorted(here - {name for name, _ in seen}))
"""


@dataclass(frozen=True, slots=True)
class Service:
    """A container with its own network, in which the service was started as in docker-compose.yml."""

    buildah: Buildah
    name: str
    root: Path
    options: tuple[str, ...]
    token: str
    process: subprocess.Popen[bytes]
    log: Path
    pids: list[int] = field(default_factory=list)

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the service's container and network."""
        variables = [f"--env={name}={value}" for name, value in environment.items()]
        command_line = self.buildah.command("run", *self.options, *variables, self.name, "--", *command)
        return subprocess.run(
            ["nsenter", f"--net=/proc/{self.process.pid}/ns/net", *command_line],
            env=self.buildah.environment,
            text=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )

    def output(self, *command: str, **environment: str) -> str:
        """Run a command that must succeed, and return its output."""
        result = self.run(*command, **environment)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def stop(self) -> int:
        """Send SIGTERM to the service, as an engine does, and return its exit code."""
        [pid] = [pid for pid in list_descendants(self.process.pid) if is_program(pid, "serve")]
        os.kill(pid, signal.SIGTERM)
        return self.process.wait(parse_seconds(COMPOSE_SERVICE["stop_grace_period"]))


def list_descendants(pid: int) -> Iterator[int]:
    """Yield the ids of the direct and indirect child processes of a process."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield int(child)
            yield from list_descendants(int(child))


def is_program(pid: int, command: str) -> bool:
    """Return whether a process runs this `queenright` command itself, rather than launch it."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return Path(words[0]).name == "python" and words[1:3] == ["/opt/queenright/bin/queenright", command]


def find_files_of_user(root: Path, user: int) -> set[str]:
    """Return the paths of a user's files, except those in `/tmp`."""
    paths = set()
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if Path(folder, name) != root / "tmp"]
        paths |= {str(Path(folder, name)) for name in files if Path(folder, name).lstat().st_uid == user}
    return paths


def list_paths(root: Path) -> set[str]:
    """Return every file and folder below a folder."""
    return {
        os.path.relpath(os.path.join(folder, name), root)
        for folder, folders, files in os.walk(root)
        for name in (*folders, *files)
    }


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    """Yield buildah with the built image."""
    folder = tmp_path_factory.mktemp("image")
    with buildah_with_base(folder) as buildah:
        options = (f"--build-arg=BASE={BASE}", *make_pip_secrets(folder))
        # The build stage is tagged too, so that its layers are cached.
        buildah.build(ROOT, f"{IMAGE}-build", "--target=build", *options)
        buildah.build(ROOT, IMAGE, *options)
        yield buildah
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the secrets that `make compose` prepares."""
    folder = tmp_path_factory.mktemp("compose") / "secrets"
    prepare(folder)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder like a new volume, owned by the image's user."""
    folder = tmp_path / "data"
    folder.mkdir()
    os.chown(folder, USER, USER)
    return folder


@contextlib.contextmanager
def run_service(buildah: Buildah, secrets: Path, data: Path, log: Path) -> Iterator[Service]:
    """Start the service as in docker-compose.yml."""
    text = COMPOSE.read_text().replace("./compose/secrets/", f"{secrets}/")
    compose: dict[str, Any] = yaml.safe_load(text)["services"]["queenright"]
    assert f"queenright-data:{DATA}" in compose["volumes"]
    volumes = [f"--volume={source}:{target}:ro" for source, target in list_mounts(compose)]
    environment = compose["environment"] | NO_START_GRACE
    variables = [f"--env={name}={value}" for name, value in environment.items()]
    options = (*volumes, f"--volume={data}:{DATA}")
    with buildah.container(IMAGE) as (name, root), log.open("wb") as output:
        command = buildah.isolated_command("run", *options, *variables, name, "--", *compose["command"])
        with subprocess.Popen(
            command, env=buildah.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        ) as process:
            token = (secrets / "admin_token").read_text().strip()
            service = Service(buildah, name, root, options, token, process, log)
            try:
                yield service
            finally:
                for pid in (*list_descendants(process.pid), process.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


async def wait_until_healthy(service: Service) -> None:
    """Wait until the health check of docker-compose.yml succeeds."""
    check = COMPOSE_SERVICE["healthcheck"]["test"][1:]

    def is_healthy() -> bool:
        assert service.process.poll() is None, service.log.read_text()
        return service.run(*check).returncode == 0

    await until(is_healthy, "the health check succeeds")


def test_image_config_equals_the_dockerfile(buildah: Buildah) -> None:
    config = buildah.image(IMAGE)

    assert config["User"] == str(USER)
    assert set(config["ExposedPorts"]) == {"8420/tcp", "4318/tcp"}
    assert config["Healthcheck"]["Test"][0] == "CMD"
    assert config["Cmd"][:2] == ["queenright", "serve"]


def test_image_prints_its_version(buildah: Buildah) -> None:
    with buildah.container(IMAGE) as (name, _):
        output = buildah.run("run", name, "--", "queenright", "--version")

    assert re.fullmatch(r"queenright \d+\.\d+\.\d+", output)


def test_image_without_a_token_names_the_command_that_creates_one(buildah: Buildah) -> None:
    with buildah.container(IMAGE) as (name, _):
        command = buildah.isolated_command("run", name, "--", *buildah.image(IMAGE)["Cmd"])
        result = subprocess.run(command, env=buildah.environment, text=True, capture_output=True)

    assert result.returncode != 0
    assert "queenright token create" in result.stderr
    assert "Traceback" not in result.stderr


def test_image_adds_only_the_program_and_its_user(buildah: Buildah) -> None:
    with buildah.container(BASE) as (_, base), buildah.container(IMAGE) as (_, image):
        added_paths = list_paths(image) - list_paths(base)
        data = (image / DATA[1:]).stat()

    paths_outside = {path for path in added_paths if not path.startswith("opt/queenright/")}
    account_paths = {name for name in paths_outside if re.fullmatch(ACCOUNT_FILES, name)}
    # The builder mounts a file at `etc/hosts`.
    assert paths_outside - account_paths == {"opt/queenright", "etc/hosts", DATA[1:]}
    assert (data.st_uid, data.st_gid, stat.S_IMODE(data.st_mode)) == (USER, USER, 0o755)


def test_image_has_no_build_dependencies(buildah: Buildah) -> None:
    with buildah.container(IMAGE) as (name, _):
        output = buildah.run("run", name, "--", "python", "-c", UNREQUIRED_PACKAGES_SCRIPT)

    assert output == ""


def test_image_has_the_bytecode_of_imported_modules(buildah: Buildah) -> None:
    with buildah.container(IMAGE) as (name, _):
        command = buildah.command("run", name, "--", "python", "-v", "-c", "import queenright.server.up")
        result = subprocess.run(command, env=buildah.environment, text=True, capture_output=True)

    assert result.returncode == 0, result.stderr
    assert "matches /opt/queenright/" in result.stderr
    assert [line for line in result.stderr.splitlines() if "bytecode is stale" in line] == []


def test_image_is_small(buildah: Buildah) -> None:
    with buildah.container(IMAGE) as (_, image):
        files = [Path(folder, name) for folder, _, names in os.walk(image / "opt") for name in names]
        size = sum(file.lstat().st_size for file in files)

    assert size < MAX_MEGABYTES * 1_000_000


async def test_ticket_survives_a_clean_stop_and_a_restart(
    buildah: Buildah, secrets: Path, data: Path, tmp_path: Path
) -> None:
    url = "http://127.0.0.1:8420"
    with run_service(buildah, secrets, data, tmp_path / "log") as service:
        await wait_until_healthy(service)
        token = {"QUEENRIGHT_URL": url, "QUEENRIGHT_TOKEN": service.token}
        rejected = service.run("queenright", "list", "--json", QUEENRIGHT_URL=url)
        service.output(
            "python",
            "-c",
            AGENT,
            OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:4318",
            OTEL_EXPORTER_OTLP_HEADERS=f"Authorization=Bearer%20{service.token}",
            **token,
        )
        code = service.stop()
        written_paths = find_files_of_user(service.root, USER)

    log = service.log.read_text()
    assert rejected.returncode != 0
    assert code == 0, log
    assert "Traceback" not in log
    assert "ERROR" not in log
    assert written_paths == set()
    assert not (data / "queenright.db-wal").exists()

    with run_service(buildah, secrets, data, tmp_path / "second-log") as restarted:
        await wait_until_healthy(restarted)
        workers = restarted.output("queenright", "list", "--all", "--json", **token)
        tickets = restarted.output("queenright", "tickets", "list", "--all", "--json", **token)
        restarted.stop()
    assert "container_agent" in workers
    assert "container_agent" in tickets
    with buildah.container(IMAGE) as (name, _):
        buildah.run("run", *restarted.options, name, "--", "queenright", "audit", "verify", "--storage", DATA)
