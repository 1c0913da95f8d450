"""An MCP server with one thread that hangs forever, has a child process, and ignores SIGTERM."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("hum", "hang", "slow")]


def respond(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        info = {"name": "hanging", "version": "1"}
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": info,
        }
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call" and params["name"] == "hang":
        time.sleep(3600)
    if method == "tools/call" and params["name"] == "slow":
        return None
    if method == "tools/call":
        return {"content": [{"type": "text", "text": "hum"}]}
    return {}


def main(folder: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with (folder / "starts").open("a", encoding="utf-8") as starts:
        starts.write("started\n")
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", str(folder)])
    print("Welcome to the hive!", "{", sep="\n", flush=True)
    sys.stdout.buffer.write(b"\xff\xfe\n")
    sys.stdout.flush()
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        if message["method"] == "tools/call":
            (folder / f"asked_{message['params']['name']}").touch()
        if message["method"] == "server/discover":
            error = {"code": -32601, "message": "no such method"}
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
        elif (result := respond(message["method"], message.get("params") or {})) is not None:
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
