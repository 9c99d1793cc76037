"""Renews random numbers after a restore, because several kernels are restored from the same checkpoint.

Before the checkpoint is taken, the kernel finds its random number generators (`RandomSources`); after the restore it
gives them new seeds. `os.urandom`, `secrets`, `uuid.uuid4` and `numpy.random.default_rng()` ask the sandbox, which is
new, so nothing is done for them. Some values are fixed when the interpreter or the sandbox starts, and stay the same:
the seed for hashes of text, the addresses of memory, and the sandbox's `boot_id`.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from typing import Any

#: bytes of a new seed
_SEED = 32


class RandomSources:
    """The random number generators of this process."""

    def __init__(self) -> None:
        """Find all generators that exist now, including private ones of libraries."""
        self._generators = [
            one
            for one in gc.get_objects()
            if issubclass(type(one), random.Random) and not issubclass(type(one), random.SystemRandom)
        ]

    def reseed(self) -> None:
        """Seed all generators from the system, and discard other random values."""
        for one in self._generators:
            one.seed()
        loaded: dict[str, Any] = sys.modules
        if "numpy.random" in loaded:
            loaded["numpy.random"].seed()
        if "ssl" in loaded:
            loaded["ssl"].RAND_add(os.urandom(_SEED), float(_SEED))
        if "multiprocessing.process" in loaded:
            loaded["multiprocessing.process"].current_process().authkey = os.urandom(_SEED)
        if "tempfile" in loaded:
            loaded["tempfile"]._name_sequence = None  # noqa: SLF001 - a new sequence of random names is made on demand
        if "uuid" in loaded:
            loaded["uuid"]._node = loaded["uuid"]._last_timestamp = None  # noqa: SLF001 - `uuid1` sets them again
