"""Bodies of the requests."""

from __future__ import annotations

import hashlib
import json
import shlex
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from kernel_gateway.dialects.librechat.base import ID_MAX
from sessions.model.errors import InvalidRequest
from sessions.model.values import ExecuteRequest

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
