"""Build the image with buildah on a Debian base, without a container engine or a registry."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.packaging.test_documents import ROOT

BUILDER: Final = ROOT / ".tools" / "builder"
BASE: Final = "localhost/base"
IMAGE: Final = "localhost/queenright"

_PIP_OPTIONS: Final = ("index-url", "extra-index-url", "trusted-host", "proxy")
_CERTIFICATE_VARIABLES: Final = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
_NETWORK_SCRIPT: Final = """\
import fcntl, os, socket, struct, sys
with socket.socket() as any_socket:  # lo is down in a new network namespace
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 1))
os.execv(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True, slots=True)
class Buildah:
    """
    A buildah program with its own folder for settings and temporary files.

    Images are stored with the checkout's tools: packages are downloaded again only if their pins change.
    """

    program: Path
    folder: Path

    def command(self, name: str, *arguments: str | Path) -> list[str]:
        """Return the command line for a buildah command."""
        stores = ("--root", BUILDER / "images", "--runroot", BUILDER / "containers")
        # Without this option, buildah mounts the image folder on itself, and the folder cannot be removed.
        options = ("--storage-driver", "overlay", "--storage-opt", "overlay.skip_mount_home=true")
        return [str(word) for word in (self.program, *stores, *options, name, *arguments)]

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of every command, without this machine's buildah settings."""
        variables = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        buildah_variables = {
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "BUILDAH_ISOLATION": "chroot",
        }
        return variables | buildah_variables | {"PATH": os.environ["PATH"]}

    def run(self, name: str, *arguments: str | Path) -> str:
        """Run a buildah command and return its output."""
        result = subprocess.run(
            self.command(name, *arguments),
            env=self.environment,
            text=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout.strip()

    def build(self, context: Path, tag: str, *options: str | Path) -> None:
        """Build an image."""
        # The other format has no health check.
        self.run("build", "--layers", "--format", "docker", "--tag", tag, *options, context)

    def image(self, tag: str) -> dict[str, Any]:
        """Return the configuration of an image."""
        inspected: dict[str, Any] = json.loads(self.run("inspect", "--type", "image", tag))
        config: dict[str, Any] = inspected["Docker"]["config"]
        return config

    @contextlib.contextmanager
    def container(self, tag: str) -> Iterator[tuple[str, Path]]:
        """Yield the name of a new container of an image, and the folder with its files."""
        name = self.run("from", tag)
        try:
            yield name, Path(self.run("mount", name))
        finally:
            self.run("rm", name)

    def isolated_command(self, name: str, *arguments: str | Path) -> list[str]:
        """Return the command line of a command in its own network namespace."""
        return [
            "unshare",
            "--net",
            sys.executable,
            "-I",
            "-c",
            _NETWORK_SCRIPT,
            *self.command(name, *arguments),
        ]


@contextlib.contextmanager
def buildah_with_base(folder: Path) -> Iterator[Buildah]:
    """Yield buildah with the image ``BASE``, Debian from ``tools/provide.py``. Skip the test if missing."""
    program = ROOT / ".tools" / "bin" / "buildah"
    if not (program.is_file() and (BUILDER / "base.tar").is_file()):
        pytest.skip("buildah is missing: `python3 tools/provide.py builder` fetches it (as root, on Debian)")
    if os.geteuid() != 0:
        pytest.skip("building the image without an engine needs root")
    policy = folder / ".config" / "containers" / "policy.json"
    policy.parent.mkdir(parents=True)
    policy.write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))
    buildah = Buildah(program, folder)
    (folder / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
    try:
        buildah.build(BUILDER, BASE, "--file", folder / "Dockerfile", "--ignorefile", os.devnull)
        yield buildah
    finally:
        buildah.run("rm", "--all")
        # Remove images that were replaced, with their layers.
        buildah.run("rmi", "--prune")


def make_pip_secrets(folder: Path) -> Sequence[str]:
    """Return build options with which pip in the build uses the same index as pip on this machine."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], text=True, capture_output=True, check=True
    ).stdout
    options = {}
    for line in sorted(listing.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        # A folder on this machine does not exist in the build.
        if (name := name.rpartition(".")[2]) in _PIP_OPTIONS and "file:" not in value:
            options[name] = str(ast.literal_eval(value)).replace("\n", " ")
    secrets = {}
    if certificate := next(filter(None, map(os.environ.get, _CERTIFICATE_VARIABLES)), None):
        options["cert"] = "/run/secrets/ca.pem"
        secrets["ca.pem"] = Path(certificate)
    secrets["pip.conf"] = folder / "pip.conf"
    lines = "".join(f"{name} = {value}\n" for name, value in options.items())
    secrets["pip.conf"].write_text(f"[global]\n{lines}")
    return [f"--secret=id={name},src={path}" for name, path in secrets.items()]
