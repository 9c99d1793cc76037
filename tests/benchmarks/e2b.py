"""Measures E2B's `run_code` and its `/execute`, beside the native API's execute, all on the same kernel.

One gateway, one run, the ways take turns: read the ratios. Then from `Sandbox.create` to the first result, with kernels
that are started plainly, and as users have it, restored from a checkpoint; beside a session of the native API whose
kernel comes from the pool. A sandbox's kernels share their files and `/tmp`, which warm ones cannot. Run by hand:

    .venv/bin/python tests/benchmarks/e2b.py [--isolation docker|process] [--image NAME] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any

sys.path.pop(0)  # this folder, whose `e2b` is not the SDK
sys.path.insert(0, str(Path(__file__).parents[2]))

from e2b_code_interpreter import Sandbox

from tests.benchmarks.figures import percentile, say, spread
from tests.benchmarks.first import CHECKPOINT, RESTORED
from tests.benchmarks.serving import until_warm
from tests.benchmarks.start import PRELOAD
from tests.benchmarks.ways import AUTHORIZATION, CODE
from tests.gateways import KEYS, Gateway, gateway

WAYS = ("native execute", "E2B's /execute", "run_code of E2B's SDK", "the same with envs")
#: the way with which the others are compared
BASE = WAYS[0]
#: created sandboxes of each way
CREATED = 10


def options(serving: Gateway) -> dict[str, Any]:
    """Return the options of the SDK with which it finds the gateway."""
    return {"api_key": KEYS["alice"], "api_url": serving.url, "sandbox_url": serving.url}


def measure(serving: Gateway, sandbox: Sandbox, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each run, by way."""
    context = sandbox.list_code_contexts()[0].id
    connection = HTTPConnection(serving.url.removeprefix("http://"))
    token = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49999"}
    token["X-Access-Token"] = str(sandbox._envd_access_token)

    def post(path: str, headers: dict[str, str]) -> bytes:
        connection.request("POST", path, json.dumps({"code": CODE}), headers)
        return connection.getresponse().read()

    runs: tuple[Callable[[], bool], ...] = (
        lambda: b'"ok"' in post(f"/v1/sessions/{context}/execute", AUTHORIZATION),
        lambda: b"end_of_execution" in post("/execute", token),
        lambda: sandbox.run_code(CODE).text == "2",
        lambda: sandbox.run_code(CODE, envs={"A": "b"}).text == "2",
    )
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, run in random.sample(list(zip(WAYS, runs, strict=True)), len(WAYS)):
            begin = time.perf_counter()
            assert run(), way
            seconds[way].append(time.perf_counter() - begin)
    return seconds


def created(serving: Gateway) -> tuple[float, float]:
    """Return the seconds until a new sandbox is there, and until its first result."""
    begin = time.perf_counter()
    sandbox = Sandbox.create(timeout=300, **options(serving))
    there = time.perf_counter() - begin
    try:
        assert sandbox.run_code(CODE).text == "2"
        return there, time.perf_counter() - begin
    finally:
        sandbox.kill()


def pooled(serving: Gateway) -> float:
    """Return the seconds from the creation of a session to its first result."""
    until_warm(serving)
    begin = time.perf_counter()
    reply = serving.execute("first", CODE)
    seconds = time.perf_counter() - begin
    assert reply["status"] == "ok"
    serving.call("DELETE", "/v1/sessions/first")
    return seconds


def until_restored(serving: Gateway) -> None:
    """Wait for the checkpoint of sandboxes' kernels, which the first sandbox asks for."""
    created(serving)
    deadline = time.monotonic() + CHECKPOINT
    while not any(each.get("event") == "kernels are restored" and each["shared"] for each in serving.logged()):
        assert time.monotonic() < deadline, "no checkpoint is made"
        time.sleep(0.2)


def firsts(plain: Gateway, isolation: str, image: str) -> None:
    """Measure and print what a client waits for in a new sandbox, and in a new session."""
    rows: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        ways = {"started plainly": plain}
        if isolation == "docker":
            usual = {"golden_images": "auto", "preload": ",".join(PRELOAD), "pool_size": "2"}
            ways[RESTORED] = stack.enter_context(gateway(isolation, image=image, must_be_ready=True, **usual))
            until_restored(ways[RESTORED])
        for _ in range(CREATED):
            for way, serving in ways.items():
                there, first = created(serving)
                rows[f"`Sandbox.create`, kernels {way}"].append(there)
                rows[f"the same and its first result, kernels {way}"].append(first)
            rows["first result of a session from the pool"].append(pooled(ways.get(RESTORED, plain)))
    for name, seconds in rows.items():
        print(f"{name}, {CREATED} times: {spread(seconds)}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--isolation", default="docker", choices=["docker", "process"])
    parser.add_argument("--image", default="kernel-gateway/python:latest")
    parser.add_argument("--rounds", type=int, default=100)
    flags = parser.parse_args()
    say("starting a gateway")
    with gateway(flags.isolation, image=flags.image, pool_size="2") as serving:
        sandbox = Sandbox.create(timeout=3600, **options(serving))
        try:
            sandbox.run_code(CODE)
            seconds = measure(serving, sandbox, flags.rounds)
        finally:
            sandbox.kill()
        firsts(serving, flags.isolation, flags.image)
    base = median(seconds[BASE])
    print(f"`{CODE}` on {flags.isolation} kernels, {flags.rounds} runs each\n")
    print("| way | p50 ms | p95 ms | p50 to the first |\n|---|---|---|---|")
    for way, values in seconds.items():
        p50, p95 = median(values), percentile(values, 0.95)
        print(f"| {way} | {p50 * 1e3:.1f} | {p95 * 1e3:.1f} | {p50 / base:.2f} |")


if __name__ == "__main__":
    main()
