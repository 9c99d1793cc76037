"""The variables of a kernel: their names, types, sizes and contents, as the kernel itself describes them.

The kernel answers on its control channel, so also while a cell runs (`kernel_image/python_kernel/variables.py`). The
kernel may be hostile, so its answer is checked.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, Field, NonNegativeInt, ValidationError, model_validator

from kernel_image.protocol import VARIABLES_REQUEST
from sessions.kernels.kernel import Kernel
from sessions.model.errors import ConnectionFailed, VariableNotFound

#: seconds within which a kernel must answer
TIMEOUT = 5.0
#: maximum characters of a name that is looked for
NAME_MAX = 1000

_Name = Annotated[str, Field(max_length=200)]
_ModelT = TypeVar("_ModelT", bound=BaseModel)


class Variable(BaseModel):
    """A variable of a session, or an entry of one."""

    name: _Name = Field(description="its name; for an entry, its key, index or attribute")
    type: _Name = Field(description="type of its value, with the module")
    preview: str = Field(max_length=10_000, description="beginning of its value, as code writes it")
    shape: list[NonNegativeInt] | None = Field(None, max_length=64, description="of a table or an array")
    length: NonNegativeInt | None = Field(None, description="number of entries or characters")
    bytes: NonNegativeInt | None = Field(None, description="memory that it takes itself, without what it refers to")
    dtype: _Name | None = Field(None, description="type of an array's elements")


class VariableList(BaseModel):
    """The variables of a session, sorted by name."""

    variables: list[Variable] = Field(max_length=1000)
    total: NonNegativeInt = Field(description="number of all variables; at most 1,000 of them are listed")


class Column(BaseModel):
    """A column of a table."""

    name: _Name
    type: _Name


class VariableDetail(Variable):
    """A variable with the beginning of its content."""

    columns: list[Column] | None = Field(None, max_length=50, description="the first columns of a table")
    rows: list[Annotated[list[_Name], Field(max_length=50)]] | None = Field(
        None, max_length=50, description="the first rows of a table, each cell as text"
    )
    entries: list[Variable] | None = Field(
        None, max_length=100, description="the first entries of a collection, or the attributes of an object"
    )

    @model_validator(mode="after")
    def _check_rows(self) -> Self:
        if any(len(row) != len(self.columns or ()) for row in self.rows or ()):
            raise ValueError("each row of a table needs a cell for each column")
        return self


async def list_variables(kernel: Kernel) -> VariableList:
    """Return the variables of a kernel.

    Raises:
        InvalidRequest: when kernels of this language do not describe their variables.
        ConnectionFailed: when the kernel does not answer in time.
        KernelDied: when the kernel has ended meanwhile.
    """
    return _checked(VariableList, await _ask(kernel, {}))


async def describe_variable(kernel: Kernel, name: str) -> VariableDetail:
    """Return one variable of a kernel with its content.

    Raises:
        VariableNotFound: when there is none of this name.
        SessionError: as `list_variables`.
    """
    found = (await _ask(kernel, {"name": name[:NAME_MAX]})).get("variable")
    if found is None:
        raise VariableNotFound(f"there is no variable {name[:100]!r}", variable=name[:NAME_MAX])
    return _checked(VariableDetail, found)


async def _ask(kernel: Kernel, content: dict[str, Any]) -> dict[str, Any]:
    spec = kernel.launch.kernelspec
    if not spec.variables:
        raise spec.cannot("variables", "list its variables: run code that prints them")
    try:
        async with asyncio.timeout(TIMEOUT):
            reply = await kernel.connection.request("control", VARIABLES_REQUEST, content)
    except TimeoutError:
        raise ConnectionFailed(
            f"the kernel did not describe its variables within {TIMEOUT:.0f} s; its code keeps it from answering"
        ) from None
    except ConnectionFailed:
        if kernel.alive:
            raise
        raise await kernel.wait() from None
    return reply.content


def _checked(model: type[_ModelT], content: object) -> _ModelT:
    try:
        return model.model_validate(content, strict=True)
    except ValidationError:
        raise ConnectionFailed("the kernel described its variables in a form that this gateway cannot read") from None
