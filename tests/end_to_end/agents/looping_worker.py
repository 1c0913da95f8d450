"""
A looping agent with `queenright.instrumentation`, in its own process.

``looping_worker.py RECOVER_FILE STOP_FILE`` repeats one search with the same result until the first file
exists, and then makes progress until the second file exists.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from queenright.instrumentation import Worker


def search(word: str) -> list[str]:
    """Search this file for a word that it does not contain."""
    text = Path(__file__).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if word[::-1] in line]


def main(recover: Path, stop: Path) -> None:
    with Worker("looping_agent", framework="test") as worker:
        part_count = 0
        while not stop.exists():
            with worker.step("researcher") as step:
                if recover.exists():
                    part_count += 1
                    with step.tool("read", {"part": part_count}) as call:
                        call.result(f"part {part_count} of the text")
                    step.verdict("ACCEPT")
                else:
                    with step.tool("search", {"word": "nowhere"}) as call:
                        call.result(search("nowhere"))
                    step.verdict("RETRY", feedback="nothing found")
            time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
