"""The tool `debug`."""

from __future__ import annotations

import asyncio
from itertools import islice

from kernel_gateway.dialects.mcp import results
from kernel_gateway.dialects.mcp.calls import Call
from kernel_gateway.dialects.mcp.rpc import Json
from kernel_gateway.dialects.mcp.run_code import spec_of
from kernel_gateway.dialects.mcp.tools import Debug
from kernel_gateway.gateway import Gateway
from kernel_gateway.http.debugging import obey
from kernel_gateway.http.request_body import validated
from sessions.debugging.model import Seen
from sessions.model.values import SessionKey

#: variables that the text shows; the data has all
SHOWN = 50


class Debugging:
    """Debugs cells of sessions."""

    def __init__(self, gateway: Gateway) -> None:
        """Act on the sessions of a gateway."""
        self._gateway = gateway

    async def debug(self, call: Call) -> Json:
        """Do one command. A client that cancels the call ends the debugged cell."""
        asked = validated(Debug, call.arguments)
        key, registry = SessionKey(call.tenant, asked.session), self._gateway.registry
        timeout = self._gateway.settings_of(call.tenant).valid_timeout(asked.timeout)
        if asked.command == "launch":
            session = await registry.get_or_create(key, spec_of(self._gateway, call.tenant))
        else:
            session = registry.get(key)
        session.touch()
        call.on_cancelled.append(session.debugger.leave)
        try:
            seen = await obey(session, asked, timeout)
        except asyncio.CancelledError:
            session.debugger.leave()
            raise
        if seen.error is not None:
            raise seen.error
        return results.of_data(_line(key.name, seen), _data(key.name, seen), _text(seen))


def _line(name: str, seen: Seen) -> str:
    why = " - ".join(filter(None, (seen.reason, seen.description)))
    return f"[session {name}: {seen.state.value}{f' ({why})' if why else ''}]"


def _text(seen: Seen) -> str:
    """Return what a model reads: frames, variables, and the value that it asked for."""
    lines = [f"{frame.frameId} {frame.name}, {frame.source}, line {frame.line}: {frame.text}" for frame in seen.frames]
    lines += [f"{one.name} = {one.value}" for one in islice(seen.variables or (), SHOWN)]
    lines += [] if seen.value is None else [f"value: {seen.value.value}"]
    return "\n".join(lines + [f"log: {text.rstrip()}" for text in seen.log])


def _data(name: str, seen: Seen) -> Json:
    told: Json = {
        "session": name,
        "state": seen.state.value,
        "frames": [frame.model_dump() for frame in seen.frames],
        "reason": seen.reason or None,
        "description": seen.description or None,
        "variables": None if seen.variables is None else [one.model_dump() for one in seen.variables],
        "value": None if seen.value is None else seen.value.value,
        "run": f"{name}:{seen.execution}" if seen.execution else None,
    }
    return {field: value for field, value in told.items() if value is not None}
