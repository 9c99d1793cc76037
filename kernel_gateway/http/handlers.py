"""Base handlers of all dialects: they check the credential, read the body, and send the answer or the failure.

Most handlers of a dialect derive from `JsonHandler` and only translate. This module knows no kernels.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Coroutine
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

import orjson
import structlog
from pydantic import BaseModel
from tornado.http1connection import HTTP1Connection
from tornado.web import HTTPError, RequestHandler, stream_request_body

from kernel_gateway.config import Settings
from kernel_gateway.errors import (
    STATUS,
    InternalError,
    MethodNotAllowed,
    NoSuchRoute,
    RangeNotSatisfiable,
    TooLarge,
    Unauthorized,
    UnknownHost,
)
from kernel_gateway.gateway import Gateway
from kernel_gateway.http.metered import Metered
from kernel_gateway.http.request_body import validated
from kernel_gateway.identity.auth import Caller
from kernel_gateway.identity.keystore import Role
from kernel_gateway.observe import logs
from kernel_gateway.wire.connections import connection_of
from kernel_gateway.wire.incoming import Account
from sessions.model import exact_json
from sessions.model.errors import InvalidRequest, SessionError
from sessions.model.tasks import spawn
from sessions.model.values import Asker

log = structlog.get_logger()

#: maximum bytes of a request's body, except for uploads of files
MAX_BODY = 4 * 1024**2
#: the whole body must arrive within BODY_SECONDS, plus one second for each BODY_RATE bytes
BODY_SECONDS, BODY_RATE = 60.0, 64 * 1024

#: what a request takes of the event loop, as a multiple of what its handler takes: tornado reads the head, calls the
#: handler and sends the answer (measured for `GET /v1/sessions`: 0.35 and 0.17 ms)
WHOLE = 2.0
#: maximum seconds of the event loop for which a handler counts. Longer work, such as a download, is bounded by the
#: client that reads it, or runs in slices (`FairLoop`); it must not keep the tenant's kernels waiting
COUNTED_MAX = 0.005

#: the headers of an answer with more bytes are sent before its body
LARGE = 1024**2

#: valid request ids of clients; the gateway logs such an id and returns it
REQUEST_ID = re.compile("[A-Za-z0-9._-]{1,64}")

#: value of the Retry-After header in seconds, by status
RETRY_AFTER = {HTTPStatus.SERVICE_UNAVAILABLE: 5, HTTPStatus.TOO_MANY_REQUESTS: 1}

Model = TypeVar("Model", bound=BaseModel)


@stream_request_body
class BaseHandler(RequestHandler):
    """Base of all handlers: checks host and key before the body is read, and sends failures as answers."""

    gateway: Gateway
    #: name of the dialect that the path belongs to
    dialect: str
    caller: Caller
    #: tenant of the caller
    tenant: str
    request_id: str
    #: who asks; it has no key before the key is checked
    asker: Asker
    #: methods that do not wait when the tenant has taken more than its share of the event loop: they end something
    urgent: frozenset[str] = frozenset()
    #: seconds of the event loop that the handler has taken
    _taken = 0.0
    #: True if requests need no key
    public = False
    #: True if the key may also be sent as `?token=`
    key_in_query = False

    def initialize(self, gateway: Gateway, dialect: str = "none") -> None:
        """Set up the handler. Tornado calls this with the route's keyword arguments."""
        self.gateway = gateway
        self.dialect = dialect
        told = self.request.headers.get("X-Request-Id", "")
        self.request_id = told if REQUEST_ID.fullmatch(told) else secrets.token_hex(8)
        self.asker = Asker(address=self.request.remote_ip, dialect=dialect, request_id=self.request_id)
        self.set_default_headers()

    def set_default_headers(self) -> None:
        """Set headers that keep browsers from rendering or running anything that the gateway sends."""
        self.clear_header("Server")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; sandbox")
        self.set_header("Cache-Control", "no-store")
        if hasattr(self, "gateway"):  # tornado's first call is before initialize
            self.set_header("X-Request-Id", self.request_id)
            for name, value in self.gateway.origins.headers(self.request).items():
                self.set_header(name, value)

    def prepare(self) -> Awaitable[None] | None:
        """Check host and key before anything else happens."""
        logs.bind_asker(self.asker)
        if self.gateway.allowed_hosts and not _is_among(self.gateway.allowed_hosts, _host_name(self.request.host)):
            raise UnknownHost
        if not self.public and not self.gateway.origins.is_preflight(self.request):
            self.caller = self.authenticate()
            self.gateway.keys.note_use(self.caller)
            self.asker = replace(self.asker, key_id=self.caller.told_id)
            logs.bind_asker(self.asker)
            self.tenant = self.caller.tenant
            urgent = self.request.method in self.urgent or self.caller.role is Role.ADMIN
            connection_of(self.http.stream).assign(self.tenant, urgent=urgent)
        self.limit_body_time(MAX_BODY if self.announced_length is None else self.announced_length)
        return None

    def _execute(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, None]:
        """Run the request; tornado calls this. What it takes of the event loop is counted."""
        return Metered(super()._execute(*args, **kwargs), self.count_time)

    def count_time(self, seconds: float) -> None:
        """Count time of the event loop for the tenant. Requests without a key have none."""
        counted = min(seconds, COUNTED_MAX - self._taken)
        self._taken += counted
        if counted > 0 and hasattr(self, "tenant"):
            self.gateway.loop_time.spend(self.tenant, WHOLE * counted)

    def limit_body_time(self, size: int) -> None:
        """Limit the time for a body of at most `size` bytes. A slower body ends the connection."""
        self.http.set_body_timeout(BODY_SECONDS + size / BODY_RATE)

    def authenticate(self) -> Caller:
        """Return the caller of the request.

        Raises:
            Unauthorized: when the request belongs to no known caller.
        """
        return self.gateway.keys.caller(self.request, in_query=self.key_in_query)

    @property
    def tenant_settings(self) -> Settings:
        """The gateway's settings as the caller's tenant has them."""
        return self.gateway.settings_of(self.tenant)

    def options(self, *_path: str) -> None:
        """Answer a browser's preflight request for a page of an allowed origin; `Origins` has set the headers."""
        if not self.gateway.origins.is_preflight(self.request):
            raise MethodNotAllowed
        self.set_status(HTTPStatus.NO_CONTENT)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """Drop the body: this handler does not use it."""

    def raw_argument(self, name: str) -> str | None:
        """Return a value of the query unchanged, or None without one.

        Tornado's own method replaces control characters by blanks.

        Raises:
            tornado.web.HTTPError: when the value is not valid UTF-8.
        """
        values = self.request.query_arguments.get(name)
        return self.decode_argument(values[-1], name) if values else None

    @property
    def logged_path(self) -> str:
        """The path for the access log. A handler whose path contains a credential overrides this."""
        return self.request.path

    @property
    def announced_length(self) -> int | None:
        """The length of the body in bytes, or None if the request does not announce it."""
        value = self.request.headers.get("Content-Length", "")
        return int(value) if re.fullmatch("[0-9]{1,18}", value) else None

    def send_error(self, status_code: int = HTTPStatus.INTERNAL_SERVER_ERROR, **kwargs: Any) -> None:
        """Answer with a failure; tornado calls this for every exception of a handler. Without a key it may wait."""
        send = partial(super().send_error, status_code, **kwargs)
        if not hasattr(self, "caller") and (pause := self.gateway.keys.refusals.pause()):
            asyncio.get_running_loop().call_later(pause, send)
        else:
            send()

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Write a failure in the dialect's format. Tornado's `send_error` calls this."""
        error = kwargs.get("exc_info", (None, None))[1]
        failure = _as_session_error(error, status_code)
        self.gateway.metrics.failed(failure.code)
        status = self.status_of(failure)
        self.set_status(status)
        if status in RETRY_AFTER:
            self.set_header("Retry-After", str(failure.details.get("retry_after", RETRY_AFTER[status])))
        if isinstance(failure, Unauthorized):
            self.set_header("WWW-Authenticate", "Bearer")
        if isinstance(failure, RangeNotSatisfiable):
            self.set_header("Content-Range", f"bytes */{failure.details['size']}")
        if not self.request._body_future.done():  # noqa: SLF001 - tornado then closes the connection without notice
            self.set_header("Connection", "close")
        self.finish_failure(failure)

    def finish_failure(self, failure: SessionError) -> None:
        """Send the body for a failure. A dialect overrides this if its clients expect another media type than JSON."""
        self.finish_json(self.render_failure(failure))

    def status_of(self, failure: SessionError) -> HTTPStatus:
        """Return the HTTP status of a failure. A dialect overrides this if its clients expect another status."""
        status = STATUS[type(failure)]
        # An answer that reports a failed cell has the status 200; a request that fails because of such a cell has 502.
        return status if status is not HTTPStatus.OK else HTTPStatus.BAD_GATEWAY

    def render_failure(self, failure: SessionError) -> dict[str, Any]:
        """Return the body for a failure. A dialect overrides this with its own format."""
        return {"error": failure.as_dict() | {"request_id": self.request_id}}

    def log_exception(self, typ: Any, value: BaseException | None, tb: Any) -> None:
        """Log defects of the gateway with a traceback. Errors of clients appear only in the access log."""
        if not isinstance(value, (SessionError, HTTPError)):
            log.error("request failed", request_id=self.request_id, exc_info=(typ, value, tb))

    @property
    def http(self) -> HTTP1Connection:
        """Tornado's HTTP connection of the request, for actions that only the connection offers."""
        connection = self.request.connection
        if not isinstance(connection, HTTP1Connection):
            raise TypeError("not an HTTP/1 connection")
        return connection

    def finish_json(self, value: Any) -> None:
        """Send a JSON body and end the answer."""
        body = exact_json.dumps(value)
        self.set_header("Content-Type", "application/json")
        if len(body) > LARGE:
            self.set_header("Content-Length", len(body))
            self.flush()  # otherwise tornado copies the body behind the headers
        self.finish(body)


