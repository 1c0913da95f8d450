"""
Take the pictures of the console that README and docs show: ``python -m tools.console_pictures``.

A service with its demo must run (``make up``), and ``researcher`` must be stuck, which it is ten to thirty
seconds after the start.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

import httpx
from playwright.sync_api import sync_playwright

from queenright.server.ops.programs import find_program

FOLDER: Final = Path(__file__).parents[1] / "docs" / "pictures"
PICTURES: Final = {
    "console-session.png": "/console/agents/{agent}?session={session}",
    "console-fleet.png": "/console/",
    "console-recorder.png": "/console/agents/{agent}?session={session}&view=recorder",
}


def main() -> int:
    """Write the pictures; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8420")
    url = parser.parse_args().url
    tickets = httpx.get(f"{url}/api/tickets", params={"agent_id": "researcher"}).json()["tickets"]
    if not tickets:
        print("researcher has no ticket yet; run this again in a few seconds.", file=sys.stderr)
        return 1
    ticket = tickets[0]
    values = {
        "agent": ticket["agent_id"],
        "session": ticket["session_id"],
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_program("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page()
        for name, address in PICTURES.items():
            # The fleet is below the items that need a person.
            page.set_viewport_size({"width": 1280, "height": 1200 if name == "console-fleet.png" else 800})
            page.goto(url + address.format(**values))
            page.wait_for_timeout(5000)
            page.screenshot(path=FOLDER / name)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
