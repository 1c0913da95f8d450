"""The service's side of the control channel, as a small real HTTP server."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class Mailbox:
    """Keeps instructions until they are answered. A poll waits until there is an instruction."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.instructions: list[dict[str, Any]] = []
        self.answers: list[dict[str, Any]] = []
        self.polls: list[dict[str, str]] = []
        self.status = 200
        self.answer_status = 204
        self.body: bytes | None = None
        self.is_hanging = False
        self.is_stopping = False
        mailbox = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                agent = unquote(url.path.split("/")[3])
                parameters = {key: values[0] for key, values in parse_qs(url.query).items()}
                with mailbox.changed:
                    mailbox.polls.append({"agent": agent, **parameters})
                    mailbox.changed.notify_all()
                    deadline = time.monotonic() + float(parameters["wait"])
                    while not mailbox.should_respond and (remaining := deadline - time.monotonic()) > 0:
                        mailbox.changed.wait(remaining)
                    body = mailbox.body
                    if body is None:
                        body = json.dumps({"instructions": mailbox.instructions}).encode()
                self.reply(mailbox.status, body)

            def do_POST(self) -> None:
                decoded = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                instruction_id = unquote(self.path.split("/")[5])
                with mailbox.changed:
                    if mailbox.answer_status == 204:
                        mailbox.answers.append({"instruction_id": instruction_id, **decoded})
                        mailbox.instructions = [
                            instruction
                            for instruction in mailbox.instructions
                            if instruction.get("instruction_id") != instruction_id
                        ]
                    mailbox.changed.notify_all()
                self.reply(mailbox.answer_status, b"")

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
    def should_respond(self) -> bool:
        if self.is_stopping:
            return True
        return not self.is_hanging and bool(self.instructions or self.body is not None or self.status != 200)

    def add_instruction(self, kind: str, instruction_id: str, message: str = "", **fields: Any) -> None:
        """Put an instruction into the mailbox; it expires in ten minutes unless ``expires_at`` is given."""
        instruction = {
            "instruction_id": instruction_id,
            "kind": kind,
            "message": message,
            "expires_at": time.time() + 600,
            **fields,
        }
        with self.changed:
            self.instructions.append(instruction)
            self.changed.notify_all()

    def wait_for_answers(self, number: int = 1, seconds: float = 15.0) -> list[dict[str, Any]]:
        """Wait for at least ``number`` answers, and return all of them."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.answers) >= number, seconds)
            return list(self.answers)

    def wait_for_polls(self, number: int = 1, seconds: float = 15.0) -> list[dict[str, str]]:
        """Wait for at least ``number`` polls, and return all of them."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.polls) >= number, seconds)
            return list(self.polls)

    def stop(self) -> None:
        with self.changed:
            self.is_stopping = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
