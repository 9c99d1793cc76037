"""A fake of RAGFlow's executor: it runs no program, and records the requests that it receives."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any


@dataclass
class Executor:
    """A running executor."""

    url: str = ""
    healthy: bool = True
    #: fields that an answer to `/run` has instead of those of a success
    answer: dict[str, Any] = field(default_factory=dict)
    #: event that `/run` waits for
    go: Event | None = None
    #: headers and body of each program
    asked: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)

    def run(self, headers: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        """Answer a program with its own code as stdout, so that every text that it prints is in there."""
        self.asked.append((headers, body))
        if self.go is not None:
            self.go.wait(60)
        code = base64.b64decode(body["code_b64"]).decode()
        return {
            "status": "success",
            "stdout": f"{self.url} {code}",
            "stderr": "",
            "exit_code": 0,
            "detail": None,
            "time_used_ms": 1.5,
            "memory_used_kb": None,
            "resource_limit_type": None,
            "unauthorized_access_type": None,
            "runtime_error_type": None,
            "artifacts": [],
            "result": {"present": True, "value": body["arguments"], "type": "json"},
        } | self.answer


@contextmanager
def executor() -> Iterator[Executor]:
    """Start an executor on this machine."""
    one = Executor()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(200 if one.healthy else 503, {"status": "ok"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._send(200, one.run(dict(self.headers), body))

        def _send(self, status: int, value: dict[str, Any]) -> None:
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        one.url = f"http://127.0.0.1:{server.server_port}"
        yield one
        server.shutdown()
