"""A process that approves a termination and is killed before or during the termination."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from queenright.health.store.store import Store
from tests.health.test_approvals import ApprovalFleet


async def main(url: str, moment: str) -> None:
    """Request a termination, approve it, and be killed."""

    async def kill_process() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    fleet = ApprovalFleet(Store.open(url))
    await fleet.start_stuck_worker()
    request = await fleet.request_approval()
    if moment == "before":
        fleet.before_termination = kill_process
    else:
        fleet.control.before_terminate = kill_process
    await fleet.approvals.approve(request.approval_id, by="ada")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
