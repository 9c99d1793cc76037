"""The tools `files`, `session` and `checkpoint`."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import AsyncIterator

from kernel_gateway.dialects.mcp import results, variables
from kernel_gateway.dialects.mcp.calls import Call
from kernel_gateway.dialects.mcp.rpc import Json
from kernel_gateway.dialects.mcp.run_code import spec_of
from kernel_gateway.dialects.mcp.tools import READ_USUAL, Checkpoint, Files, SessionCall
from kernel_gateway.gateway import Gateway
from kernel_gateway.http.request_body import validated
from sessions.guest import workspace
from sessions.guest.paths import session_path
from sessions.guest.reading import Part, read_file
from sessions.model.errors import InvalidRequest
from sessions.model.values import SessionKey
from sessions.session.session import Session
from sessions.session.states import State


class SessionTools:
    """What can be done with a session besides running code."""

    def __init__(self, gateway: Gateway) -> None:
        """Act on the sessions of a gateway."""
        self._gateway = gateway

    # -- files ----------------------------------------------------------------------------------------------

    async def files(self, call: Call) -> Json:
        """List, read, write or delete files."""
        arguments = validated(Files, call.arguments)
        path = session_path(arguments.path)
        if arguments.action == "write":
            return await self._write(call.tenant, arguments, path)
        session = self._session(call.tenant, arguments.session)
        match arguments.action:
            case "list":
                return await self._list(session, path)
            case "read":
                return await self._read(session, arguments, path)
        await workspace.delete_file(session, path)
        return results.of_data(f"[session {session.key.name}: {path} is deleted]", {})

    async def _list(self, session: Session, path: str) -> Json:
        listing = await workspace.list_files(session, path)
        names = ("name", "type", "size", "modified")
        entries = [{name: entry[name] for name in names} for entry in listing.entries]
        line = f"[session {session.key.name}: {len(entries)} entries{', and more' if listing.truncated else ''}]"
        text = "\n".join(f"{entry['type']} {entry['size']} {entry['name']}" for entry in entries)
        return results.of_data(line, {"entries": entries, "truncated": listing.truncated}, text)

    async def _read(self, session: Session, arguments: Files, path: str) -> Json:
        start = arguments.offset or 0
        async with read_file(session, path, Part(start, arguments.limit or READ_USUAL)) as file:
            content = b"".join([piece async for piece in file.content])
            size = file.size
        text = _encoded(content, arguments.encoding, more=start + len(content) < size)
        end = start + (len(content) if arguments.encoding == "base64" else len(text.encode()))
        more = f"; read on with offset {end}" if end < size else ""
        line = f"[session {session.key.name}: bytes {start} to {end} of {size}{more}]"
        return results.of_data(line, {"content": text, "size": size, "truncated": end < size}, text)

    async def _write(self, tenant: str, arguments: Files, path: str) -> Json:
        if arguments.content is None:
            raise InvalidRequest("write needs the content", field="content")
        content = _decoded(arguments.content, arguments.encoding)
        key = SessionKey(tenant, arguments.session)
        session = await self._gateway.registry.get_or_create(key, spec_of(self._gateway, tenant))

        async def pieces() -> AsyncIterator[bytes]:
            yield content

        size = await workspace.write_file(session, path, len(content), pieces())
        data = {"size": size, "truncated": False}
        return results.of_data(f"[session {key.name}: {size} bytes are written to {path}]", data)

    # -- the session ----------------------------------------------------------------------------------------

    async def session(self, call: Call) -> Json:
        """Describe, interrupt, restart or end a session."""
        arguments = validated(SessionCall, call.arguments)
        if arguments.variable is not None and arguments.action != "status":
            raise InvalidRequest("a variable is shown by the action status alone", field="variable")
        session, name = self._session(call.tenant, arguments.session), arguments.session
        what = "is here"
        match arguments.action:
            case "interrupt":
                what = "was interrupted" if await session.interrupt() else "ran nothing that could be interrupted"
            case "restart":
                await session.restart()
                what = "has a fresh kernel; its files are kept"
            case "end":
                await self._gateway.registry.end(session.key)
                data = {"session": name, "state": "ended", "busy": False}
                return results.of_data(f"[session {name}: ended, with its variables and files]", data)
        shown = variables.Shown()
        if arguments.variable is not None:
            shown = await variables.one(session, arguments.variable)
        elif arguments.action == "status":
            shown = await variables.listed(session)
        state = session.state
        data = {
            "session": name,
            "state": state.value,
            "busy": state is State.BUSY,
            "language": session.kernelspec.name,
        }
        return results.of_data(
            f"[session {name}: {what}; it is {state.value}{shown.note}]", data | shown.data, shown.text
        )

    async def checkpoint(self, call: Call) -> Json:
        """Take checkpoints, list them, return to one, branch from one."""
        arguments = validated(Checkpoint, call.arguments)
        session, name = self._session(call.tenant, arguments.session), arguments.session
        match arguments.action:
            case "save":
                saved = await session.checkpoints.take(arguments.name)
                line = f"[session {name}: checkpoint {saved.name} is saved]"
                return results.of_data(line, {"session": name, "state": session.state.value, **_listed(session)})
            case "rollback":
                to = session.checkpoints.find(arguments.name) if arguments.name else None
                await session.checkpoints.roll_back(None if to is None else to.name)
                line = f"[session {name}: state rolled_back; variables and files are those of the checkpoint]"
                return results.of_data(line, {"session": name, "state": "rolled_back"})
            case "branch":
                key = SessionKey(call.tenant, f"s-{secrets.token_hex(8)}")
                branch = await self._gateway.sandboxes.branch(session, key, arguments.name)
                line = f"[session {key.name}: a branch of {name}, with its variables and files]"
                return results.of_data(line, {"session": key.name, "state": branch.state.value})
        problem = session.checkpoints.problem
        note = f"; none is from before the last cell: {problem}" if problem else ""
        data = _listed(session)
        return results.of_data(f"[session {name}: {len(data['checkpoints'])} checkpoints{note}]", data)

    def _session(self, tenant: str, name: str) -> Session:
        session = self._gateway.registry.get(SessionKey(tenant, name))
        session.touch()
        return session


def _listed(session: Session) -> Json:
    """Return the checkpoints of a session, oldest first."""
    shown = [
        {"name": checkpoint.name, "bytes": checkpoint.image.size, "automatic": checkpoint.automatic}
        for checkpoint in session.checkpoints.all
    ]
    return {"checkpoints": shown}


def _encoded(content: bytes, encoding: str, *, more: bool) -> str:
    """Return content as text. A character that the limit has cut is left for the next read."""
    if encoding == "base64":
        return base64.b64encode(content).decode()
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        if more and error.reason == "unexpected end of data" and error.start > 0:
            return content[: error.start].decode()
        raise InvalidRequest("the file is no UTF-8 text here: read it with encoding base64", field="encoding") from None


def _decoded(content: str, encoding: str) -> bytes:
    try:
        return base64.b64decode(content, validate=True) if encoding == "base64" else content.encode()
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"the content is no valid {encoding}", field="content") from None
