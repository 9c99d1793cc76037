"""A running gateway, as the commands call it: through the client library, with errors that say what to type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import httpx

from kernel_gateway.client.blocking import finished, in_place
from kernel_gateway.client.errors import ClientError, GatewayError
from kernel_gateway.client.gateway import Gateway, quoted
from kernel_gateway.client.transport import BlockingTransport
from kernel_gateway.client_config import Client

#: bytes that are read at a time
PIECE = 64 * 1024
#: what to type here for what the resolution of an error says, by the error's code
HINTS = {
    "SB005": "-t SECONDS sets the timeout",
    "SB008": "`kernel-gateway end -s NAME` ends a session",
    "SB011": "`kernel-gateway sessions` lists the sessions, -s NAME chooses one",
    "SB012": "`kernel-gateway end -s NAME` ends it",
    "SB014": "`kernel-gateway files ls` lists the workspace",
    "SB015": "`kernel-gateway files rm PATH` deletes a file",
    "SB020": "--key KEY or the variable KERNEL_GATEWAY_KEY",
    "SB026": "--key KEY or the variable KERNEL_GATEWAY_KEY",
    "SB040": "`kernel-gateway checkpoint --list` lists the checkpoints",
}


class Failed(Exception):
    """The gateway refused a call, or did not answer it; the text says what happened, and what to do."""


class Remote:
    """A running gateway, as a client of its native API sees it."""

    def __init__(self, client: Client) -> None:
        """Connect to nothing yet: each call has a connection of its own."""
        self._client = client

    def json(self, method: str, path: str, value: object = None) -> dict[str, Any]:
        """Make a call with a JSON value, or without a body.

        Returns:
            the answer's JSON object; {} when the answer has no content.

        Raises:
            Failed: when the gateway refuses the call or does not answer it.
        """
        with _failing(), self._gateway() as gateway:
            return finished(gateway.json(method, path, value))

    @contextmanager
    def answer(
        self, method: str, path: str, body: bytes | Iterable[bytes] | None = None, **headers: str
    ) -> Iterator[Iterator[bytes]]:
        """Make a call, and yield the pieces of the answer as they are read, whatever their size.

        Args:
            method: the HTTP method.
            path: path of the API, with its parts quoted.
            body: the body; pieces are sent one by one, in chunks unless `Content-Length` is among the headers.
            **headers: further headers.

        Raises:
            Failed: when the gateway refuses the call or does not answer it; also while the pieces are read.
        """
        with _failing(), self._gateway() as gateway:
            pieces = in_place(gateway.content(method, path, body, headers))
            yield chain([next(pieces, b"")], pieces)  # a refusal comes before a command begins to write

    @contextmanager
    def _gateway(self) -> Iterator[Gateway]:
        url = self._client.url
        try:
            transport = BlockingTransport(url, self._client.credential(), verify=True)
        except (httpx.InvalidURL, ValueError) as error:
            raise Failed(f"no gateway at {url}: {error}") from None
        try:
            yield Gateway(url, transport, retry_for=0)
        finally:
            finished(transport.close())


@contextmanager
def _failing() -> Iterator[None]:
    """Make the errors of the library those of a command."""
    try:
        yield
    except GatewayError as error:
        raise Failed(told(error)) from None
    except (ClientError, UnicodeEncodeError) as error:
        raise Failed(
            f"an argument is no text: {error}" if isinstance(error, UnicodeEncodeError) else str(error)
        ) from None


def told(failure: GatewayError) -> str:
    """Return an error of the API as text: its code, what happened, and what to do, also on this command line."""
    hint = HINTS.get(failure.code)
    return str(failure) + (f" ({hint})" if hint else "")


def path_of(session: str) -> str:
    """Return the path of a session in the API."""
    return f"/v1/sessions/{quoted(session)}"
