"""The service's side of the control channel, as a small real HTTP server."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class Mailbox:
    """Keeps instructions until they are answered, and holds a question until there are some."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.instructions: list[dict[str, Any]] = []
        self.answers: list[dict[str, Any]] = []
        self.questions: list[dict[str, str]] = []
        self.status = 200
        self.answer_status = 204
        self.body: bytes | None = None
        self.hangs = False
        self.stopping = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                agent = unquote(url.path.split("/")[3])
                parameters = {key: values[0] for key, values in parse_qs(url.query).items()}
                with outer.changed:
                    outer.questions.append({"agent": agent, **parameters})
                    outer.changed.notify_all()
                    until = time.monotonic() + float(parameters["wait"])
                    while not outer.ready and (left := until - time.monotonic()) > 0:
                        outer.changed.wait(left)
                    body = outer.body
                    if body is None:
                        body = json.dumps({"instructions": outer.instructions}).encode()
                self.reply(outer.status, body)

            def do_POST(self) -> None:
                decoded = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                instruction_id = unquote(self.path.split("/")[5])
                with outer.changed:
                    if outer.answer_status == 204:
                        outer.answers.append({"instruction_id": instruction_id, **decoded})
                        outer.instructions = [
                            instruction
                            for instruction in outer.instructions
                            if instruction.get("instruction_id") != instruction_id
                        ]
                    outer.changed.notify_all()
                self.reply(outer.answer_status, b"")

            def reply(self, status: int, body: bytes) -> None:
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    self.close_connection = True

            def log_message(self, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def ready(self) -> bool:
        if self.stopping:
            return True
        return not self.hangs and bool(self.instructions or self.body is not None or self.status != 200)

    def tell(self, kind: str, instruction_id: str, message: str = "", **more: Any) -> None:
        """Put an instruction into the mailbox; it holds for ten minutes unless ``expires_at`` says else."""
        one = {
            "instruction_id": instruction_id,
            "kind": kind,
            "message": message,
            "expires_at": time.time() + 600,
            **more,
        }
        with self.changed:
            self.instructions.append(one)
            self.changed.notify_all()

    def answered(self, number: int = 1, seconds: float = 15.0) -> list[dict[str, Any]]:
        """Wait until so many answers have come, and return all of them."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.answers) >= number, seconds)
            return list(self.answers)

    def asked(self, number: int = 1, seconds: float = 15.0) -> list[dict[str, str]]:
        """Wait until so many fetches have come, and return all of them."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.questions) >= number, seconds)
            return list(self.questions)

    def stop(self) -> None:
        with self.changed:
            self.stopping = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
