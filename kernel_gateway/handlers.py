"""What all dialects share: the request's way from credential to answer, and one table from error to HTTP status.

A dialect's handlers derive from `JsonHandler` and only translate. Nothing here knows a kernel.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

import orjson
import structlog
from pydantic import BaseModel, ValidationError
from tornado.http1connection import HTTP1Connection
from tornado.web import HTTPError, RequestHandler, stream_request_body

from kernel_gateway.auth import Caller, Keys
from kernel_gateway.config import Settings
from kernel_gateway.errors import (
    Forbidden,
    InternalError,
    KeyNotFound,
    MethodNotAllowed,
    NoSuchRoute,
    TooLarge,
    Unauthorized,
    UnknownHost,
)
from kernel_gateway.keystore import KeyStore
from kernel_gateway.metrics import Metrics
from kernel_gateway.origins import Origins
from sessions import errors
from sessions.audit import Audit
from sessions.errors import InvalidRequest, SessionError
from sessions.kernelspecs import KernelSpecs
from sessions.oneshot import Runner
from sessions.providers.manager import ProviderManager
from sessions.providers.settings import ProviderSettings
from sessions.quotas import Quotas
from sessions.registry import Registry
from sessions.sandboxes import Sandboxes
from sessions.tasks import spawn
from sessions.templates import Templates

log = structlog.get_logger()

#: bytes of a request's body, files aside
MAX_BODY = 4 * 1024**2

#: bytes of an answer, beyond which its headers go ahead of it
LARGE = 1024**2
#: problems of a body that are told, and characters of each: an answer is not to be as large as the question
PROBLEMS_MAX = 20
PROBLEM_MAX = 200

#: Every error has its status here; a test walks the tree.
STATUS: dict[type[SessionError], HTTPStatus] = {
    errors.NotInitialized: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.InvalidRequest: HTTPStatus.BAD_REQUEST,
    errors.ConnectionFailed: HTTPStatus.BAD_GATEWAY,
    errors.StartFailed: HTTPStatus.BAD_GATEWAY,
    errors.ExecutionTimeout: HTTPStatus.OK,
    errors.OutOfMemory: HTTPStatus.OK,
    errors.PolicyViolation: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.QuotaExceeded: HTTPStatus.TOO_MANY_REQUESTS,
    errors.BackendUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.KernelDied: HTTPStatus.OK,
    errors.SessionNotFound: HTTPStatus.NOT_FOUND,
    errors.SessionExists: HTTPStatus.CONFLICT,
    errors.SessionClosed: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.FileNotFound: HTTPStatus.NOT_FOUND,
    errors.NoSpace: HTTPStatus.INSUFFICIENT_STORAGE,
    errors.SandboxNotFound: HTTPStatus.NOT_FOUND,
    errors.TemplateNotFound: HTTPStatus.NOT_FOUND,
    errors.ProcessNotFound: HTTPStatus.NOT_FOUND,
    errors.AuditUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.LedgerUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.ShuttingDown: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.OutcomeUnknown: HTTPStatus.CONFLICT,
    errors.SettingsUnreadable: HTTPStatus.SERVICE_UNAVAILABLE,
    Unauthorized: HTTPStatus.UNAUTHORIZED,
    UnknownHost: HTTPStatus.MISDIRECTED_REQUEST,
    NoSuchRoute: HTTPStatus.NOT_FOUND,
    MethodNotAllowed: HTTPStatus.METHOD_NOT_ALLOWED,
    TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    InternalError: HTTPStatus.INTERNAL_SERVER_ERROR,
    Forbidden: HTTPStatus.FORBIDDEN,
    KeyNotFound: HTTPStatus.NOT_FOUND,
}

#: what a client may call its request by; it stands in the log and comes back
REQUEST_ID = re.compile("[A-Za-z0-9._-]{1,64}")

#: seconds after which it is worth trying again
RETRY_AFTER = {HTTPStatus.SERVICE_UNAVAILABLE: 5, HTTPStatus.TOO_MANY_REQUESTS: 1}

Route = tuple[str, type[RequestHandler], dict[str, Any]]
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Gateway:
    """What handlers work with."""

    settings: Settings
    registry: Registry
    sandboxes: Sandboxes
    templates: Templates
    specs: KernelSpecs
    keys: Keys
    keystore: KeyStore
    audit: Audit
    metrics: Metrics
    #: None when kernels can be started, else why not
    trouble: Callable[[], SessionError | None]
    #: how many kernels wait in the pool
    warm: Callable[[], int]
    #: how many executions are under way, running or waiting for their turn
    executions: Callable[[], int]
    hosts: frozenset[str]
    origins: Origins
    quotas: Quotas
    #: runs one-shot programs where the settings say
    providers: ProviderManager
    provider_settings: ProviderSettings
    #: runs whole programs here, wherever the settings say that they run
    runner: Runner


@dataclass(frozen=True)
class Dialect:
    """One way to speak to the gateway. It translates; it adds no behaviour."""

    name: str
    #: its paths and their handlers, which all take the gateway
    routes: Callable[[Gateway], list[Route]]


@stream_request_body
class BaseHandler(RequestHandler):
    """A request's way in and out. Host and key are checked before the body is read."""

    gateway: Gateway
    #: the name of the dialect whose path it is
    dialect: str
    caller: Caller
    #: the caller's
    tenant: str
    request_id: str
    #: whether a key is needed
    public = False
    #: whether the key may come as `?token=`
    key_in_query = False

    def initialize(self, gateway: Gateway, dialect: str = "none") -> None:
        """Called by tornado with the route's keyword arguments."""
        self.gateway = gateway
        self.dialect = dialect
        told = self.request.headers.get("X-Request-Id", "")
        self.request_id = told if REQUEST_ID.fullmatch(told) else secrets.token_hex(8)
        self.set_default_headers()

    def set_default_headers(self) -> None:
        """Nothing the gateway sends is ever to be rendered or run by a browser."""
        self.clear_header("Server")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; sandbox")
        self.set_header("Cache-Control", "no-store")
        if hasattr(self, "gateway"):  # tornado calls this first before it calls initialize
            self.set_header("X-Request-Id", self.request_id)
            for name, value in self.gateway.origins.headers(self.request).items():
                self.set_header(name, value)

    def prepare(self) -> Awaitable[None] | None:
        """Check host and key before anything else happens."""
        structlog.contextvars.bind_contextvars(request_id=self.request_id)  # for all that is done for this request
        if self.gateway.hosts and _host_name(self.request.host) not in self.gateway.hosts:
            raise UnknownHost
        if not self.public and not self.gateway.origins.asks(self.request):
            self.caller = self.authenticate()
            self.tenant = self.caller.tenant
        return None

    def authenticate(self) -> Caller:
        """Whose request it is.

        Raises:
            Unauthorized: it is nobody's that is known.
        """
        return self.gateway.keys.caller(self.request, in_query=self.key_in_query)

    def options(self, *_path: str) -> None:
        """Tell a browser what a page of an allowed origin may send; `Origins` has said it."""
        if not self.gateway.origins.asks(self.request):
            raise MethodNotAllowed
        self.set_status(HTTPStatus.NO_CONTENT)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """A body that nobody has asked for is dropped."""

    @property
    def announced(self) -> int | None:
        """The length of the body, when the request tells it."""
        value = self.request.headers.get("Content-Length", "")
        return int(value) if re.fullmatch("[0-9]{1,18}", value) else None

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer any failure in the dialect's form. Called by tornado for whatever a handler raises."""
        error = kwargs.get("exc_info", (None, None))[1]
        failure = _as_session_error(error, status_code)
        self.gateway.metrics.failed(failure.code)
        status = self.status_of(failure)
        self.set_status(status)
        if status in RETRY_AFTER:
            self.set_header("Retry-After", str(failure.details.get("retry_after", RETRY_AFTER[status])))
        if isinstance(failure, Unauthorized):
            self.set_header("WWW-Authenticate", "Bearer")
        if not self.request._body_future.done():  # noqa: SLF001 - tornado ends the connection then, and tells nobody
            self.set_header("Connection", "close")
        self.finish_json(self.render_failure(failure))

    def status_of(self, failure: SessionError) -> HTTPStatus:
        """The HTTP status of a failure; a dialect overrides it where its clients know another."""
        status = STATUS[type(failure)]
        # A cell that ran and failed is no failed request, but a request that cannot be served because of it is.
        return status if status is not HTTPStatus.OK else HTTPStatus.BAD_GATEWAY

    def render_failure(self, failure: SessionError) -> dict[str, Any]:
        """The body for a failure; a dialect overrides it with its own form."""
        return {"error": failure.as_dict() | {"request_id": self.request_id}}

    def log_exception(self, typ: Any, value: BaseException | None, tb: Any) -> None:
        """Log what is our fault, with its traceback; the rest is the client's and stands in the access log."""
        if not isinstance(value, (SessionError, HTTPError)):
            log.error("request failed", request_id=self.request_id, exc_info=(typ, value, tb))

    @property
    def http(self) -> HTTP1Connection:
        """The connection, for what tornado lets only it do."""
        connection = self.request.connection
        if not isinstance(connection, HTTP1Connection):
            raise TypeError("not an HTTP/1 connection")
        return connection

    def finish_json(self, value: Any) -> None:
        """Send a JSON body and end the request."""
        body = orjson.dumps(value)
        self.set_header("Content-Type", "application/json")
        if len(body) > LARGE:
            self.set_header("Content-Length", len(body))
            self.flush()  # or it would be copied to stand behind its headers
        self.finish(body)


