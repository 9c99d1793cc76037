"""The channels handler alone, for timing that a real connection reaches only by chance."""

from __future__ import annotations

import json
from unittest.mock import Mock

from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine
from tornado.web import Application

from kernel_gateway.dialects.jupyter.channels import ChannelsHandler
from kernel_gateway.dialects.jupyter.framing import V1
from kernel_gateway.identity.auth import Caller
from kernel_gateway.identity.origins import Origins
from kernel_gateway.wire.connections import Connection
from kernel_gateway.wire.incoming import Incoming
from sessions.session.session import Session
from tests.fakes import World, until


def connected(session: Session) -> ChannelsHandler:
    line = RequestStartLine("GET", f"/api/kernels/{session.key.name}/channels?session_id=c", "HTTP/1.1")
    request = HTTPServerRequest(start_line=line, headers=HTTPHeaders({"Host": "localhost"}), connection=Mock())
    gateway = Mock(origins=Origins([]), incoming=Incoming(2**20), settings=Mock(message_timeout=60.0))
    handler = ChannelsHandler(Application(), request, gateway=gateway)
    handler._session = session
    handler.caller, handler.tenant = Caller(session.key.tenant), session.key.tenant
    handler._connection = Connection("127.0.0.1")
    handler.ws_connection = Mock(selected_subprotocol=V1, _fragmented_message_buffer=None)
    handler.open()
    return handler


async def test_an_undelivered_message_is_kept_until_its_client_returns(world: World) -> None:
    session = await world.session()
    handler = connected(session)
    handler.ws_connection = None  # as tornado sets it before it calls on_close
    session.channels.announce("idle")
    await until(lambda: not session.channels.clients)
    handler.on_close()
    again = session.channels.subscribe("c")
    message = await again.take()
    assert message is not None
    assert json.loads(message.parts[3]) == {"execution_state": "idle"}
