"""
The synchronous client, generated from the asynchronous one.

``python -m tests.client.generated`` checks that it is up to date; ``--write`` generates it.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import Final

CLIENT: Final = Path(__file__).parents[2] / "server" / "queenright" / "client"
SOURCE: Final = CLIENT / "asynchronous"
GENERATED: Final = CLIENT / "synchronous"

_REMOVED_KEYWORDS: Final = frozenset({"async", "await"})
_NAMES: Final = {
    "AsyncClient": "Client",
    "AsyncBaseTransport": "BaseTransport",
    "AsyncIterator": "Iterator",
    "StopAsyncIteration": "StopIteration",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclose": "close",
    "aread": "read",
    "aiter_bytes": "iter_bytes",
    "asynchronous": "synchronous",
    "asyncio": "time",
}
_PHRASES: Final = {
    "Callable[[float], Awaitable[object]]": "Callable[[float], object]",
    "Awaitable, Callable": "Callable",
    '"""The asynchronous client. The synchronous one is generated: '
    '``python -m tests.client.generated --write``."""': '"""The synchronous client, generated from the '
    'asynchronous: ``python -m tests.client.generated --write``."""',
}


def made() -> dict[str, str]:
    """Return the modules of the client that is not awaited, by name."""
    return {
        file.name: _formatted(_unawaited(file.read_text("utf-8"))) for file in sorted(SOURCE.glob("*.py"))
    }


def _unawaited(source: str) -> str:
    """Return a module without what only a coroutine has."""
    for phrase, other in _PHRASES.items():
        source = source.replace(phrase, other)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    lines = source.splitlines(keepends=True)
    # From the end, so that what is changed moves nothing that is still to be changed.
    for token in reversed(tokens):
        if token.type != tokenize.NAME:
            continue
        row, begin, end = token.start[0] - 1, token.start[1], token.end[1]
        line = lines[row]
        if token.string in _REMOVED_KEYWORDS:
            lines[row] = line[:begin] + line[end:].removeprefix(" ")
        elif (name := _named(token.string)) != token.string:
            lines[row] = line[:begin] + name + line[end:]
    return "".join(lines)


def _named(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    # Ours: AsyncTickets is Tickets there.
    return name.removeprefix("Async") if name.startswith("Async") else name


def _formatted(source: str) -> str:
    """Return a module as it is formatted, with its imports in order, and `yield from` where it can be."""
    ruff = [sys.executable, "-m", "ruff"]
    where = ["--stdin-filename", str(GENERATED / "module.py"), "-"]
    mended = ["check", "--select", "I,UP028", "--fix", "--unsafe-fixes", "--quiet"]
    for step in (mended, ["format", "--quiet"]):
        done = subprocess.run(
            [*ruff, *step, *where], input=source, capture_output=True, text=True, check=True
        )
        source = done.stdout
    return source


def main() -> int:
    """Say what differs, or write what is made."""
    found = made()
    if "--write" in sys.argv[1:]:
        GENERATED.mkdir(exist_ok=True)
        for old in GENERATED.glob("*.py"):
            if old.name not in found:
                old.unlink()
        for name, text in found.items():
            (GENERATED / name).write_text(text, "utf-8")
        return 0
    differ = [name for name, text in found.items() if not _is(GENERATED / name, text)]
    print("\n".join(differ) or "All as they would be made.")
    return 1 if differ else 0


def _is(file: Path, text: str) -> bool:
    return file.is_file() and file.read_text("utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
