"""The wheel uses nothing from the checkout when it is installed elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from queenright.server.ops.programs import ProgramNotFoundError, find_program

ROOT = Path(__file__).parents[2]
PACKAGES = ("instrumentation", "runtime", "health", "judge", "alerting", "grafana", "server", "cli", "demo")
SERVICE_DEPENDENCIES = (
    "fastapi",
    "starlette",
    "uvicorn",
    "sqlalchemy",
    "alembic",
    "litellm",
    "httpx",
    "typer",
    "rich",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel_path] = folder.glob("*.whl")
    return wheel_path


@pytest.fixture(scope="module")
def site_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]
    subprocess.run([*install, str(site), str(wheel)], check=True, capture_output=True)
    return site


def run_code(site_folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code with the installed wheel and the test environment's third-party packages."""
    # -S: otherwise the editable install's .pth file would add the checkout.
    paths = [str(site_folder), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    start = f"import sys; sys.path[1:1] = {paths!r}\n"
    command = [sys.executable, "-I", "-S", "-c", start + code, *arguments]
    return subprocess.run(command, cwd=site_folder, text=True, capture_output=True, check=False)


def test_agent_imports_only_the_instrumentation(site_folder: Path) -> None:
    result = run_code(
        site_folder,
        "import json, queenright.instrumentation as i\n"
        "print(json.dumps([i.__file__, sorted({m.partition('.')[0] for m in sys.modules}),"
        " sorted(m for m in sys.modules if m.startswith('queenright.'))]))",
    )

    assert result.returncode == 0, result.stderr
    file, modules, own_modules = json.loads(result.stdout)
    assert Path(file).is_relative_to(site_folder)
    assert not set(SERVICE_DEPENDENCIES) & set(modules)
    assert all(name.startswith("queenright.instrumentation") for name in own_modules)


def test_command_runs_from_the_wheel(site_folder: Path) -> None:
    result = run_code(site_folder, "from queenright.cli import main; main()", "config", "check")

    assert result.returncode == 0, result.stderr


def test_up_finds_its_files_in_the_wheel(site_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("prometheus", "alertmanager"):
        if (program_path := find_program(name)) is None:
            raise ProgramNotFoundError(name)
        monkeypatch.setenv(f"{name.upper()}_BIN", str(program_path))

    result = run_code(site_folder, "from queenright.cli import main; main()", "up", "--check")

    assert result.returncode == 0, result.stdout + result.stderr
    assert "prometheus: /" in result.stdout
    assert "alertmanager: /" in result.stdout


def test_rules_that_prometheus_mounts_come_from_the_wheel(site_folder: Path) -> None:
    result = run_code(
        site_folder,
        "from queenright.alerting.files import rules_folder, templates_folder\n"
        "print(rules_folder(), len(list(rules_folder().glob('*.yml'))))\n"
        "print(templates_folder(), len(list(templates_folder().glob('*.tmpl'))))",
    )

    assert result.returncode == 0, result.stderr
    for line in result.stdout.splitlines():
        folder, count = line.rsplit(maxsplit=1)
        assert Path(folder).is_relative_to(site_folder)
        assert int(count) >= 1


def test_exported_files_come_from_the_wheel(site_folder: Path, tmp_path: Path) -> None:
    archive = tmp_path / "mixin.tar.gz"
    words = ("rules", "export", "--format", "mixin", "--output", str(archive))

    result = run_code(site_folder, "from queenright.cli import main; main()", *words)

    assert result.returncode == 0, result.stderr
    with tarfile.open(archive) as tar:
        names = tar.getnames()
    for part in (
        "prometheus/rules/agents.yml",
        "grafana/dashboards/fleet.json",
        "runbooks/QueenrightLoop.md",
    ):
        assert f"queenright-mixin/{part}" in names
    assert [name for name in names if name.startswith("queenright-mixin/grafana/provisioning/")]


def test_store_is_created_with_the_migrations_of_the_wheel(site_folder: Path, tmp_path: Path) -> None:
    database = tmp_path / "new.db"

    result = run_code(
        site_folder,
        "import asyncio\n"
        "from queenright.health.store.store import Store\n"
        f"asyncio.run(Store.open('sqlite:///{database}').close())",
    )

    assert result.returncode == 0, result.stderr
    assert database.stat().st_size > 0


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_marked_as_typed(wheel: Path, package: str) -> None:
    assert f"queenright/{package}/py.typed" in ZipFile(wheel).namelist()


def test_wheel_contains_every_tracked_package_file(wheel: Path) -> None:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=True)
    tracked_files = {
        path.partition("/")[2]
        for path in listing.stdout.splitlines()
        if path.split("/")[1:2] == ["queenright"] and (ROOT / path).exists()
    }

    assert tracked_files
    assert not tracked_files - set(ZipFile(wheel).namelist())


def test_wheel_contains_the_licence_and_no_tests(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()

    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert not [name for name in names if not name.startswith(("queenright/", "queenright-"))]
    assert not [name for name in names if name.endswith(".pyc")]


def test_namespace_has_no_init_file(wheel: Path) -> None:
    paths = [path for path in ROOT.glob("*/queenright/__init__.py") if ".venv" not in path.parts]

    assert paths == []
    assert "queenright/__init__.py" not in ZipFile(wheel).namelist()
