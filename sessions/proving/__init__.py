"""Proves the project's promises on the machine of a deployment: real sessions keep each promise once.

The proof uses the same registry and backend as clients do, so what works here works for clients. `promises.py` lists
the promises; a new promise needs a line there. Some attempts must fail, for example to pass a wall, and a failure alone
proves nothing. Such a promise has a control: the same attempt succeeds where there is no wall.

Words: a *promise* is something that a deployment offers. A *verdict* says whether the promise was kept. This room knows
no provider and no dialect.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping

from sessions.model.errors import SessionError
from sessions.proving.ground import Ground, NothingToTry, Refused
from sessions.proving.promises import PROMISES, Outcome, Promise, Verdict

__all__ = ["PROMISES", "Ground", "Outcome", "Promise", "Refused", "Verdict", "prove"]

#: seconds for one promise, beyond which it counts as broken
DEADLINE = 120.0


async def prove(
    ground: Ground, left_out: Mapping[str, str], begins: Callable[[str], None]
) -> AsyncGenerator[Verdict, None]:
    """Prove all promises, one after the other.

    Args:
        ground: where to prove them.
        left_out: promises that this deployment does not make, each with the reason.
        begins: called with the name of each promise that is about to be tried.

    Yields:
        one verdict for each promise.
    """
    found: dict[str, Verdict] = {}
    for promise in PROMISES:
        begins(promise.name)
        if promise.name in left_out:
            verdict = Verdict(promise.name, Outcome.LEFT_OUT, left_out[promise.name])
        elif missing := [name for name in promise.needs if not found[name].tried_well]:
            verdict = _not_tried(promise, found[missing[0]])
        else:
            verdict = await _try(promise, ground)
        found[promise.name] = verdict
        yield verdict


def _not_tried(promise: Promise, needed: Verdict) -> Verdict:
    if needed.outcome is Outcome.LEFT_OUT:
        return Verdict(promise.name, Outcome.LEFT_OUT, needed.detail)
    return Verdict(promise.name, Outcome.REFUSED, f"not tried, because it needs `{needed.name}`")


async def _try(promise: Promise, ground: Ground) -> Verdict:
    begun = time.monotonic()
    try:
        async with asyncio.timeout(DEADLINE):
            detail = await promise.keep(ground)
    except NothingToTry as error:
        return Verdict(promise.name, Outcome.LEFT_OUT, str(error))
    except Refused as error:
        return Verdict(promise.name, Outcome.REFUSED, str(error))
    except SessionError as error:
        return Verdict(promise.name, Outcome.REFUSED, f"{error.message} ({error.code})")
    except TimeoutError:
        return Verdict(promise.name, Outcome.REFUSED, f"it did not end within {DEADLINE:g} s")
    seconds = time.monotonic() - begun
    outcome = Outcome.SLOW if seconds > promise.within else Outcome.WORKS
    return Verdict(promise.name, outcome, detail, seconds, promise.within)
