"""A client of the AgentRun dialect that sends any request and checks every answer."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import requests

from tests.gateways import Gateway
from tests.kernel_gateway.calls import failure

CONTROL = "/2025-09-10"
TEMPLATE = "code-interpreter-v1"


def failed(response: requests.Response) -> tuple[int, str]:
    """Return status and code of a failure as AgentRun's clients read it, and check the form that all failures have."""
    status, _ = failure(response)
    body = response.json()
    assert body["message"]
    assert body["requestId"] == response.headers["X-Request-Id"]
    return status, body["code"]


def data(response: requests.Response) -> Any:
    """Return the content of the envelope."""
    assert response.status_code == HTTPStatus.OK, response.text
    body = response.json()
    assert (body["code"], body["requestId"]) == ("SUCCESS", response.headers["X-Request-Id"])
    return body["data"]


@dataclass(frozen=True)
class Box:
    """A sandbox of the tenant alice."""

    gateway: Gateway
    id: str

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send a request on a path below the sandbox."""
        return self.gateway.call(method, f"/sandboxes/{self.id}{path}", **options)

    def get(self, path: str, /, **query: Any) -> Any:
        """Return the answer to a GET request."""
        return _good(self.call("GET", path, params=query))

    def post(self, path: str, /, **body: Any) -> Any:
        """Return the answer to a POST request."""
        return _good(self.call("POST", path, json=body))

    def context(self, **body: Any) -> str:
        """Create a context and return its id."""
        made: str = self.post("/contexts", **body)["id"]
        return made

    def run(self, code: str, **body: Any) -> Any:
        """Run a cell and return its reply."""
        return self.post("/contexts/execute", code=code, **body)

    def text(self, code: str, **body: Any) -> str:
        """Run a cell and return its printed text."""
        reply = self.run(code, **body)
        assert end(reply) == "ok", reply
        text: str = reply["stdout"]
        return text

    def write(self, path: str, content: str = "", /, **body: Any) -> Any:
        """Write a file."""
        return self.post("/files", path=path, content=content, **body)

    def read(self, path: str) -> Any:
        """Return a file's content."""
        return self.get("/files", path=path)["content"]

    def names(self, path: str = "", depth: int = 1) -> list[str]:
        """Return the names in a directory."""
        return [entry["name"] for entry in self.get("/filesystem", path=path, depth=depth)["entries"]]

    def command(self, command: str, **body: Any) -> Any:
        """Run a command and return its result."""
        return self.post("/processes/cmd", command=command, **body)["result"]


def _good(response: requests.Response) -> Any:
    assert response.status_code == HTTPStatus.OK, response.text
    return response.json()


def end(reply: dict[str, Any]) -> str:
    """Return the status in a reply's last item."""
    last = reply["results"][-1]
    assert last["type"] == "endOfExecution", reply
    status: str = last["status"]
    return status


def create(gateway: Gateway, tenant: str = "alice", **body: Any) -> requests.Response:
    """Ask for a sandbox."""
    return gateway.call("POST", "/sandboxes", tenant=tenant, json={"templateName": TEMPLATE, **body})


@contextmanager
def boxed(gateway: Gateway, **body: Any) -> Iterator[Box]:
    """Create a sandbox, and delete it afterwards."""
    box = Box(gateway, data(create(gateway, **body))["sandboxId"])
    try:
        yield box
    finally:
        box.call("DELETE", "")


@contextmanager
def template(gateway: Gateway, **body: Any) -> Iterator[str]:
    """Create a template, and delete it afterwards."""
    name = f"t-{secrets.token_hex(4)}"
    data(gateway.call("POST", f"{CONTROL}/templates", json={"templateName": name, **body}))
    try:
        yield name
    finally:
        gateway.call("DELETE", f"{CONTROL}/templates/{name}")
