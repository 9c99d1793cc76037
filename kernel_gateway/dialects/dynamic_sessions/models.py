"""Bodies of the requests, in the old and the new shape."""

from __future__ import annotations

import base64
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from kernel_gateway.errors import NotSupported
from sessions.model.errors import InvalidRequest
from sessions.model.values import ExecuteRequest

#: seconds after which the service ends any code
TIMEOUT = 220.0


class Execution(BaseModel):
    """Code to run. Unknown fields are ignored, as the service does."""

    model_config = ConfigDict(extra="ignore", strict=True)

    code: str | None = None
    codeInputType: str = "inline"  # noqa: N815 - the service's name
    executionType: str = "synchronous"  # noqa: N815 - the service's name
    timeoutInSeconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = TIMEOUT  # noqa: N815 - the service's name

    def request(self, most: float) -> ExecuteRequest:
        """Return the cell, which may run for at most `most` seconds.

        Raises:
            NotSupported: when the client does not want to wait, or sends a shell command.
            InvalidRequest: when the code is no text.
        """
        if self.code is None:
            raise NotSupported("this gateway runs code, but no shell commands: send `code`")
        if self.executionType.lower() != "synchronous":
            raise NotSupported("this gateway has no asynchronous executions: send executionType Synchronous")
        return ExecuteRequest(code=self._text(self.code), timeout=min(self.timeoutInSeconds, most))

    def _text(self, code: str) -> str:
        if self.codeInputType.lower() != "inlinebase64":
            return code
        try:
            return base64.b64decode(code, validate=True).decode()
        except ValueError:
            raise InvalidRequest("code must be base64 of UTF-8 text", field="code") from None


class OldExecution(BaseModel):
    """The body of `code/execute`."""

    model_config = ConfigDict(extra="ignore", strict=True)

    properties: Execution
