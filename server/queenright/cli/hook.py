"""
`queenright hook`: pass one hook call of a coding agent to the service, and the answer back.

The coding agent waits for this process, so it imports only small parts of the standard library. On any
error it exits with code 0 within ``LIMIT`` seconds, and the agent continues. With ``--wait``, it waits longer
for an answer that has begun by then: the service delays the answer to a permission request until an operator
decides.
"""

from __future__ import annotations

import _thread
import os
import socket
import sys

LIMIT = 0.9
"""Maximum seconds until the answer begins; clients wait for one second."""
MAX_WAIT_SECONDS = 3600.0
CLIENTS = {"claude-code": "claude-code", "codex": "codex", "gemini": "gemini-cli"}
"""Name on the command line, and in the path of the service's hook URL."""
OTLP_URL = "http://127.0.0.1:4318"
_MAX_ANSWER = 1024 * 1024
_URL_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")


def main() -> None:
    """Run `queenright hook` with the arguments of the command line."""
    forward_call(sys.argv[2:])


def forward_call(arguments: list[str]) -> None:
    """Pass the call on stdin to the service, print its answer if it is a JSON object, and exit."""
    answers: list[bytes] = []
    waiting_times: list[float] = []
    end_lock = _thread.allocate_lock()
    end_lock.acquire()
    # In a thread, because a name lookup cannot be interrupted and must not block the agent.
    _thread.start_new_thread(_run, (arguments, answers, waiting_times, end_lock))
    try:
        if not end_lock.acquire(timeout=LIMIT) and waiting_times:
            # The answer has begun: the service waits for an operator.
            end_lock.acquire(timeout=waiting_times[0])
        if answers:
            os.write(1, answers[0])
    finally:
        # Exit after an interrupt as well: there is nothing to clean up, and a regular shutdown takes time.
        os._exit(0)


def _run(
    arguments: list[str], answers: list[bytes], waiting_times: list[float], end_lock: _thread.LockType
) -> None:
    # Errors are dropped: the agent must continue, and its user cannot act on output of a hook.
    try:
        if answer := _forward(arguments, waiting_times):
            answers.append(answer)
    except Exception:
        pass
    finally:
        end_lock.release()


def _forward(arguments: list[str], waiting_times: list[float]) -> bytes:
    client, arguments = CLIENTS[arguments[0]], [part for word in arguments[1:] for part in word.split("=", 1)]
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    url = options.get("--otlp-url") or OTLP_URL
    scheme, _, address = url.partition("://")
    authority, _, path = address.partition("/")
    host, _, port = authority.rpartition("@")[2].rpartition(":")
    if not host or not port.isdigit():
        host, port = authority, "443" if scheme == "https" else "80"
    query = "&".join(f"{key}={_quote(value)}" for key, value in _list_owner_parameters() if value)
    headers = {
        "Host": authority,
        "Content-Type": "application/json",
        "Connection": "close",
    }
    if file := options.get("--token-file"):
        with open(file, encoding="utf-8") as stream:
            headers["Authorization"] = f"Bearer {stream.read(4096).strip()}"
    body = _read_all(0)
    headers["Content-Length"] = str(len(body))
    target = f"{'/' + path.strip('/') if path.strip('/') else ''}/hooks/{client}?{query}"
    lines = [f"POST {target} HTTP/1.1", *(f"{key}: {value}" for key, value in headers.items()), "", ""]
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout=LIMIT)
    if scheme == "https":
        import ssl

        connection = ssl.create_default_context().wrap_socket(connection, server_hostname=host.strip("[]"))
    connection.sendall("\r\n".join(lines).encode("latin-1") + body)
    first_part = connection.recv(1 << 16)
    if seconds := min(float(options.get("--wait") or 0.0), MAX_WAIT_SECONDS):
        connection.settimeout(seconds)
        waiting_times.append(seconds)
    return _extract_json_object(_receive_response(connection, first_part))


def _list_owner_parameters() -> list[tuple[str, str]]:
    user = os.environ.get("USER") or os.environ.get("LOGNAME")
    if not user:
        import pwd

        user = pwd.getpwuid(os.getuid()).pw_name
    return [("user", user), ("host", socket.gethostname())]


def _quote(text: str) -> str:
    """Percent-encode a query value; importing ``urllib.parse`` would take too long."""
    raw = text.encode("utf-8", "replace")
    return "".join(chr(byte) if byte in _URL_SAFE else f"%{byte:02X}" for byte in raw)


def _read_all(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, 1 << 16):
        parts.append(part)
    return b"".join(parts)


def _receive_response(connection: socket.socket, response: bytes) -> bytes:
    while part := connection.recv(1 << 16):
        response += part
        if len(response) > _MAX_ANSWER:
            return b""
    return response


def _extract_json_object(response: bytes) -> bytes:
    """Return the body of a 200 response if it is a JSON object that is not empty; otherwise nothing."""
    head, _, body = response.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    if lines[0].split(b" ")[1:2] != [b"200"]:
        return b""
    for line in lines[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == b"content-length":
            if len(body) < int(value):
                return b""
            body = body[: int(value)]
        elif key.strip().lower() == b"transfer-encoding":
            body = _dechunk(body)
    body = body.strip()
    if body in (b"", b"{}"):
        return b""
    import json

    return body + b"\n" if isinstance(json.loads(body), dict) else b""


def _dechunk(body: bytes) -> bytes:
    content = b""
    while body:
        size, _, remaining_body = body.partition(b"\r\n")
        length = int(size.split(b";")[0], 16)
        if length == 0:
            return content
        content += remaining_body[:length]
        body = remaining_body[length + 2 :]
    return b""
