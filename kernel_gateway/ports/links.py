"""Signed links to ports: whoever has one may use the port of that session until the link ends. Pure functions.

A link holds for one session, and not for a later one of the same name. It ends with the key that made it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass

from kernel_gateway.identity.auth import Caller
from sessions.model.errors import InvalidRequest

_TOKEN = re.compile(r"([0-9]{1,12})\.([0-9a-f]{0,64})\.([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Link:
    """What a link permits."""

    tenant: str
    #: name of the session
    session: str
    #: id of the session
    id: str
    port: int
    #: time of its end, in seconds since 1970
    until: int
    #: id of the key that has made it. None means a key that cannot be revoked.
    key_id: str | None

    def path(self, secret: str) -> str:
        """Return the path that the link begins with."""
        token = f"{self.until}.{self.key_id or ''}.{self._signature(secret)}"
        return f"/v1/ports/{self.tenant}/{self.session}/{self.port}/{token}/"

    def _signature(self, secret: str) -> str:
        parts = (self.tenant, self.session, self.id, self.port, self.until, self.key_id or "")
        text = ":".join(map(str, parts))  # no part has a colon
        return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()

    def is_signed(self, secret: str, signature: str) -> bool:
        """Return whether a signature is this link's. The comparison takes constant time."""
        return hmac.compare_digest(self._signature(secret), signature)

    @property
    def caller(self) -> Caller:
        """The owner of the session, with the key that has made the link."""
        return Caller(self.tenant, key_id=self.key_id)


def read_token(token: str) -> tuple[int, str | None, str]:
    """Return the end, the id of the key, and the signature that a link's token contains. None of them is checked.

    Raises:
        InvalidRequest: when it is no token.
    """
    if (found := _TOKEN.fullmatch(token)) is None:
        raise InvalidRequest("the link is incomplete", field="token")
    return int(found[1]), found[2] or None, found[3]
