"""Variables of a session, in an answer that a language model can read: short, and bounded whatever the kernel says."""

from __future__ import annotations

from typing import Any, NamedTuple

from kernel_gateway.dialects.mcp.rpc import Json
from kernel_gateway.dialects.mcp.tools import LISTED_MAX
from sessions.kernels.variables import Variable
from sessions.model import exact_json
from sessions.model.errors import SessionError
from sessions.session.session import Session
from sessions.session.states import State

#: characters of each value in a list, and bytes of one variable with its content, as JSON
PREVIEW_MAX, DETAIL_MAX = 120, 100_000
#: the parts of a variable that may be long
_PARTS = ("rows", "columns", "entries")


class Shown(NamedTuple):
    """What an answer says about variables: in its first line, as text, and as data."""

    note: str = ""
    text: str | None = None
    data: Json = {}  # noqa: RUF012 - nothing changes it


async def listed(session: Session) -> Shown:
    """List the variables of a kernel that is there. A status wakes no session, and starts no kernel."""
    if not session.kernelspec.variables or session.state not in {State.IDLE, State.BUSY}:
        return Shown()
    try:
        found = await session.variables()
    except SessionError as error:  # the status is known all the same
        return Shown(f"; its variables are not known: {error.message}")
    variables = [_short(each) for each in found.variables[:LISTED_MAX]]
    more = found.total > len(variables)
    note = f"; {found.total} variables{f', the first {len(variables)} are listed' if more else ''}"
    data = {"variables": variables, "variables_total": found.total, "truncated": more}
    return Shown(note, "\n".join(map(_line, variables)), data)


async def one(session: Session, name: str) -> Shown:
    """Show one variable with the beginning of its content. A session that sleeps is woken.

    Raises:
        SessionError: as `Session.variable`.
    """
    variable = _plain(await session.variable(name))
    whole = len(exact_json.dumps(variable))
    while len(exact_json.dumps(variable)) > DETAIL_MAX and (parts := [part for part in _PARTS if variable.get(part)]):
        longest = max(parts, key=lambda part: len(exact_json.dumps(variable[part])))
        variable[longest] = variable[longest][: len(variable[longest]) // 2]
    return Shown(data={"variable": variable, "truncated": len(exact_json.dumps(variable)) < whole})


def _plain(variable: Variable) -> dict[str, Any]:
    return variable.model_dump(mode="json", exclude_none=True)


def _short(variable: Variable) -> Json:
    text = variable.preview
    short = text if len(text) <= PREVIEW_MAX else f"{text[: PREVIEW_MAX - 1]}…"
    return _plain(variable) | {"preview": short}


def _line(variable: Json) -> str:
    size = variable.get("shape", variable.get("length"))
    return f"{variable['name']}: {variable['type']}{'' if size is None else f' {size}'} = {variable['preview']}"
