"""A running gateway, as a client of its native API sees it.

A command makes one call and needs no event loop for that. Contents pass in pieces, whatever their size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from ssl import SSLCertVerificationError
from typing import Any
from urllib.parse import quote, urlsplit

import orjson

from kernel_gateway.config import Client
from sessions.model import exact_json

#: bytes that are read at a time
PIECE = 64 * 1024
#: seconds in which a gateway accepts a connection; its answer may take as long as it wants
CONNECT_TIMEOUT = 20.0
#: connections, by the scheme of the gateway's URL
KINDS: dict[str, type[HTTPConnection]] = {"http": HTTPConnection, "https": HTTPSConnection}
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
        self._url = client.url
        self._headers = {"Authorization": f"Bearer {client.credential()}"}

    def json(self, method: str, path: str, value: object = None) -> dict[str, Any]:
        """Make a call with a JSON value, or without a body.

        Returns:
            the answer's JSON object; {} when the answer has no content.

        Raises:
            Failed: when the gateway refuses the call or does not answer it.
        """
        body, headers = None, {}
        if value is not None:
            body, headers = _dumped(value), {"Content-Type": "application/json"}
        with self.answer(method, path, body, **headers) as pieces:
            content = b"".join(pieces)
        try:
            reply = exact_json.loads(content) if content else {}
        except orjson.JSONDecodeError:
            reply = None
        if not isinstance(reply, dict):
            raise self._absent("the answer is not a gateway's")
        return reply

    @contextmanager
    def answer(
        self, method: str, path: str, body: bytes | Iterable[bytes] | None = None, **headers: str
    ) -> Iterator[Iterator[bytes]]:
        """Make a call, and yield the pieces of the answer as they are read.

        Args:
            method: the HTTP method.
            path: path of the API, with its parts quoted.
            body: the body; pieces are sent one by one, in chunks unless `Content-Length` is among the headers.
            **headers: further headers.

        Raises:
            Failed: when the gateway refuses the call or does not answer it; also while the pieces are read.
        """
        with closing(self._connected()) as connection:
            yield self._pieces(self._asked(connection, method, path, body, self._headers | headers))

    def _connected(self) -> HTTPConnection:
        try:
            address = urlsplit(self._url)
            if address.scheme not in KINDS or address.hostname is None:
                raise self._absent("an address looks like http://127.0.0.1:8888")
            connection = KINDS[address.scheme](address.hostname, address.port, timeout=CONNECT_TIMEOUT)
            connection.connect()
        except (OSError, HTTPException, ValueError) as error:
            raise self._absent(error) from None
        connection.sock.settimeout(None)
        return connection

    def _asked(
        self,
        connection: HTTPConnection,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None,
        headers: dict[str, str],
    ) -> HTTPResponse:
        try:
            # A gateway that refuses an upload may answer, and close, before it has read all.
            with suppress(OSError):
                connection.request(method, f"{urlsplit(self._url).path.rstrip('/')}{path}", body, headers)
            response = connection.getresponse()
            if response.status >= HTTPStatus.MULTIPLE_CHOICES:
                raise self._refusal(response)
        except (OSError, HTTPException, ValueError) as error:
            raise self._absent(error) from None
        if "X-Request-Id" not in response.headers:
            raise self._absent("the answer is not a gateway's")
        return response

    def _pieces(self, response: HTTPResponse) -> Iterator[bytes]:
        try:
            while piece := response.read(PIECE):
                yield piece
        except (OSError, HTTPException) as error:
            raise Failed(f"the connection to {self._url} broke off, the content is not complete: {error}") from None
        if response.length:  # bytes that were announced and did not arrive
            raise Failed(f"the connection to {self._url} broke off, {response.length} bytes are missing")

    def _refusal(self, response: HTTPResponse) -> Failed:
        return refusal_in(response.read()) or self._absent(f"HTTP {response.status}: {response.reason}")

    def _absent(self, reason: object) -> Failed:
        return absent(self._url, reason)


def absent(url: str, reason: object) -> Failed:
    """Return the failure of a call that no gateway has answered, with what to do about https."""
    hint = ""
    if isinstance(reason, SSLCertVerificationError):
        hint = " - SSL_CERT_FILE names the certificate to trust: a gateway's own is `tls.pem` in its state directory"
    elif url.startswith("http:") and str(reason).startswith(f"HTTP {HTTPStatus.BAD_REQUEST:d}"):
        hint = " - the address of a gateway with `tls` begins with https://"
    return Failed(f"no gateway at {url}: {reason}{hint}")


def _dumped(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as error:  # Python reads bytes of an argument that are no text as surrogates
        raise Failed(f"an argument is no text: {error}") from None


def refusal_in(content: bytes) -> Failed | None:
    """Return the reason in a gateway's answer, or None if the answer is not a gateway's."""
    try:
        return Failed(told(orjson.loads(content)["error"]))
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None


def told(failure: dict[str, Any]) -> str:
    """Return an error of the API as text: its code, what happened, and what to do, also on this command line."""
    hint = HINTS.get(failure["code"])
    return f"{failure['code']}: {failure['message']} - {failure['resolution']}" + (f" ({hint})" if hint else "")


def path_of(session: str) -> str:
    """Return the path of a session in the API."""
    return f"/v1/sessions/{quote(session.encode(errors='surrogateescape'), safe='')}"
