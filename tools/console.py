"""
Build the console: ``make console``. Needs Node; the build is committed, so that running the service does not.

1. Write the API's OpenAPI document.
2. Install the packages of ``server/console/package-lock.json``, unless they are installed.
3. Lint the code, make types of the document, check the code against them, test it, and build it into the
   package's pages.

``--lint``, which ``make check`` passes, only lints; without npm, it says so and succeeds.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from queenright.server.app import create_routes

SOURCE: Final = Path(__file__).parents[1] / "server" / "console"
BUILT: Final = Path(__file__).parents[1] / "server" / "queenright" / "server" / "pages" / "console"
_GENERATED_FILES: Final = {"node_modules", "openapi.json", "schema.d.ts"}


def source_digest(folder: Path = SOURCE) -> str:
    """Return a hash of the console's sources, except the API's types."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        relative_path = path.relative_to(folder)
        if path.is_file() and path.suffix != ".md" and not _GENERATED_FILES.intersection(relative_path.parts):
            digest.update(f"{relative_path.as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def openapi() -> str:
    """Return the API's OpenAPI document as JSON."""
    return json.dumps(create_routes().openapi(), indent=1)


def main() -> int:
    """Build the console, or lint it; return the exit status."""
    only_lint = sys.argv[1:] == ["--lint"]
    if (npm := shutil.which("npm")) is None:
        if only_lint:
            print("The console is not linted: npm was not found.", file=sys.stderr)
            return 0
        print("npm was not found: install Node 20.19 or newer and run this again.", file=sys.stderr)
        return 1
    commands = [["run", "lint"]]
    if not only_lint:
        (SOURCE / "openapi.json").write_text(openapi())
        commands += [["run", "types"], ["test"], ["run", "build"]]
    if not (SOURCE / "node_modules" / ".package-lock.json").exists():
        commands.insert(0, ["ci"])
    for command in commands:
        subprocess.run([npm, "--silent", *command], cwd=SOURCE, check=True)
    if only_lint:
        return 0
    (BUILT / "source.txt").write_text(source_digest() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