class JsonHandler(BaseHandler):
    """A handler whose bodies are JSON."""

    _work: asyncio.Task[None] | None = None
    #: counts the body's bytes for the tenant
    _account: Account | None = None

    def prepare(self) -> Awaitable[None] | None:
        """Refuse a body whose announced length is too large. The server refuses others when they become too large."""
        self._received = bytearray()
        prepared = super().prepare()
        if (self.announced_length or 0) > MAX_BODY:
            raise TooLarge
        if hasattr(self, "caller"):
            self._reserve(MAX_BODY if "Transfer-Encoding" in self.request.headers else self.announced_length or 0)
        return prepared

    def _reserve(self, size: int) -> None:
        """Count the body's bytes before they arrive: later, a refusal could not be sent as an answer."""
        self._account = self.gateway.incoming.account(self.tenant)
        if not self._account.take(size):
            raise self.gateway.incoming.refusal("requests and messages", self.tenant)

    def on_finish(self) -> None:
        """Give the bytes of the body back to the tenant."""
        super().on_finish()
        if self._account is not None:
            self._account.close()

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """Collect the body."""
        self._received += chunk
        return None

    async def run_until_client_leaves(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that ends with the answer, and cancel it when the client leaves."""
        if self.http.stream.closed():
            work.close()
            return  # the client has left already; tornado reports that only once
        self._work = spawn(Metered(work, self.count_time), "work on a request")
        await asyncio.wait({self._work})
        if not self._work.cancelled():
            self._work.result()

    def on_connection_close(self) -> None:
        """Cancel the work: the client has left."""
        super().on_connection_close()
        if self._account is not None:
            self._account.close()
        if self._work is not None:
            self._work.cancel()

    def body(self, model: type[Model]) -> Model:
        """Return the request's body as `model`. Its Content-Type is ignored, and no body counts as an empty object.

        Raises:
            InvalidRequest: when the body is not JSON, or does not fit the model; the message names the field.
        """
        try:
            value = exact_json.loads(self._received or b"{}")
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"the body is no valid JSON: {error.msg}", field="body") from None
        return validated(model, value)


class NotFoundHandler(BaseHandler):
    """Handler of every path that belongs to no dialect."""

    public = True

    def prepare(self) -> None:
        """Refuse every method."""
        super().prepare()
        if not self.gateway.origins.is_preflight(self.request):
            raise NoSuchRoute


def _host_name(host: str) -> str:
    return re.sub(r":\d+$", "", host).strip("[]").lower()


def _is_among(hosts: frozenset[str], name: str) -> bool:
    """Return whether a host's name is in the list, or one label below an entry such as `*.example.org`."""
    label, _, domain = name.partition(".")
    return name in hosts or (bool(label) and f"*.{domain}" in hosts)


def _as_session_error(error: BaseException | None, status: int) -> SessionError:
    if isinstance(error, SessionError):
        return error
    by_status: dict[int, type[SessionError]] = {404: NoSuchRoute, 405: MethodNotAllowed, 413: TooLarge}
    if status in by_status:
        return by_status[status]()
    if isinstance(error, HTTPError) and error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
        return InvalidRequest("the request is malformed")
    return InternalError()
