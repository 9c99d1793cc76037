"""Nonces of signed requests: each is good once, for as long as the date of its request is accepted.

They are kept in memory, so a gateway that is started again accepts once more what it has seen in the last minutes.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from sessions.model.errors import QuotaExceeded

#: nonces of one access key: 55 requests a second, in about 15 MB
MOST = 100_000


@dataclass
class _Used:
    """The nonces of one access key."""

    digests: set[bytes] = field(default_factory=set)
    #: when each is no longer needed, the earliest first
    ends: list[tuple[float, bytes]] = field(default_factory=list)


class Nonces:
    """The nonces that were used, by access key."""

    def __init__(self, clock: Callable[[], float], most: int = MOST) -> None:
        """Begin without any.

        Args:
            clock: returns seconds since 1970, as the dates of requests do.
            most: nonces that are kept for one access key.
        """
        self._clock = clock
        self._most = most
        self._used: defaultdict[str, _Used] = defaultdict(_Used)

    def use(self, access_key: str, nonce: str, until: float) -> bool:
        """Use a nonce.

        Args:
            access_key: id of the access key whose signature covers the nonce; it must have been verified.
            nonce: as the client sent it.
            until: time until which its request is accepted, in seconds since 1970.

        Returns:
            False when the nonce was used before.

        Raises:
            QuotaExceeded: when so many were used that no more can be kept.
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
