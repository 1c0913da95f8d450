"""
`queenright hook`: pass one hook call of a coding agent to the service, and the answer back.

The client waits for this process, so it imports the standard library's smallest parts only. Whatever is
wrong, it ends within `LIMIT` seconds with exit code 0, and the agent goes on. With `--wait`, an answer that
has begun by then is waited for: the service holds back that of a permission request for a person.
"""

from __future__ import annotations

import _thread
import os
import socket
import sys

LIMIT = 0.9
"""Seconds until the answer has to begin, at most; clients wait for one second."""
LONGEST_WAIT = 3600.0
CLIENTS = {"claude-code": "claude-code", "codex": "codex", "gemini": "gemini-cli"}
"""What a client is called here, and in the service's path."""
OTLP_URL = "http://127.0.0.1:4318"
_MAX_ANSWER = 1024 * 1024
_UNRESERVED = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")


def main() -> None:
    """Run `queenright hook` with the words of the command line."""
    pass_on(sys.argv[2:])


def pass_on(words: list[str]) -> None:
    """Pass the call on standard input to the service, print its answer if it is a JSON object, and exit."""
    answers: list[bytes] = []
    waits: list[float] = []
    finished = _thread.allocate_lock()
    finished.acquire()
    # In a thread: looking up a name cannot be interrupted, and must not hold up the agent.
    _thread.start_new_thread(_work, (words, answers, waits, finished))
    try:
        if not finished.acquire(timeout=LIMIT) and waits:
            # The answer has begun: the service is there, and waits for a person.
            finished.acquire(timeout=waits[0])
        if answers:
            os.write(1, answers[0])
    finally:
        # Also at an interrupt. Nothing is left to clean up, and an interpreter that shuts down takes time.
        os._exit(0)


def _work(words: list[str], answers: list[bytes], waits: list[float], finished: _thread.LockType) -> None:
    # Whatever is wrong, the agent goes on, and what a client prints of a hook is no place to say it.
    try:
        if answer := _forward(words, waits):
            answers.append(answer)
    except Exception:
        pass
    finally:
        finished.release()


def _forward(words: list[str], waits: list[float]) -> bytes:
    client, words = CLIENTS[words[0]], [part for word in words[1:] for part in word.split("=", 1)]
    options = dict(zip(words[::2], words[1::2], strict=True))
    url = options.get("--otlp-url") or OTLP_URL
    scheme, _, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    name, _, port = authority.rpartition("@")[2].rpartition(":")
    if not name or not port.isdigit():
        name, port = authority, "443" if scheme == "https" else "80"
    query = "&".join(f"{key}={_quote(value)}" for key, value in _owner() if value)
    head = {
        "Host": authority,
        "Content-Type": "application/json",
        "Connection": "close",
    }
    if file := options.get("--token-file"):
        with open(file, encoding="utf-8") as opened:
            head["Authorization"] = f"Bearer {opened.read(4096).strip()}"
    body = _read(0)
    head["Content-Length"] = str(len(body))
    target = f"{'/' + path.strip('/') if path.strip('/') else ''}/hooks/{client}?{query}"
    lines = [f"POST {target} HTTP/1.1", *(f"{key}: {value}" for key, value in head.items()), "", ""]
    connection = socket.create_connection((name.strip("[]"), int(port)), timeout=LIMIT)
    if scheme == "https":
        import ssl

        connection = ssl.create_default_context().wrap_socket(connection, server_hostname=name.strip("[]"))
    connection.sendall("\r\n".join(lines).encode("latin-1") + body)
    begin = connection.recv(1 << 16)
    if seconds := min(float(options.get("--wait") or 0.0), LONGEST_WAIT):
        connection.settimeout(seconds)
        waits.append(seconds)
    return _object_of(_receive(connection, begin))


def _owner() -> list[tuple[str, str]]:
    user = os.environ.get("USER") or os.environ.get("LOGNAME")
    if not user:
        import pwd

        user = pwd.getpwuid(os.getuid()).pw_name
    return [("user", user), ("host", socket.gethostname())]


def _quote(text: str) -> str:
    """Percent-encode a value of the query; ``urllib.parse`` takes longer to import than this process may."""
    raw = text.encode("utf-8", "replace")
    return "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in raw)


def _read(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, 1 << 16):
        parts.append(part)
    return b"".join(parts)


def _receive(connection: socket.socket, received: bytes) -> bytes:
    while part := connection.recv(1 << 16):
        received += part
        if len(received) > _MAX_ANSWER:
            return b""
    return received


def _object_of(response: bytes) -> bytes:
    """Return the body of a 200 answer that is a JSON object with something in it; else nothing."""
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
    whole = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size.split(b";")[0], 16)
        if length == 0:
            return whole
        whole += rest[:length]
        body = rest[length + 2 :]
    return b""
