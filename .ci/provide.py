"""
Provide what the Makefile's targets need: the virtual environment, and programs that PyPI does not carry.

Runs before anything is installed, so it uses the standard library only. Everything it makes lies in
``.venv/`` and ``.tools/``; it needs no root, installs nothing on the system and starts no service.

    provide.py venv GROUP       .venv with requirements/GROUP.txt (run, llm, dev) and this project, editable
    provide.py programs         prometheus, promtool, alertmanager, amtool
    provide.py browser          chromium

Programs are looked for in the environment (``PROMETHEUS_BIN`` and the like), on ``PATH``, then in
``.tools/bin``. On Debian and Ubuntu those still missing are downloaded as packages and unpacked.
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
TOOLS = ROOT / ".tools"
BIN = TOOLS / "bin"

# Program -> the other names it goes by; Debian's package calls alertmanager by its own name.
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
# Debian's builds read their templates and pages from here. Unpacked elsewhere, they find them through
# descriptor 9, which a wrapper opens: a path of the same length, because it is inside the program.
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


class Unavailable(Exception):
    """Something cannot be had here; the message says what, and the way out."""


def say(text: str) -> None:
    """Print one line of progress at once."""
    print(text, flush=True)


def run(command: Sequence[str | Path], *, cwd: Path | None = None) -> str:
    """Run a command quietly and return its standard output; its own words are shown when it fails."""
    done = subprocess.run(command, cwd=cwd, text=True, capture_output=True, stdin=DEVNULL)
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Hold the lock of this checkout's tools, so that two targets at once do the work once."""
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# --- the virtual environment -------------------------------------------------------------------


def provide_venv(group: str) -> None:
    """Make ``.venv`` if there is none that runs, install the pinned packages and this project."""
    python = VENV / "bin" / "python"
    if not runs(python, "-c", "import pip"):
        say(f"Making .venv with Python {platform.python_version()} ...")
        make_venv(python)
    say(f"Installing Python packages of requirements/{group}.txt ...")
    # Bytecode is written for what is imported, when it is: that halves the time until `up` can start.
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-compile"]
    pip = [str(python), "-m", "pip", "install", *options]
    run([*pip, "--require-hashes", "--requirement", ROOT / "requirements" / f"{group}.txt"])
    run([*pip, "--no-deps", "--no-build-isolation", "--no-index", "--editable", ROOT])


def make_venv(python: Path) -> None:
    """Make ``.venv``, also where the system's Python comes without ensurepip, as Debian's does."""
    shutil.rmtree(VENV, ignore_errors=True)
    if runs(sys.executable, "-c", "import ensurepip, venv"):
        run([sys.executable, "-m", "venv", VENV])
        return
    if not shutil.which("apt-get"):
        raise Unavailable(
            f"{sys.executable} has no ensurepip, so it cannot make a virtual environment with pip. "
            "Install your system's package that brings it (often called python3-venv) and run make again."
        )
    run([sys.executable, "-m", "venv", "--without-pip", VENV])
    root = TOOLS / "pip"
    unpack(["python3-pip-whl"], root)
    [wheel] = root.glob("usr/share/python-wheels/pip-*.whl")
    # A wheel is a zip file, and Python runs a package inside one.
    run([python, f"{wheel}/pip", "install", "--quiet", "--no-index", "--no-deps", wheel])


