"""A process that approves a termination and is killed: before it is begun, or while the worker is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from queenright.health.store import Store
from tests.health.test_approvals import Asking


async def main(url: str, where: str) -> None:
    """Ask, approve, die."""

    async def dies() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    hive = Asking(Store.open(url))
    await hive.get_stuck()
    request = await hive.ask()
    if where == "before":
        hive.cut = dies
    else:
        hive.hands.waits = dies
    await hive.approvals.approve(request.approval_id, by="ada")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
