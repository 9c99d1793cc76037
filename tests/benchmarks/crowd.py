"""Measures many sessions over HTTP: how many executions per second, and how many sessions live side by side.

These are the parts `throughput` and `density` of `make bench`.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import requests

from tests.benchmarks.figures import rounds, say
from tests.benchmarks.live import Caller, Live, control_groups, for_each
from tests.benchmarks.results import Figures, Ways
from tests.benchmarks.serving import serving_on
from tests.benchmarks.ways import CODE, HttpClient, Server
from tests.gateways import Gateway

#: sessions that run cells at the same time
BUSY = (1, 10, 20)
#: seconds for which they do so
BUSY_SECONDS = 4.0
#: sessions that are made at the same time, where that is not measured
MAKERS = 4
#: clients of many sessions
CLIENTS = 4
#: seconds until sessions are at rest, and for which their processor time is then counted
SETTLE, IDLE = 5.0, 10.0
ALONE = "1 session"
#: cells of one session in a round; of many sessions each has one
ALONE_CELLS = 20
MIB = 1024**2
SETTINGS = {"max_sessions_per_tenant": "1000", "max_concurrent_per_tenant": "1000", "idle_timeout": "3600"}


def named(sessions: int) -> str:
    """Return the name of a way with so many sessions."""
    return ALONE if sessions == 1 else f"{sessions} sessions"


# -- executions per second -------------------------------------------------------------------------------------


def throughput(isolation: str, most: int, limit: float) -> Ways:
    """Measure executions per second, their latency, and the gateway's processor time for each.

    Args:
        isolation: isolation of all kernels.
        most: number of rounds.
        limit: seconds after which no further round begins.
    """
    ways: dict[str, Figures] = {named(sessions): defaultdict(list) for sessions in BUSY}
    with serving_on(isolation, **SETTINGS) as serving:
        say(f"throughput, {isolation}: starting {max(BUSY)} sessions")
        clients = [HttpClient(serving, f"busy-{number}") for number in range(max(BUSY))]
        with ThreadPoolExecutor(MAKERS) as threads:
            list(threads.map(lambda client: client.execute(CODE), clients))
        server = Server(serving.url, serving.process.pid, "python3")
        for _ in rounds(f"throughput, {isolation}", most, limit):
            for sessions in BUSY:
                figures, before, begun = ways[named(sessions)], server.cpu(), time.perf_counter()
                seconds = run_all(clients[:sessions])
                figures["per second"].append(len(seconds) / (time.perf_counter() - begun))
                figures["gateway"].append((server.cpu() - before) / len(seconds))
                figures["cell"] += seconds
        for client in clients:
            client.close()
    return dict(ways)


def run_all(clients: list[HttpClient]) -> list[float]:
    """Run cells with all clients at the same time, one after the other with each; return the seconds of each cell."""
    until = time.monotonic() + BUSY_SECONDS

    def run(client: HttpClient) -> list[float]:
        took = []
        while time.monotonic() < until:
            begun = time.perf_counter()
            client.execute(CODE)
            took.append(time.perf_counter() - begun)
        return took

    with ThreadPoolExecutor(len(clients)) as threads:
        return list(itertools.chain.from_iterable(threads.map(run, clients)))


# -- sessions side by side -------------------------------------------------------------------------------------


def density(isolation: str, sessions: tuple[int, ...], most: int, limit: float) -> Ways:
    """Measure starts at once, cells, memory and processor time while many sessions live. Failures are counted.

    Args:
        isolation: isolation of all kernels.
        sessions: how many are started at once and then live side by side; all are ended before the next number.
        most: cells in each session for one client, and as many for several.
        limit: seconds after which no further round begins, for each number of sessions.
    """
    ways: Ways = {}
    with serving_on(isolation, **SETTINGS, memory="256m") as serving:
        with closing(Caller(serving)) as caller:  # not measured: the first start costs more
            first = Live(0)
            caller.begin(first)
            caller.end(first)
        numbers = itertools.count(1)  # no name is used twice
        for count in sessions:
            say(f"density, {isolation}: starting {count} sessions at once")
            figures, lives = started(serving, [Live(next(numbers)) for _ in range(count)])
            ways[named(count)] = figures
            say(f"density, {isolation}: {len(lives)} idle sessions")
            time.sleep(SETTLE)
            figures |= idle(serving)
            cells(serving, lives, figures, most, limit)
            for_each(serving, lives, Caller.end, CLIENTS)
    return ways


def started(serving: Gateway, lives: list[Live]) -> tuple[Figures, list[Live]]:
    """Start sessions at once, each by a client of its own; return the figures, and those that have started."""
    failures: set[str] = set()
    begun = time.perf_counter()
    start = for_each(serving, lives, tried(Caller.begin, failures), len(lives))
    figures = {
        "all ready": [time.perf_counter() - begun],
        "start": [seconds for seconds in start if not math.isnan(seconds)],
        "cells": [float(len(lives))],
        "failed": [float(len(failures))],
    }
    return figures, [live for live in lives if live.name not in failures]


def idle(serving: Gateway) -> Figures:
    """Return the memory of each container, and the processor time of all per second."""
    groups = control_groups(serving)
    begun, before = time.perf_counter(), [group.seconds() for group in groups]
    time.sleep(IDLE)
    after, took = [group.seconds() for group in groups], time.perf_counter() - begun
    used = [end - begin for begin, end in zip(before, after, strict=True) if begin is not None and end is not None]
    sizes = [size for group in groups if (size := group.memory()) is not None]
    return {"MiB": [size / MIB for size in sizes], "idle": [sum(used) / took] if used else []}


def cells(serving: Gateway, lives: list[Live], figures: Figures, most: int, limit: float) -> None:
    """Run cells that check their session's state, with one client and, if there are several sessions, with several."""
    alone = len(lives) == 1
    work = lives * ALONE_CELLS if alone else lives
    for name, clients in [("cell", 1)] if alone else [("cell", 1), ("crowd", CLIENTS)]:
        figures[name] = []
        for _ in rounds(f"density, {len(lives)} sessions, {clients} at a time", most, limit):
            took = for_each(serving, work, tried(Caller.step, set()), clients)
            ended = [seconds for seconds in took if not math.isnan(seconds)]
            figures[name] += ended
            figures["cells"].append(len(took))
            figures["failed"].append(len(took) - len(ended))


def tried(what: Callable[[Caller, Live], float], failures: set[str]) -> Callable[[Caller, Live], float]:
    """Return a function that notes the session and returns NaN, where `what` raises an error."""

    def attempt(caller: Caller, live: Live) -> float:
        try:
            return what(caller, live)
        except (AssertionError, requests.RequestException) as error:
            say(f"failed: {str(error)[:300]}")
            failures.add(live.name)
            return math.nan

    return attempt
