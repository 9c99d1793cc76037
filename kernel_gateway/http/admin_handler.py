"""Base class of the handlers that only an admin may use, in any dialect."""

from __future__ import annotations

from collections.abc import Collection

from kernel_gateway.errors import Forbidden
from kernel_gateway.http.handlers import JsonHandler
from kernel_gateway.identity.keystore import Role
from kernel_gateway.times import seconds_of
from sessions.model.errors import InvalidRequest

#: maximum characters of a parameter's name in an error
NAME_MAX = 64


class AdminHandler(JsonHandler):
    """A handler that only an admin may use."""

    def prepare(self) -> None:
        """Refuse callers without the role admin."""
        super().prepare()
        if not self.gateway.origins.is_preflight(self.request) and self.caller.role is not Role.ADMIN:
            raise Forbidden

    def refuse_unknown_parameters(self, known: Collection[str]) -> None:
        """Refuse a query with a parameter that the handler would ignore: the answer would not be what was asked for.

        Raises:
            InvalidRequest: when there is such a parameter; the message names it.
        """
        for name in self.request.query_arguments:
            if name not in known:
                told = f"there is no parameter {name[:NAME_MAX]!r}; there are: {', '.join(known)}"
                raise InvalidRequest(told, field="query")

    def time_argument(self, name: str) -> float | None:
        """Return a time of the query in seconds since 1970, or None without one.

        Raises:
            InvalidRequest: when it is no time.
        """
        value = self.get_query_argument(name, None)
        return None if value is None else seconds_of(name, value)