class JsonHandler(BaseHandler):
    """A handler whose bodies are JSON."""

    _work: asyncio.Task[None] | None = None

    def prepare(self) -> Awaitable[None] | None:
        """Refuse at once what is too large; the server itself ends what turns out to be."""
        self._received = bytearray()
        prepared = super().prepare()
        if (self.announced or 0) > MAX_BODY:
            raise TooLarge
        return prepared

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """Keep the body."""
        self._received += chunk
        return None

    async def while_client_stays(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what takes its time and ends with the answer; it is cancelled when the client leaves."""
        if self.http.stream.closed():
            work.close()
            return  # the client has left already, and that is told only once
        self._work = spawn(work, "work on a request")
        await asyncio.wait({self._work})
        if not self._work.cancelled():
            self._work.result()

    def on_connection_close(self) -> None:
        """The client has left."""
        super().on_connection_close()
        if self._work is not None:
            self._work.cancel()

    def body(self, model: type[Model]) -> Model:
        """The request's body, whatever its Content-Type says; no body is an empty object.

        Raises:
            InvalidRequest: it is no JSON, or not of the model's form; the message names the field.
        """
        try:
            value = orjson.loads(self._received or b"{}")
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"the body is no valid JSON: {error.msg}", field="body") from None
        return validated(model, value)


def validated(model: type[Model], value: object) -> Model:
    """`value` as `model`.

    Raises:
        InvalidRequest: it is not of the model's form; the message names the first field that is wrong.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        if error.error_count() > PROBLEMS_MAX:  # to name them all would keep everybody else waiting
            raise InvalidRequest(f"body: {error.error_count()} problems", field="body") from None
        problems = [
            {"field": ".".join(map(str, item["loc"]))[:PROBLEM_MAX] or "body", "problem": item["msg"][:PROBLEM_MAX]}
            for item in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        first = problems[0]
        raise InvalidRequest(f"{first['field']}: {first['problem']}", fields=problems) from None


class NotFoundHandler(BaseHandler):
    """For every path that no dialect has."""

    public = True

    def prepare(self) -> None:
        """Nothing is here, whatever the method."""
        super().prepare()
        if not self.gateway.origins.asks(self.request):
            raise NoSuchRoute


def _host_name(host: str) -> str:
    return re.sub(r":\d+$", "", host).strip("[]").lower()


def _as_session_error(error: BaseException | None, status: int) -> SessionError:
    if isinstance(error, SessionError):
        return error
    by_status: dict[int, type[SessionError]] = {404: NoSuchRoute, 405: MethodNotAllowed, 413: TooLarge}
    if status in by_status:
        return by_status[status]()
    if isinstance(error, HTTPError) and error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
        return InvalidRequest("the request is malformed")
    return InternalError()
