"""What Open WebUI asks before it uses a terminal: health, features, the text for the model, and its tools."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from kernel_gateway.dialects.open_terminal import models
from kernel_gateway.dialects.open_terminal.base import TerminalHandler
from kernel_gateway.http.handlers import BaseHandler

#: features of this terminal
FEATURES = {"terminal": True, "notebooks": True, "system": True}
PROMPT = (
    "You have access to a computer that runs Linux in a sandbox of its own, with bash and Python. It has no network. "
    "Your files are in /home/user, and temporary ones in /tmp; tools for files reach only these two. Use your tools "
    "to run commands, to read and write files and to search them. Look at the present state before you change it, and "
    "at the output of a command to see whether it succeeded; a command without output has usually succeeded. A command "
    "that runs for long goes on while you ask for its status."
)
#: method, path, name of the tool, what it does, and the models of its query and body
TOOLS: tuple[tuple[str, str, str, str, type[BaseModel] | None, type[BaseModel] | None], ...] = (
    ("get", "/files/list", "list_files", "List a directory.", models.ListQuery, None),
    ("get", "/files/read", "read_file", "Read a text, or lines of it, or look at an image.", models.ReadQuery, None),
    ("get", "/files/display", "display_file", "Show a file to the user. You do not get it.", models.OnePath, None),
    ("post", "/files/write", "write_file", "Write a text. It replaces the file.", None, models.WriteRequest),
    ("post", "/files/replace", "replace_file_content", "Replace texts of a file.", None, models.ReplaceRequest),
    ("get", "/files/grep", "grep_search", "Search the content of files.", models.GrepQuery, None),
    ("get", "/files/matches", "match_files", "Search names and content, the best first.", models.MatchesQuery, None),
    ("get", "/files/search", "search_files", "Search names, the best first.", models.NamesQuery, None),
    ("get", "/files/glob", "glob_search", "Search names by a pattern.", models.GlobQuery, None),
    ("get", "/execute", "list_processes", "List the commands of this chat.", None, None),
    (
        "post",
        "/execute",
        "run_command",
        "Run a shell command. It goes on after the answer, which has an id to ask for its status.",
        models.TailQuery,
        models.ExecRequest,
    ),
    (
        "get",
        "/execute/{process_id}/status",
        "get_process_status",
        "Return the status and the new output of a command.",
        models.StatusQuery,
        None,
    ),
    (
        "post",
        "/execute/{process_id}/input",
        "send_process_input",
        "Write into a running command's terminal.",
        None,
        models.InputRequest,
    ),
    ("delete", "/execute/{process_id}", "kill_process", "End a command.", models.KillQuery, None),
    (
        "get",
        "/api/terminals/user/output",
        "read_user_terminal",
        "Read what the user's own terminal shows. Read it before you write into it.",
        None,
        None,
    ),
    (
        "post",
        "/api/terminals/user/input",
        "send_user_terminal_input",
        "Write into the user's own terminal. A newline at the end runs a line.",
        None,
        models.InputRequest,
    ),
)


def document() -> dict[str, Any]:
    """Return the OpenAPI document of the model's tools."""
    bodies: list[tuple[type[BaseModel], Literal["validation"]]] = [
        (body, "validation") for *_, body in TOOLS if body is not None
    ]
    _, schemas = models_json_schema(bodies, ref_template="#/components/schemas/{model}")
    paths: dict[str, dict[str, Any]] = {}
    for method, path, name, summary, query, body in TOOLS:
        described: dict[str, Any] = {
            "operationId": name,
            "summary": summary,
            "description": summary,
            "parameters": [*_of_path(path), *(_of_query(query) if query else [])],
            "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": {}}}}},
        }
        if body is not None:
            schema = {"$ref": f"#/components/schemas/{body.__name__}"}
            described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        paths.setdefault(path, {})[method] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Open Terminal",
            "version": version("sandboxed-kernel-gateway"),
            "description": "A sandbox with a terminal.",
        },
        "paths": paths,
        "components": {"schemas": schemas["$defs"]},
    }


def _of_path(path: str) -> list[dict[str, Any]]:
    if "{" not in path:
        return []
    name = path.partition("{")[2].partition("}")[0]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]


def _of_query(query: type[BaseModel]) -> list[dict[str, Any]]:
    schema = query.model_json_schema()
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": of, "description": of["description"]}
        for name, of in schema["properties"].items()
    ]


class _PublicHandler(BaseHandler):
    """A request without a key."""

    public = True
    #: what it answers
    told: dict[str, Any]

    def get(self) -> None:
        """Answer."""
        self.finish_json(self.told)


class HealthHandler(_PublicHandler):
    """`/health`."""

    told = {"status": "ok"}  # noqa: RUF012 - never changed


class ConfigHandler(_PublicHandler):
    """`/api/config`."""

    told = {"features": FEATURES}  # noqa: RUF012 - never changed


class OpenApiHandler(_PublicHandler):
    """`/openapi.json`."""

    told = document()


class SystemHandler(TerminalHandler):
    """`/system`."""

    def get(self) -> None:
        """Return the text for the model."""
        self.finish_json({"prompt": PROMPT})


class SkillsHandler(TerminalHandler):
    """`/skills`."""

    def get(self) -> None:
        """Return no skills: what sandboxes hold is read by commands."""
        self.finish_json([])
