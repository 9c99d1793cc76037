"""Measures what a client waits for in a new session, over HTTP: its first result, a plot, a fit of sklearn.

The session's kernel is started cold, restored from a checkpoint, or warm in the pool, each by a gateway of its own.
They take turns, and each has had a rest. It is the part `first` of `make bench`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import ExitStack, closing
from statistics import median

from tests.benchmarks.figures import rounds, say
from tests.benchmarks.live import control_groups
from tests.benchmarks.results import Figures, Ways
from tests.benchmarks.serving import serving_on, until_warm
from tests.benchmarks.start import FIRST_CELLS, PRELOAD
from tests.benchmarks.ways import REST, HttpClient
from tests.gateways import Gateway

COLD, RESTORED, POOLED = "cold", "restored from a checkpoint", "from the pool"
#: the settings of the gateway of each way; those of the pool are the usual ones
SETTINGS = {
    COLD: {},
    RESTORED: {"golden_images": "auto", "preload": ",".join(PRELOAD)},
    POOLED: {"golden_images": "auto", "preload": ",".join(PRELOAD), "pool_size": "2"},
}
#: the cells of a new session
PLOT, FIT = FIRST_CELLS.values()
CELLS = {"result": "1", "plot": PLOT, "plot again": PLOT, "fit": FIT}
#: seconds in which a gateway has made its first checkpoint
CHECKPOINT = 90.0
SESSION = "first"
MIB = 1024**2


def measure(isolation: str, most: int, limit: float) -> Ways:
    """Measure all ways in turn.

    Args:
        isolation: isolation of all kernels; only gVisor's have checkpoints.
        most: number of rounds.
        limit: seconds after which no further round begins.
    """
    ways: Ways = {}
    with ExitStack() as stack:
        served: dict[str, tuple[Gateway, Figures]] = {}
        for way, settings in SETTINGS.items():
            if way == RESTORED and isolation != "runsc":
                continue
            say(f"first, {isolation}: starting a gateway for sessions {way}")
            serving = stack.enter_context(serving_on(isolation, **settings))
            if way == RESTORED and (reason := without_golden_images(serving)):
                ways[way] = reason
                continue
            figures: Figures = defaultdict(list)
            ways[way], served[way] = figures, (serving, figures)
            session(serving, way, defaultdict(list))  # not measured: the first start costs more
        for _ in rounds(f"first, {isolation}", most, limit):
            for way, (serving, figures) in served.items():
                session(serving, way, figures)
        if isolation != "process":
            for way, (serving, figures) in served.items():
                figures["MiB"].append(held(serving, way))
    return ways


def without_golden_images(serving: Gateway) -> str:
    """Wait for the gateway's first checkpoint; return why there is none, empty: there is one."""
    deadline = time.monotonic() + CHECKPOINT
    while not (told := serving.call("GET", "/readyz", tenant=None).json()["golden_images"])["on"]:
        if time.monotonic() > deadline:
            return f"no golden images: {told['detail']}"
        time.sleep(0.2)
    return ""


def session(serving: Gateway, way: str, figures: Figures) -> None:
    """Run the cells of a new session, and end it."""
    if way == POOLED:
        until_warm(serving)
    time.sleep(REST)
    with closing(HttpClient(serving, SESSION)) as client:
        for name, code in CELLS.items():
            begun = time.perf_counter()
            client.execute(code)
            figures[name].append(time.perf_counter() - begun)
    end(serving)


def held(serving: Gateway, way: str) -> float:
    """Return the MiB of an idle session; a warm kernel has as many."""
    if way == POOLED:
        until_warm(serving)
    with closing(HttpClient(serving, SESSION)) as client:
        client.execute(CELLS["result"])
    time.sleep(2 * REST)
    found = [group.memory() for group in control_groups(serving)]
    end(serving)
    return median(size for size in found if size is not None) / MIB


def end(serving: Gateway) -> None:
    """End the session."""
    response = serving.call("DELETE", f"/v1/sessions/{SESSION}")
    assert response.status_code == 204, response.text
