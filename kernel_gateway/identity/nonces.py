"""Nonces of signed requests. Each nonce is accepted once, and is stored as long as its request's date is accepted.

Nonces are stored in memory only, so after a restart the gateway accepts nonces of the last minutes once more.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from sessions.model.errors import QuotaExceeded

#: maximum stored nonces of one access key: enough for 55 requests per second, in about 15 MB of memory
MOST = 100_000


@dataclass
class _Used:
    """The nonces of one access key."""

    digests: set[bytes] = field(default_factory=set)
    #: heap of the digests with the time from which each is no longer needed, in seconds since 1970
    ends: list[tuple[float, bytes]] = field(default_factory=list)


class Nonces:
    """The used nonces of each access key."""

    def __init__(self, clock: Callable[[], float], most: int = MOST) -> None:
        """Start without nonces.

        Args:
            clock: returns seconds since 1970.
            most: maximum stored nonces of one access key.
        """
        self._clock = clock
        self._most = most
        self._used: defaultdict[str, _Used] = defaultdict(_Used)

    def use(self, access_key: str, nonce: str, until: float) -> bool:
        """Mark a nonce as used.

        Args:
            access_key: id of the access key whose signature covers the nonce; the signature must be verified already.
            nonce: the nonce as the client sent it.
            until: time until which the request's date is accepted, in seconds since 1970.

        Returns:
            False if the nonce was used before.

        Raises:
            QuotaExceeded: when the maximum of stored nonces is reached.
        """
        used = self._used[access_key]
        while used.ends and used.ends[0][0] < self._clock():
            used.digests.discard(heappop(used.ends)[1])
        digest = hashlib.blake2b(nonce.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest in used.digests:
            return False
        if len(used.digests) >= self._most:
            raise QuotaExceeded(f"the access key has signed {self._most} requests in a short time", max=self._most)
        used.digests.add(digest)
        heappush(used.ends, (until, digest))
        return True
