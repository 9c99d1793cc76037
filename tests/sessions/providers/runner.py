"""A runner for tests with programs as plain processes, and a server with the used parts of RAGFlow's `/run`."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from sessions.model.errors import ExecutionTimeout
from sessions.programs.program import Artifact, Ending, Outcome, Program, Returned
from sessions.providers.local import Local

KEY = "key-of-alice-0123456789"


@dataclass
class LocalRunner:
    """Runs programs, and records them with their tenants."""

    asked: list[tuple[str, Program]] = field(default_factory=list)

    async def run(self, tenant: str, program: Program) -> Outcome:
        self.asked.append((tenant, program))
        provider = Local()
        await provider.initialize({"allowed_commands": "python,deno,node", "timeout": 60})
        try:
            made = (await provider.create_instance(program.language)).instance_id
            seconds = int(program.timeout or 30)
            result = await provider.execute_code(made, program.code, program.language, seconds, program.arguments)
        finally:
            await provider.close()
        told = result.metadata
        artifacts = [
            Artifact(each["name"], each["mime_type"], base64.b64decode(each["content_b64"]))
            for each in told["artifacts"]
        ]
        return Outcome(
            Ending(told["status"]),
            result.stdout,
            result.stderr,
            result.exit_code,
            Returned(told["result_value"]) if told["result_present"] else None,
            tuple(artifacts),
            result.execution_time,
            error=ExecutionTimeout() if told["status"] == "timeout" else None,
        )


@dataclass
class Server:
    """The server's URL, the requests that it got, and its behaviour."""

    runner: LocalRunner = field(default_factory=LocalRunner)
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    #: status and body that replace the normal answer
    answer: tuple[int, str | bytes] | None = None
    #: headers of that answer
    headers: dict[str, str] = field(default_factory=dict)
    #: True: the server cuts the connection in place of an answer
    cut: bool = False


class Handler(RequestHandler):
    """`/run` and `/healthz`."""

    def initialize(self, server: Server) -> None:
        self.server = server

    def prepare(self) -> None:
        if self.request.headers.get("Authorization") != f"Bearer {KEY}":
            self.set_status(401)
            self.finish({"detail": KEY})

    def get(self) -> None:
        self.finish({"status": "ok"})

    async def post(self) -> None:
        body = json.loads(self.request.body)
        self.server.bodies.append(body)
        if self.server.cut:
            self.detach().close()
        elif self.server.answer:
            self.set_status(self.server.answer[0])
            for name, value in self.server.headers.items():
                self.set_header(name, value)
            self.finish(self.server.answer[1])
        else:
            language = {"python": "python", "nodejs": "javascript"}[body["language"]]
            program = Program(base64.b64decode(body["code_b64"]).decode(), language, body["arguments"], body["timeout"])
            self.finish(json.dumps(answered(await self.server.runner.run("alice", program))))


def answered(outcome: Outcome) -> dict[str, Any]:
    """Return the body with which RAGFlow's executor would report an outcome."""
    late, well = outcome.ending is Ending.TIMEOUT, outcome.ending is Ending.OK
    return {
        "status": "success" if well else "resource_limit_exceeded" if late else "program_error",
        "stdout": outcome.stdout if well else "",
        "stderr": "Execution timeout" if late else outcome.stderr,
        "exit_code": outcome.exit_code,
        "detail": None,
        "resource_limit_type": "time" if late else None,
        "artifacts": [
            {
                "name": each.name,
                "mime_type": each.mime_type,
                "size": len(each.content),
                "content_b64": base64.b64encode(each.content).decode(),
            }
            for each in outcome.artifacts
        ],
        "result": {"present": True, "value": outcome.returned.value, "type": "json"} if outcome.returned else None,
    }


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    """Serve on a new port on loopback."""
    server = Server()
    listening = HTTPServer(Application([("/(?:run|healthz)", Handler, {"server": server})]))
    (socket,) = bind_sockets(0, "127.0.0.1")
    listening.add_sockets([socket])
    server.url = f"http://127.0.0.1:{socket.getsockname()[1]}"
    try:
        yield server
    finally:
        listening.stop()
        await listening.close_all_connections()
