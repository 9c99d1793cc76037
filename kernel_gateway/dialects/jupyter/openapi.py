"""The OpenAPI document of the Jupyter dialect, at the paths where Jupyter's servers have theirs.

Source: `swagger.json` and `swagger.yaml` of Jupyter Kernel Gateway, `spec.yaml` of Jupyter Server. Their documents are
Swagger 2.0; this document is OpenAPI 3.1, like that of `/v1`.
"""

from __future__ import annotations

from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

import orjson
from pydantic import BaseModel

from kernel_gateway.dialects.jupyter.contents_models import Created, Moved, Saved
from kernel_gateway.dialects.jupyter.models import NotebookSession, StartKernel
from kernel_gateway.http.handlers import BaseHandler
from kernel_gateway.http.openapi import TEXT, Operation, document

_JSON: dict[str, Any] = {"application/json": {}}
_KERNEL, _NOTEBOOK = "/api/kernels/{kernel}", "/api/sessions/{session}"
_FILE = "/api/contents/{path}"
_ASKED = {
    "type": {"enum": ["file", "directory", "notebook"]},
    "format": {"enum": ["text", "base64"]},
    "content": {"enum": [0, 1]},
    "hash": {"enum": [0, 1]},
}


class Problem(BaseModel):
    """The body of every failure: fields that Jupyter's clients display, and the gateway's own field `error`."""

    message: str
    reason: str
    error: dict[str, Any]


OPERATIONS = [
    Operation("GET", "/api", "Return the gateway's version", media=_JSON),
    Operation("GET", "/api/status", "Count the tenant's kernels and connections", media=_JSON),
    Operation(
        "GET", "/api/me", "Return the caller's identity and permissions", media=_JSON, query={"permissions": TEXT}
    ),
    Operation("GET", "/api/kernelspecs", "List the kernelspecs", media=_JSON),
    Operation("GET", "/api/kernelspecs/{name}", "Describe a kernelspec", media=_JSON),
    Operation("GET", "/kernelspecs/{name}/{file}", "Download a logo of a kernelspec", media={"image/*": {}}),
    Operation("GET", "/api/kernels", "List the tenant's kernels", media=_JSON),
    Operation("POST", "/api/kernels", "Start a kernel", None, StartKernel, HTTPStatus.CREATED, media=_JSON),
    Operation("GET", _KERNEL, "Describe a kernel", media=_JSON),
    Operation("DELETE", _KERNEL, "End a kernel", status=HTTPStatus.NO_CONTENT),
    Operation("POST", f"{_KERNEL}/interrupt", "Interrupt the running cell", status=HTTPStatus.NO_CONTENT),
    Operation("POST", f"{_KERNEL}/restart", "Restart the kernel under the same id", media=_JSON),
    Operation(
        "GET",
        f"{_KERNEL}/channels",
        "Upgrade to a WebSocket with the kernel's messages",
        status=HTTPStatus.SWITCHING_PROTOCOLS,
        query={"session_id": TEXT, "token": TEXT},
    ),
    Operation("GET", "/api/sessions", "List the tenant's notebook sessions", media=_JSON),
    Operation(
        "POST", "/api/sessions", "Give a notebook a kernel", None, NotebookSession, HTTPStatus.CREATED, media=_JSON
    ),
    Operation("GET", _NOTEBOOK, "Describe a notebook session", media=_JSON),
    Operation("PATCH", _NOTEBOOK, "Rename a notebook, or give it another kernel", None, NotebookSession, media=_JSON),
    Operation("DELETE", _NOTEBOOK, "Forget a notebook and end its kernel", status=HTTPStatus.NO_CONTENT),
    Operation("GET", _FILE, "Return a file, or list a directory", media=_JSON, query=_ASKED),
    Operation("PUT", _FILE, "Write a file or notebook, or make a directory", None, Saved, media=_JSON),
    Operation(
        "POST", _FILE, "Copy a file, or make one under a new name", None, Created, HTTPStatus.CREATED, media=_JSON
    ),
    Operation("PATCH", _FILE, "Rename a file or directory", None, Moved, media=_JSON),
    Operation("DELETE", _FILE, "Delete a file or directory", status=HTTPStatus.NO_CONTENT),
    Operation("GET", f"{_FILE}/checkpoints", "List a file's checkpoint", media=_JSON),
    Operation("POST", f"{_FILE}/checkpoints", "Keep a file as it is now", status=HTTPStatus.CREATED, media=_JSON),
    Operation("POST", f"{_FILE}/checkpoints/checkpoint", "Restore a file", status=HTTPStatus.NO_CONTENT),
    Operation("DELETE", f"{_FILE}/checkpoints/checkpoint", "Forget a checkpoint", status=HTTPStatus.NO_CONTENT),
    Operation("GET", "/api/swagger.json", "This description", media=_JSON, public=True),
    Operation("GET", "/api/swagger.yaml", "This description", media={"application/yaml": {}}, public=True),
    Operation("GET", "/api/spec.yaml", "This description", media={"application/yaml": {}}, public=True),
]


def description() -> dict[str, Any]:
    """Return the OpenAPI document of the dialect."""
    return document("sandboxed-kernel-gateway: Jupyter", version("sandboxed-kernel-gateway"), OPERATIONS, Problem)


class DescriptionHandler(BaseHandler):
    """`/api/swagger.json`, `/api/swagger.yaml` and `/api/spec.yaml`."""

    public = True

    def get(self, form: str) -> None:
        """Send the document. The YAML document is the same text, because JSON is valid YAML 1.2."""
        self.set_header("Content-Type", f"application/{form}")
        self.finish(_text())


@cache
def _text() -> bytes:
    """Return the document, which needs no key, as JSON. It is made once, because that takes long."""
    return orjson.dumps(description())
