"""Errors that only an HTTP service can have; those of the domain are in `sessions/errors.py`."""

from __future__ import annotations

from sessions.errors import SessionError


class Unauthorized(SessionError):
    """The key is not known.

    Send `Authorization: Bearer KEY`; the gateway's operator hands out keys.
    """

    code = "SB020"


class UnknownHost(SessionError):
    """The request's Host header names a host this gateway does not answer to.

    Use the address it listens on, or let its operator add the name to `allowed_hosts`.
    """

    code = "SB021"


class NoSuchRoute(SessionError):
    """There is nothing at this path.

    See `/v1/openapi.json` for the paths that exist.
    """

    code = "SB022"


class MethodNotAllowed(SessionError):
    """This path does not support this method.

    See `/v1/openapi.json` for the methods of each path.
    """

    code = "SB023"


class TooLarge(SessionError):
    """The request's body is too large.

    Send less at a time; files go to `/v1/sessions/{name}/files/{path}`.
    """

    code = "SB024"


class InternalError(SessionError):
    """The gateway failed; your session is not affected.

    Try again; if it fails again, give the operator the request id, which is in the log.
    """

    code = "SB025"


class Forbidden(SessionError):
    """This key's role does not permit the request.

    Use a key with the role admin: `kernel-gateway keys add TENANT --role admin` makes one.
    """

    code = "SB026"


class KeyNotFound(SessionError):
    """There is no such key.

    List the keys to see their ids; keys from the settings are not listed.
    """

    code = "SB029"


class TooManyConnections(SessionError):
    """The gateway has as many connections as it may have, or your address has.

    Close connections that you do not need, or try again later; the operator's setting is `max_connections_per_address`.
    """

    code = "SB036"
