"""
Three agents in one process that only serves metrics: one loops, one waits, and one is healthy.

``metrics_only.py PORT_FILE RECOVER_FILE STOP_FILE`` serves /metrics on a free port, and writes the port to
the first file. It stops looping when the second file exists, and ends when the third file exists.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from queenright.instrumentation import Telemetry, Worker, serve_metrics

LOOPING_AGENT, WAITING_AGENT, HEALTHY_AGENT = "looping_agent", "waiting_agent", "healthy_agent"


def main(port_file: Path, recover: Path, stop: Path) -> None:
    telemetry = Telemetry.muted()
    with (
        Worker(LOOPING_AGENT, telemetry=telemetry) as looping,
        Worker(WAITING_AGENT, telemetry=telemetry) as waiting,
        Worker(HEALTHY_AGENT, telemetry=telemetry) as healthy,
    ):
        for _ in range(25):
            with looping.step("researcher") as step:
                with step.tool("search", {"word": "nowhere"}) as call:
                    call.result([])
                step.verdict("RETRY", "found nothing")
        with waiting.step("writer") as step:
            step.verdict("CONTINUE")
        number = 0
        port_file.with_suffix(".new").write_text(str(serve_metrics(0)))
        port_file.with_suffix(".new").rename(port_file)
        with waiting.waiting("user_input"):
            while not stop.exists():
                number += 1
                with healthy.step("reader") as step:
                    with step.tool("read", {"part": number}) as call:
                        call.result(f"part {number}")
                    step.verdict("ACCEPT")
                with looping.step("researcher") as step:
                    with step.tool("search", {"word": "nowhere"}) as call:
                        call.result([number] if recover.exists() else [])
                    step.verdict("ACCEPT" if recover.exists() else "RETRY")
                time.sleep(0.1)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
