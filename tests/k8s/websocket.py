"""The server's side of `exec` by a WebSocket (RFC 6455; subprotocols v4 and v5 of the kubelet):
the command runs here as a process of its own."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import subprocess
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from typing import Any

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, ERROR, CLOSE = 0, 1, 2, 3, 255
PIECE_BYTES = 32768


def exec_(handler: BaseHTTPRequestHandler, argv: Sequence[str], cwd: str) -> None:
    """Answer the handler's request by running `argv` in the folder `cwd`."""
    offered = handler.headers.get("Sec-WebSocket-Protocol", "").replace(" ", "").split(",")
    key = handler.headers["Sec-WebSocket-Key"].encode()
    handler.send_response(101)
    handler.send_header("Upgrade", "websocket")
    handler.send_header("Connection", "Upgrade")
    accept = base64.b64encode(hashlib.sha1(key + GUID, usedforsecurity=False).digest()).decode()
    handler.send_header("Sec-WebSocket-Accept", accept)
    handler.send_header("Sec-WebSocket-Protocol", next(p for p in PROTOCOLS if p in offered))
    handler.end_headers()
    handler.close_connection = True
    lock = threading.Lock()
    send(handler.wfile, lock, bytes([ERROR]) + _run(handler, lock, argv, cwd))
    with lock:
        handler.wfile.write(b"\x88\x02" + struct.pack("!H", 1000))


def _run(
    handler: BaseHTTPRequestHandler, lock: threading.Lock, argv: Sequence[str], cwd: str
) -> bytes:
    """Run the command, its output going out as it comes; the Status that tells its end."""
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(argv, cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe)
    except OSError as error:
        text = f"exec failed: {error.strerror}: {argv[0]}: no such file or directory"
        failure = {"status": "Failure", "message": text, "reason": "InternalError", "code": 500}
        return json.dumps(failure).encode()
    with process:
        threading.Thread(target=_feed, args=(handler.rfile, process), daemon=True).start()
        pumps = [
            threading.Thread(target=_pump, args=(handler.wfile, lock, channel, stream))
            for channel, stream in ((STDOUT, process.stdout), (STDERR, process.stderr))
        ]
        for pump in pumps:
            pump.start()
        for pump in pumps:
            pump.join()
        code = process.wait()
    if code == 0:
        return b'{"metadata":{},"status":"Success"}'
    cause = {"reason": "ExitCode", "message": str(code)}
    status = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]}}
    return json.dumps(status).encode()


def _feed(source: Any, process: subprocess.Popen[bytes]) -> None:
    """Give the client's frames of channel 0 to the process until it closes that channel."""
    assert process.stdin is not None
    try:
        while frame := receive(source):
            if frame[:2] == bytes([CLOSE, STDIN]):
                return process.stdin.close()
            if frame[0] == STDIN:
                process.stdin.write(frame[1:])
                process.stdin.flush()
    except (OSError, ValueError):
        return None  # one of the two is gone
    return None


def _pump(out: Any, lock: threading.Lock, channel: int, stream: Any) -> None:
    while data := stream.read1(PIECE_BYTES):
        send(out, lock, bytes([channel]) + data)


def send(out: Any, lock: threading.Lock, payload: bytes) -> None:
    """One binary frame, unmasked as a server's are."""
    size = len(payload)
    head = bytes([size]) if size < 126 else b"\x7e" + struct.pack("!H", size)
    with lock:
        out.write(b"\x82" + head + payload)
        out.flush()


def receive(source: Any) -> bytes:
    """The payload of the client's next data frame; b"" once it has closed."""
    while head := source.read(2):
        size = head[1] & 0x7F
        if size >= 126:
            size = int.from_bytes(source.read(2 if size == 126 else 8), "big")
        mask, data = source.read(4), source.read(size)
        if head[0] & 0x0F == 8:
            return b""
        if head[0] & 0x0F in (0, 1, 2) and data:
            pad = (mask * (size // 4 + 1))[:size]
            return (int.from_bytes(data, "big") ^ int.from_bytes(pad, "big")).to_bytes(size, "big")
    return b""
