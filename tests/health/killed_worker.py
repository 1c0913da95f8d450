"""
A process with the worker ``bee``, whose model call in the second node blocks until the process is killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tests.health.runtime_parts import Colony
from tests.runtime.conftest import FakeTime


async def main(folder: Path) -> None:
    target = await Colony(folder, FakeTime()).begin_run()
    print(json.dumps(target._asdict()), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
