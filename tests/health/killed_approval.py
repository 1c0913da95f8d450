"""A process that approves a termination and is killed before or during the termination."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from queenright.health.store.store import Store
from tests.health.test_approvals import Asking


async def main(url: str, where: str) -> None:
    """Request a termination, approve it, and be killed."""

    async def dies() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    fleet = Asking(Store.open(url))
    await fleet.get_stuck()
    request = await fleet.ask()
    if where == "before":
        fleet.cut = dies
    else:
        fleet.hands.waits = dies
    await fleet.approvals.approve(request.approval_id, by="ada")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
