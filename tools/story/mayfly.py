"""An agent in a separate process with its own `/metrics`, which is killed while it works."""

from __future__ import annotations

import sys
import time

from prometheus_client import CollectorRegistry

from queenright.instrumentation import Verdict, Worker, serve_metrics


def main(endpoint: str, port: int) -> None:
    """Work until the process is killed."""
    registry = CollectorRegistry()
    serve_metrics(port, registry=registry)
    with Worker(
        "mayfly", framework="story", endpoint=endpoint, registry=registry, heartbeat_interval=0.5
    ) as worker:
        while True:
            with worker.step("dance") as step:
                step.verdict(Verdict.ACCEPT)
            time.sleep(0.25)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