def runs(program: str | Path, *arguments: str) -> bool:
    """Tell whether a program starts and ends well."""
    try:
        done = subprocess.run([program, *arguments], capture_output=True, stdin=DEVNULL, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


# --- programs ----------------------------------------------------------------------------------


def missing(programs: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the names that are neither in the environment, nor on PATH, nor in ``.tools/bin``."""
    return [
        name
        for name, others in programs.items()
        if not os.environ.get(f"{name.upper()}_BIN")
        and not any(map(shutil.which, (name, *others)))
        and not runs(BIN / name, "--version")
    ]


def provide_programs() -> None:
    """Put Prometheus' and Alertmanager's programs into ``.tools/bin`` unless they are already to be found."""
    if not (names := missing(PROGRAMS)):
        return
    if sys.platform == "darwin":
        raise Unavailable(f"Not found: {', '.join(names)}. Run: brew install prometheus alertmanager")
    require_apt(names)
    say(f"Fetching {', '.join(names)} ...")
    root = TOOLS / "prometheus"
    packages = ["prometheus", "prometheus-alertmanager"]
    apt("update")
    depends = run([*APT_CACHE, "depends", "prometheus"])
    # What Prometheus' pages are drawn with; the other dependencies are for running it as a service.
    pages = [word for word in depends.split() if word.startswith(("libjs-", "fonts-"))]
    unpack([*packages, *pages], root, update=False)
    for program in PROGRAMS:
        [original] = [
            path for name in (program, *PROGRAMS[program]) if (path := root / "usr" / "bin" / name).is_file()
        ]
        original.write_bytes(original.read_bytes().replace(SYSTEM_SHARE, MOVED_SHARE))
        install_script(
            program,
            "#!/bin/sh\n"
            'root=$(cd "$(dirname "$0")/../prometheus" && pwd)\n'
            'exec 9<"$root/usr/share/prometheus"\n'
            f'exec "$root/usr/bin/{original.name}" "$@"\n',
        )
    check_they_run(PROGRAMS)


def provide_browser() -> None:
    """Put Chromium into ``.tools/bin`` unless a browser is already to be found."""
    if not (names := missing(BROWSERS)) or any(Path(path).exists() for path in MAC_BROWSERS):
        return
    if sys.platform == "darwin":
        raise Unavailable("No browser found. Run: brew install --cask google-chrome (or set CHROMIUM_BIN)")
    require_apt(names)
    say("Fetching chromium and the libraries it lacks here (about 120 MB) ...")
    apt("update")
    # A dry run of the installation names the packages that this machine lacks.
    plan = run([*APT, "--simulate", "--no-install-recommends", "install", "chromium", "fonts-dejavu-core"])
    packages = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
    root = TOOLS / "chromium"
    unpack(packages, root, update=False)
    fonts = root / "etc" / "fonts" / "fonts.conf"
    if fonts.exists():
        text = fonts.read_text()
        fonts.write_text(text.replace("<dir>/usr/share/fonts", f"<dir>{root}/usr/share/fonts"))
    install_script("chromium", CHROMIUM_WRAPPER)
    check_they_run(BROWSERS)


def require_apt(names: Sequence[str]) -> None:
    """Refuse where there is no apt, with the way out."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        variables = ", ".join(f"{name.upper()}_BIN" for name in names)
        raise Unavailable(
            f"Not found: {', '.join(names)}. Install them so that they are on PATH, or set {variables}."
        )


def check_they_run(programs: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse programs that were unpacked but do not start."""
    for name in programs:
        if not runs(BIN / name, "--version"):
            raise Unavailable(f"{BIN / name} was unpacked but does not run; set {name.upper()}_BIN.")


def install_script(name: str, text: str) -> None:
    """Write an executable script into ``.tools/bin`` in one step."""
    BIN.mkdir(parents=True, exist_ok=True)
    draft = BIN / f".{name}.{os.getpid()}"
    draft.write_text(text)
    draft.chmod(0o755)
    draft.replace(BIN / name)


# --- Debian packages, without installing them ---------------------------------------------------

OWN_APT = (
    *("-o", f"Dir::State={TOOLS / 'apt' / 'state'}"),
    *("-o", "Dir::State::status=/var/lib/dpkg/status"),
    *("-o", f"Dir::Cache={TOOLS / 'apt' / 'cache'}"),
    *("-o", "Acquire::Languages=none"),
    *("-o", "Acquire::Retries=3"),
    # As root, apt would hand downloads to a user that cannot write here.
    *("-o", f"APT::Sandbox::User={'root' if os.geteuid() == 0 else ''}"),
)
APT = ("apt-get", "--quiet", *OWN_APT)
APT_CACHE = ("apt-cache", *OWN_APT)


def apt(*arguments: str, cwd: Path | None = None) -> None:
    """Run apt-get with its lists and its cache in ``.tools/apt``."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (TOOLS / "apt" / folder).mkdir(parents=True, exist_ok=True)
    run([*APT, *arguments], cwd=cwd)


def unpack(packages: Sequence[str], root: Path, *, update: bool = True) -> None:
    """Download Debian packages and unpack them below ``root``, which appears whole or not at all."""
    if update:
        apt("update")
    with tempfile.TemporaryDirectory(dir=TOOLS, prefix="unpacking-") as scratch:
        apt("download", *packages, cwd=Path(scratch))
        for package in sorted(Path(scratch).glob("*.deb")):
            run(["dpkg-deb", "-x", package, Path(scratch) / "root"])
        shutil.rmtree(root, ignore_errors=True)
        (Path(scratch) / "root").rename(root)
    shutil.rmtree(TOOLS / "apt" / "cache", ignore_errors=True)


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments ask; a failure is one plain message and exit code 1."""
    try:
        with alone():
            match arguments:
                case ["venv", ("run" | "llm" | "dev") as group]:
                    provide_venv(group)
                case ["programs"]:
                    provide_programs()
                case ["browser"]:
                    provide_browser()
                case _:
                    print(__doc__, file=sys.stderr)
                    return 2
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
