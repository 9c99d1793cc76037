"""Errors that only an HTTP service can have; those of the domain are in `sessions/model/errors.py`."""

from __future__ import annotations

from http import HTTPStatus

from sessions.model import errors
from sessions.model.errors import SessionError


class Unauthorized(SessionError, code="SB020"):
    """The key is not known.

    Send `Authorization: Bearer KEY`; the gateway's operator hands out keys.
    """


class UnknownHost(SessionError, code="SB021"):
    """The request's Host header names a host this gateway does not answer to.

    Use the address it listens on, or let its operator add the name to `allowed_hosts`.
    """


class NoSuchRoute(SessionError, code="SB022"):
    """There is nothing at this path.

    See `/v1/openapi.json` for the paths that exist.
    """


class MethodNotAllowed(SessionError, code="SB023"):
    """This path does not support this method.

    See `/v1/openapi.json` for the methods of each path.
    """


class TooLarge(SessionError, code="SB024"):
    """The request's body is too large.

    Send less at a time; files go to `/v1/sessions/{name}/files/{path}`.
    """


class InternalError(SessionError, code="SB025"):
    """The gateway failed; your session is not affected.

    Try again; if it fails again, give the operator the request id, which is in the log.
    """


class Forbidden(SessionError, code="SB026"):
    """This key's role does not permit the request.

    Use a key with the role admin, or frontend to name users: `kernel-gateway keys add TENANT --role admin` makes one.
    """


class KeyNotFound(SessionError, code="SB029"):
    """There is no such key.

    List the keys to see their ids; keys from the settings are not listed.
    """


class TooManyConnections(SessionError, code="SB036"):
    """The gateway or your address has reached its limit of connections.

    Close connections that you do not need, or try again later; the operator's setting is `max_connections_per_address`.
    """


class RangeNotSatisfiable(SessionError, code="SB038"):
    """The requested range begins behind the end of the file.

    The header Content-Range has the file's size. A download that has all bytes is complete.
    """


class NotSupported(SessionError, code="SB046"):
    """This gateway does not support what the request asks for.

    Do without it: the page of its client in `docs/clients/` lists what is different here.
    """


class ServerFailed(SessionError, code="SB062"):
    """The server in the sandbox gave no valid answer.

    Look at the server's own output: it must speak HTTP/1.1, and answer in time.
    """


#: HTTP status of every error; a test checks that the table is complete
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
    errors.FileExists: HTTPStatus.CONFLICT,
    errors.NoSpace: HTTPStatus.INSUFFICIENT_STORAGE,
    errors.SandboxNotFound: HTTPStatus.NOT_FOUND,
    errors.TemplateNotFound: HTTPStatus.NOT_FOUND,
    errors.ProcessNotFound: HTTPStatus.NOT_FOUND,
    errors.AuditUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.LedgerUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.ShuttingDown: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.OutcomeUnknown: HTTPStatus.CONFLICT,
    errors.ExecutionNotFound: HTTPStatus.NOT_FOUND,
    errors.ExecutionCancelled: HTTPStatus.CONFLICT,
    errors.CellRunsOn: HTTPStatus.CONFLICT,
    errors.SettingsUnreadable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.NetworkNotAllowed: HTTPStatus.FORBIDDEN,
    errors.CheckpointNotFound: HTTPStatus.NOT_FOUND,
    errors.CheckpointRefused: HTTPStatus.CONFLICT,
    errors.PortNotOpen: HTTPStatus.BAD_GATEWAY,
    errors.PortsUnavailable: HTTPStatus.NOT_IMPLEMENTED,
    errors.VariableNotFound: HTTPStatus.NOT_FOUND,
    errors.DebuggerUnavailable: HTTPStatus.NOT_IMPLEMENTED,
    errors.DebugRefused: HTTPStatus.CONFLICT,
    Unauthorized: HTTPStatus.UNAUTHORIZED,
    UnknownHost: HTTPStatus.MISDIRECTED_REQUEST,
    NoSuchRoute: HTTPStatus.NOT_FOUND,
    MethodNotAllowed: HTTPStatus.METHOD_NOT_ALLOWED,
    TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    InternalError: HTTPStatus.INTERNAL_SERVER_ERROR,
    Forbidden: HTTPStatus.FORBIDDEN,
    KeyNotFound: HTTPStatus.NOT_FOUND,
    TooManyConnections: HTTPStatus.SERVICE_UNAVAILABLE,
    RangeNotSatisfiable: HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
    NotSupported: HTTPStatus.NOT_IMPLEMENTED,
    ServerFailed: HTTPStatus.BAD_GATEWAY,
}
