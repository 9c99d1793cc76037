"""What a process that was restored from a checkpoint must not share with others that were restored from the same one.

The kernel remembers its sources of random numbers before the checkpoint is taken (`Sources`) and seeds them anew after
the restore. `os.urandom`, `secrets`, `uuid.uuid4` and `numpy.random.default_rng()` ask the sandbox, which is new, and
need nothing. What stays the same is fixed when the interpreter or the sandbox starts: the seed of hashes of text, the
addresses of memory, and the sandbox's `boot_id`, which no process in it can change.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from typing import Any

#: bytes that a source is seeded with
_SEED = 32


class Sources:
    """The random number generators of this process."""

    def __init__(self) -> None:
        """Find the generators that exist now, also those that libraries keep for themselves."""
        self._generators = [
            one
            for one in gc.get_objects()
            if issubclass(type(one), random.Random) and not issubclass(type(one), random.SystemRandom)
        ]

    def renew(self) -> None:
        """Seed all of them from the system, and forget what else was chosen at random."""
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
            loaded["tempfile"]._name_sequence = None  # noqa: SLF001 - its names are random, and made anew on demand
        if "uuid" in loaded:
            loaded["uuid"]._node = loaded["uuid"]._last_timestamp = None  # noqa: SLF001 - `uuid1` finds them anew
