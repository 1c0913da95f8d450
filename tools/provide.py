"""
Provide the virtual environment and the programs that the Makefile's targets need.

Runs before anything is installed, so it uses only the standard library. It writes only to ``.venv/`` and
``.tools/``, needs no root, installs nothing on the system and starts no service.

    provide.py venv GROUP       .venv with requirements/GROUP.txt (run, llm, dev) and this project, editable
    provide.py programs         prometheus, promtool, alertmanager, amtool
    provide.py newest           Debian's newest versions of the same four, in .tools/newest/bin
    provide.py browser          chromium
    provide.py builder          buildah, and the Debian base of the image (only as root)

Programs are searched in the environment (``PROMETHEUS_BIN`` and the like), on ``PATH``, then in
``.tools/bin``. On Debian and Ubuntu, missing programs are downloaded as packages and unpacked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
TOOLS = ROOT / ".tools"
BIN = TOOLS / "bin"
NEWEST = TOOLS / "newest"
BUILDER = TOOLS / "builder"
DEBIAN_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# Program -> its other names; Debian's package names alertmanager differently.
PROGRAMS = {
    "prometheus": (),
    "promtool": (),
    "alertmanager": ("prometheus-alertmanager",),
    "amtool": (),
}
BROWSERS = {"chromium": ("chromium-browser", "google-chrome", "google-chrome-stable")}
MAC_BROWSERS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
# The oldest Debian release with a sufficiently new Python.
BASE_SUITE = "bookworm"
# Debian's builds read their templates and pages from here. When unpacked elsewhere, they find them through
# descriptor 9, which a wrapper opens. Both paths must have the same length, because the path is replaced
# inside the program.
SYSTEM_SHARE = b"/usr/share/prometheus"
MOVED_SHARE = b"/proc/self/fd/9".ljust(len(SYSTEM_SHARE), b"/")
CHROMIUM_WRAPPER = """\
#!/bin/sh
root=$(cd "$(dirname "$0")/../chromium" && pwd)
for folder in "$root"/usr/lib/*-linux-gnu "$root"/usr/lib/*-linux-gnu/pulseaudio; do
    LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
done
export LD_LIBRARY_PATH
[ -e /etc/fonts/fonts.conf ] || export FONTCONFIG_FILE="$root/etc/fonts/fonts.conf"
exec "$root/usr/lib/chromium/chromium" "$@"
"""


class UnavailableError(Exception):
    """Raised when something is unavailable on this machine; the message states what, and the fix."""


def print_progress(text: str) -> None:
    """Print one line of progress, and flush it."""
    print(text, flush=True)


def run(command: Sequence[str | Path], *, cwd: Path | None = None) -> str:
    """Run a command quietly and return its standard output; the error includes its output."""
    process = subprocess.run(command, cwd=cwd, text=True, capture_output=True, stdin=DEVNULL)
    if process.returncode != 0:
        raise UnavailableError(f"{' '.join(map(str, command))}\n{process.stdout}{process.stderr}".rstrip())
    return process.stdout


@contextlib.contextmanager
def hold_lock() -> Iterator[None]:
    """Hold the lock of this checkout's tools, so that concurrent targets do the work once."""
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# --- the virtual environment -------------------------------------------------------------------


def provide_venv(group: str) -> None:
    """Create ``.venv`` unless it works; install the pinned packages and this project."""
    python = VENV / "bin" / "python"
    if not is_working(python, "-c", "import pip"):
        print_progress(f"Making .venv with Python {platform.python_version()} ...")
        make_venv(python)
    print_progress(f"Installing Python packages of requirements/{group}.txt ...")
    # Python writes bytecode on the first import; skipping it here halves the time until `up` can start.
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-compile"]
    pip = [str(python), "-m", "pip", "install", *options]
    run([*pip, "--require-hashes", "--requirement", ROOT / "requirements" / f"{group}.txt"])
    run([*pip, "--no-deps", "--no-build-isolation", "--no-index", "--editable", ROOT])


def make_venv(python: Path) -> None:
    """Create ``.venv``, even if the system's Python has no ensurepip, as on Debian."""
    shutil.rmtree(VENV, ignore_errors=True)
    if is_working(sys.executable, "-c", "import ensurepip, venv"):
        run([sys.executable, "-m", "venv", VENV])
        return
    if not shutil.which("apt-get"):
        raise UnavailableError(
            f"{sys.executable} has no ensurepip, so it cannot make a virtual environment with pip. "
            "Install your system's package that brings it (often called python3-venv) and run make again."
        )
    run([sys.executable, "-m", "venv", "--without-pip", VENV])
    root = TOOLS / "pip"
    unpack(["python3-pip-whl"], root)
    [wheel] = root.glob("usr/share/python-wheels/pip-*.whl")
    # A wheel is a zip file, and Python runs a package inside one.
    run([python, f"{wheel}/pip", "install", "--quiet", "--no-index", "--no-deps", wheel])


def is_working(program: str | Path, *arguments: str) -> bool:
    """Return whether a program starts and exits with code 0."""
    try:
        result = subprocess.run([program, *arguments], capture_output=True, stdin=DEVNULL, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0


# --- programs ----------------------------------------------------------------------------------


def find_missing(programs: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the programs that are neither in the environment, nor on PATH, nor in ``.tools/bin``."""
    return [
        name
        for name, others in programs.items()
        if not os.environ.get(f"{name.upper()}_BIN")
        and not any(map(shutil.which, (name, *others)))
        and not is_working(BIN / name, "--version")
    ]


def provide_programs() -> None:
    """Install the programs of Prometheus and Alertmanager into ``.tools/bin`` unless they are present."""
    if not (names := find_missing(PROGRAMS)):
        return
    if sys.platform == "darwin":
        raise UnavailableError(f"Not found: {', '.join(names)}. Run: brew install prometheus alertmanager")
    require_apt(names)
    print_progress(f"Fetching {', '.join(names)} ...")
    unpack_programs(TOOLS / "prometheus", BIN, HERE)


def provide_newest() -> None:
    """Install the newest programs of Prometheus and Alertmanager into ``.tools/newest/bin``, for tests."""
    if all(is_working(NEWEST / "bin" / name, "--version") for name in PROGRAMS):
        return
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb") and DEBIAN_KEYS.is_file()):
        raise UnavailableError(
            "The newest prometheus and alertmanager are Debian packages, and this is not Debian "
            f"(apt-get, dpkg-deb and {DEBIAN_KEYS} are needed)."
        )
    print_progress("Fetching the newest prometheus, promtool, alertmanager, amtool ...")
    sources = TOOLS / "apt" / "sid.list"
    sources.parent.mkdir(parents=True, exist_ok=True)
    sources.write_text(f"deb [signed-by={DEBIAN_KEYS}] {debian_mirror()} sid main\n")
    unpack_programs(NEWEST / "prometheus", NEWEST / "bin", Apt("newest", sources))


def debian_mirror() -> str:
    """Return this machine's Debian mirror, which also has the newest packages."""
    HERE.get("update")
    query = ["indextargets", "--format", "$(SITE)", "Created-By: Packages", "Origin: Debian"]
    for site in run([*HERE.command, *query]).splitlines():
        if site.rstrip("/").endswith("/debian"):
            return site
    raise UnavailableError(
        "The newest prometheus and alertmanager need a Debian mirror, and apt has none configured."
    )


def unpack_programs(root: Path, bin_: Path, apt: Apt) -> None:
    """Unpack Prometheus and Alertmanager below ``root``, with scripts in ``bin_`` that start them."""
    apt.get("update")
    depends = run([*apt.cache, "depends", "prometheus"])
    # promtool, if it is a separate package, and the assets of the web UI. The other dependencies are for
    # running it as a service.
    extra_packages = [word for word in depends.split() if word.startswith(("promtool", "libjs-", "fonts-"))]
    unpack(["prometheus", "prometheus-alertmanager", *extra_packages], root, apt, update=False)
    for program in PROGRAMS:
        [original] = [
            path for name in (program, *PROGRAMS[program]) if (path := root / "usr" / "bin" / name).is_file()
        ]
        original.write_bytes(original.read_bytes().replace(SYSTEM_SHARE, MOVED_SHARE))
        install_script(
            bin_ / program,
            "#!/bin/sh\n"
            'root=$(cd "$(dirname "$0")/../prometheus" && pwd)\n'
            'exec 9<"$root/usr/share/prometheus"\n'
            f'exec "$root/usr/bin/{original.name}" "$@"\n',
        )
    check_programs(PROGRAMS, bin_)


def provide_browser() -> None:
    """Install Chromium into ``.tools/bin`` unless a browser is present."""
    if not (names := find_missing(BROWSERS)) or any(Path(path).exists() for path in MAC_BROWSERS):
        return
    if sys.platform == "darwin":
        raise UnavailableError(
            "No browser found. Run: brew install --cask google-chrome (or set CHROMIUM_BIN)"
        )
    require_apt(names)
    print_progress("Fetching chromium and the libraries it lacks here (about 120 MB) ...")
    root = TOOLS / "chromium"
    unpack_with_missing(["chromium", "fonts-dejavu-core"], root)
    fonts = root / "etc" / "fonts" / "fonts.conf"
    if fonts.exists():
        text = fonts.read_text()
        fonts.write_text(text.replace("<dir>/usr/share/fonts", f"<dir>{root}/usr/share/fonts"))
    install_script(BIN / "chromium", CHROMIUM_WRAPPER)
    check_programs(BROWSERS, BIN)


def provide_builder() -> None:
    """Install buildah into ``.tools/bin``, and create the Debian base of the image."""
    if is_working(BIN / "buildah", "--version") and (BUILDER / "base.tar").exists():
        return
    if os.geteuid() != 0 or sys.platform == "darwin":
        raise UnavailableError("Building the image needs root on Linux.")
    require_apt(["buildah"])
    print_progress("Fetching buildah, and making a Debian to build the image from ...")
    unpack_with_missing(["buildah", "mmdebstrap", "patchelf"], BUILDER)
    programs = BUILDER / "usr" / "bin"
    # Not an environment variable: buildah restarts itself without its environment.
    libraries = ":".join(map(str, BUILDER.glob("usr/lib/*-linux-gnu")))
    run([programs / "patchelf", "--set-rpath", libraries, programs / "buildah"])
    draft = BUILDER / "draft.tar"
    packages = "--include=ca-certificates,passwd,python-is-python3,python3-venv"
    options = ["--variant=essential", "--dpkgopt=force-unsafe-io", packages]
    run([programs / "mmdebstrap", *options, BASE_SUITE, draft, debian_mirror()])
    draft.rename(BUILDER / "base.tar")
    install_script(BIN / "buildah", f'#!/bin/sh\nexec "{programs}/buildah" "$@"\n')
    check_programs(["buildah"], BIN)


def require_apt(names: Sequence[str]) -> None:
    """Raise if there is no apt; the message states the fix."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        variables = ", ".join(f"{name.upper()}_BIN" for name in names)
        raise UnavailableError(
            f"Not found: {', '.join(names)}. Install them so that they are on PATH, or set {variables}."
        )


def check_programs(programs: Iterable[str], bin_: Path) -> None:
    """Raise if a program was unpacked but does not start."""
    for name in programs:
        if not is_working(bin_ / name, "--version"):
            raise UnavailableError(f"{bin_ / name} was unpacked but does not run; set {name.upper()}_BIN.")


def install_script(path: Path, text: str) -> None:
    """Write an executable script atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(0o755)
    draft.replace(path)


# --- Debian packages, without installing them ---------------------------------------------------


class Apt:
    """apt with its own lists and cache in ``.tools/apt/NAME``; by default with this system's sources."""

    def __init__(self, name: str, sources: Path | None = None) -> None:
        self.folder = TOOLS / "apt" / name
        options = [
            f"Dir::State={self.folder / 'state'}",
            "Dir::State::status=/var/lib/dpkg/status",
            f"Dir::Cache={self.folder / 'cache'}",
            "Acquire::Languages=none",
            "Acquire::Retries=3",
            # As root, apt would download as a user that cannot write here.
            f"APT::Sandbox::User={'root' if os.geteuid() == 0 else ''}",
        ]
        if sources:
            options += [f"Dir::Etc::SourceList={sources}", "Dir::Etc::SourceParts=-"]
            # An outdated mirror is accepted: signatures are checked, and nothing is installed.
            options += ["Acquire::Check-Valid-Until=false"]
        option_words = [word for option in options for word in ("-o", option)]
        self.command = ("apt-get", "--quiet", *option_words)
        self.cache = ("apt-cache", *option_words)

    def get(self, *arguments: str, cwd: Path | None = None) -> None:
        """Run apt-get."""
        for folder in ("state/lists/partial", "cache/archives/partial"):
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
        run([*self.command, *arguments], cwd=cwd)


HERE = Apt("here")


def unpack(packages: Sequence[str], root: Path, apt: Apt = HERE, *, update: bool = True) -> None:
    """Download Debian packages and unpack them into ``root``, which is created atomically."""
    if update:
        apt.get("update")
    with tempfile.TemporaryDirectory(dir=TOOLS, prefix="unpacking-") as scratch:
        apt.get("download", *packages, cwd=Path(scratch))
        for package in sorted(Path(scratch).glob("*.deb")):
            run(["dpkg-deb", "-x", package, Path(scratch) / "root"])
        shutil.rmtree(root, ignore_errors=True)
        root.parent.mkdir(parents=True, exist_ok=True)
        (Path(scratch) / "root").rename(root)
    shutil.rmtree(apt.folder / "cache", ignore_errors=True)


def unpack_with_missing(packages: Sequence[str], root: Path) -> None:
    """Download and unpack Debian packages and their missing dependencies."""
    HERE.get("update")
    # A dry run of the installation lists them.
    plan = run([*HERE.command, "--simulate", "--no-install-recommends", "install", *packages])
    missing_packages = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
    unpack(list(dict.fromkeys([*packages, *missing_packages])), root, update=False)


def main(arguments: Sequence[str]) -> int:
    """Run the requested target; on failure, print one message and return 1."""
    try:
        with hold_lock():
            match arguments:
                case ["venv", ("run" | "llm" | "dev") as group]:
                    provide_venv(group)
                case ["programs"]:
                    provide_programs()
                case ["newest"]:
                    provide_newest()
                case ["browser"]:
                    provide_browser()
                case ["builder"]:
                    provide_builder()
                case _:
                    print(__doc__, file=sys.stderr)
                    return 2
    except UnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
