"""Bodies of the requests."""

from __future__ import annotations

import hashlib
import json
import keyword
import shlex
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from kernel_gateway.dialects.librechat.base import ID_MAX
from kernel_gateway.errors import NotSupported
from sessions.model.errors import InvalidRequest
from sessions.model.values import ExecuteRequest, Tool

#: language of these clients → our language. Shell commands run in a Python session, because both share its files.
LANGUAGES = {
    "py": "python",
    "python": "python",
    "bash": "python",
    "sh": "python",
    "js": "javascript",
    "javascript": "javascript",
    "node": "javascript",
    "ts": "javascript",
    "r": "r",
}
SHELLS = {"bash", "sh"}
#: files and arguments of one run
FILES_MAX, ARGUMENTS_MAX = 200, 100
#: tools of one run, their parameters, and results of one request
TOOLS_MAX, PARAMETERS_MAX, RESULTS_MAX = 100, 128, 64
#: characters of a tool's description that its docstring has
DESCRIPTION_MAX = 10_000
HINT = r"^[A-Za-z0-9._:-]{1,128}$"

#: how the client ends code with `await` that it has wrapped into a function. In a kernel a loop runs already
WRAPPED, AWAITED = "    asyncio.run(__user_main__())\n", "    await __user_main__()\n"

_Id = Annotated[str, Field(max_length=ID_MAX)]


class InputFile(BaseModel):
    """A stored file that a run finds in `/mnt/data`. Unknown fields are ignored, as the original does."""

    model_config = ConfigDict(extra="ignore")

    id: _Id
    storage_session_id: _Id
    name: Annotated[str, Field(min_length=1, max_length=1024)]
    kind: _Id = "user"
    resource_id: _Id = ""
    version: int | _Id | None = None


class Exec(BaseModel):
    """Code to run. Unknown fields are ignored, as the original does."""

    model_config = ConfigDict(extra="ignore", strict=True)

    lang: _Id
    code: str
    args: Annotated[list[str], Field(max_length=ARGUMENTS_MAX)] = []
    runtime_session_hint: Annotated[str, Field(pattern=HINT)] | None = None
    files: Annotated[list[InputFile], Field(max_length=FILES_MAX)] = []

    @property
    def language(self) -> str:
        """The language of the session that runs the code.

        Raises:
            InvalidRequest: when no language has this name.
        """
        if self.lang not in LANGUAGES:
            raise InvalidRequest(f"Unsupported language: {self.lang}", field="lang")
        return LANGUAGES[self.lang]

    def session_name(self, user: str) -> str | None:
        """Return the name of the user's session for this hint and language. None: the code runs in a fresh one."""
        if self.runtime_session_hint is None:
            return None
        told = json.dumps([user, self.runtime_session_hint, self.language])
        return f"lc-{hashlib.sha256(told.encode()).hexdigest()[:40]}"

    def request(self, timeout: float) -> ExecuteRequest:
        """Return the cell.

        Raises:
            InvalidRequest: when the language takes no arguments.
        """
        return ExecuteRequest(self._cell(), timeout=timeout, stdin=(), source=self.code)

    def _cell(self) -> str:
        if self.lang in SHELLS:
            arguments = f"set -- {shlex.join(self.args)}\n" if self.args else ""
            return f"%%script --no-raise-error bash\n{arguments}{self.code}"
        if not self.args:
            head, wrapped, tail = self.code.rpartition(WRAPPED)
            return head + AWAITED if wrapped and not tail else self.code
        if self.language != "python":
            raise InvalidRequest(f"{self.lang} code takes no arguments", field="args")
        return f"import sys; sys.argv[1:] = {self.args!r}\n{self.code}"


class ToolParameters(BaseModel):
    """The JSON schema of a tool's arguments. Other fields are not looked at."""

    model_config = ConfigDict(extra="ignore")

    properties: Annotated[dict[str, Any], Field(max_length=PARAMETERS_MAX)] = {}


class ToolDefinition(BaseModel):
    """A tool that code may call. Unknown fields are ignored, as the original does."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    parameters: ToolParameters | None = None

    @property
    def identifier(self) -> str:
        """The name that code calls it by. Source: `normalizeToPythonIdentifier` of the client."""
        spelled = ("_" if each == "-" or each.isspace() else each for each in self.name)
        plain = "".join(each for each in spelled if each == "_" or (each.isascii() and each.isalnum()))
        if plain[:1].isdigit():
            plain = f"_{plain}"
        return f"{plain}_tool" if keyword.iskeyword(plain) else plain

    def tool(self) -> Tool:
        """Return the tool for the cell's request."""
        parameters = tuple(self.parameters.properties) if self.parameters else ()
        return Tool(self.identifier, (self.description or "")[:DESCRIPTION_MAX], parameters)


class WithTools(Exec):
    """Code to run that may call tools."""

    lang: _Id = "py"
    tools: Annotated[list[ToolDefinition], Field(min_length=1, max_length=TOOLS_MAX)]
    #: milliseconds for the code between two calls
    timeout: Annotated[int, Field(ge=1000, le=300_000)] = 15_000

    @property
    def seconds(self) -> float:
        """Seconds for the code between two calls."""
        return self.timeout / 1000

    @property
    def names(self) -> dict[str, str]:
        """The tools' own names, by the names that code calls them by.

        Raises:
            InvalidRequest: when two tools have the same name in code, or one has none.
        """
        names = {tool.identifier: tool.name for tool in self.tools}
        if len(names) < len(self.tools) or "" in names:
            raise InvalidRequest("each tool needs a name of its own that Python can have", field="tools")
        return names

    def request(self, timeout: float) -> ExecuteRequest:
        """Return the cell. In it every tool is a function that code awaits.

        Raises:
            NotSupported: when the code is not Python.
        """
        if self.lang in SHELLS or self.language != "python":
            raise NotSupported("only Python code can call tools here")
        names = self.names
        imports = f"import asyncio, json; from tools import {', '.join(names)}"
        awaited = "; ".join(f"{name} = {name}.aio" for name in names)
        tools = tuple(tool.tool() for tool in self.tools)
        code = f"{imports}; {awaited}\n{self.code}"
        return ExecuteRequest(code, timeout=timeout, stdin=(), source=self.code, tools=tools)


class ToolResult(BaseModel):
    """The result of a call."""

    model_config = ConfigDict(extra="ignore", strict=True)

    call_id: _Id
    result: Any = None
    is_error: bool = False
    error_message: str | None = None


class Continuation(BaseModel):
    """Results of the calls that a run waits for. Without a token the request begins a run."""

    model_config = ConfigDict(extra="ignore", strict=True)

    continuation_token: _Id | None = None
    tool_results: Annotated[list[ToolResult], Field(max_length=RESULTS_MAX)] = []


class Cancellation(BaseModel):
    """A request whose client has left."""

    model_config = ConfigDict(extra="ignore", strict=True)

    request_id: _Id
