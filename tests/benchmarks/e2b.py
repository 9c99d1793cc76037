"""Measures E2B's `run_code` and its `/execute`, beside the native API's execute, all on the same kernel.

One gateway, one run, the ways take turns: read the ratios. Then from `Sandbox.create` to the first result, command and
file, in sandboxes that nothing was started for, and in warm ones; beside a session of the native API whose kernel comes
from the pool. At last sandboxes that are created one after the other, without a pause. Run by hand:

    .venv/bin/python tests/benchmarks/e2b.py [--isolation docker|process] [--image NAME] [--rounds N] [--row N]
"""

from __future__ import annotations

import argparse
import json
import random
import re
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
from tests.benchmarks.start import PRELOAD
from tests.benchmarks.ways import AUTHORIZATION, CODE
from tests.gateways import KEYS, Gateway, gateway

WAYS = ("native execute", "E2B's /execute", "run_code of E2B's SDK", "the same with envs")
#: the way with which the others are compared
BASE = WAYS[0]
#: created sandboxes of each way
CREATED = 10
#: settings with which kernels are restored from golden images, as users have it
GOLDEN = {"golden_images": "auto", "preload": ",".join(PRELOAD)}
#: seconds for the pool to fill
FULL = 240.0
#: seconds of rest before each measurement
QUIET = 1.0
#: what a client does first in a new sandbox
FIRSTS: dict[str, Callable[[Sandbox], object]] = {
    "result": lambda sandbox: sandbox.run_code(CODE).text == "2",
    "command": lambda sandbox: sandbox.commands.run("echo 2").stdout == "2\n",
    "file": lambda sandbox: sandbox.files.write("two", "2"),
}


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


def created(serving: Gateway, first: Callable[[Sandbox], object]) -> tuple[float, float, float]:
    """Return the seconds until a new sandbox is there, until its first answer, and of a further context."""
    begin = time.perf_counter()
    sandbox = Sandbox.create(timeout=300, **options(serving))
    there = time.perf_counter() - begin
    try:
        assert first(sandbox)
        answered = time.perf_counter() - begin
        assert sandbox.run_code(CODE).text == "2"
        begin = time.perf_counter()
        assert sandbox.run_code(CODE, context=sandbox.create_code_context()).text == "2"
        return there, answered, time.perf_counter() - begin
    finally:
        sandbox.kill()


def pooled(serving: Gateway, name: str = "first") -> float:
    """Return the seconds from the creation of a session to its first result."""
    begin = time.perf_counter()
    reply = serving.execute(name, CODE)
    seconds = time.perf_counter() - begin
    assert reply["status"] == "ok"
    serving.call("DELETE", f"/v1/sessions/{name}")
    return seconds


def until_full(serving: Gateway, kernels: int) -> None:
    """Wait for so many warm kernels, those of warm sandboxes included, and for the golden images of all of them."""
    deadline = time.monotonic() + FULL
    wanted = re.compile(r"^kernel_gateway_warm_kernels (\d+)", re.MULTILINE)
    while True:
        found = wanted.search(serving.call("GET", "/metrics", tenant=None).text)
        shapes = {each["shared"] for each in serving.logged() if each.get("event") == "kernels are restored"}
        if found and int(found[1]) >= kernels and (serving.isolation == "process" or len(shapes) == len((False, True))):
            return
        assert time.monotonic() < deadline, "the pool does not fill"
        time.sleep(0.2)


def firsts(isolation: str, image: str) -> None:
    """Measure and print what a client waits for in a new sandbox, and in a new session."""
    rows: dict[str, list[float]] = defaultdict(list)
    settings: dict[str, Any] = GOLDEN if isolation == "docker" else {}
    with ExitStack() as stack:
        cold = stack.enter_context(gateway(isolation, image=image, **settings))
        warm = stack.enter_context(gateway(isolation, image=image, pool_size="1", sandbox_pool_size="1", **settings))
        created(cold, FIRSTS["result"])  # asks for the golden image of a sandbox's kernels
        until_full(cold, 0)
        for _ in range(CREATED):
            for name, first in FIRSTS.items():
                for way, serving in (("no warm sandbox", cold), ("warm", warm)):
                    until_full(serving, 2 * (serving is warm))
                    time.sleep(QUIET)
                    there, answered, further = created(serving, first)
                    rows[f"{way}: `Sandbox.create`"].append(there)
                    rows[f"{way}: the same and its first {name}"].append(answered)
                    rows[f"{way}: a further context and its first result"].append(further)
            until_full(warm, 2)
            time.sleep(QUIET)
            rows["first result of a session from the pool"].append(pooled(warm))
    for name, seconds in sorted(rows.items()):
        print(f"{name}, {len(seconds)} times: {spread(seconds)}")


def in_a_row(isolation: str, image: str, count: int) -> None:
    """Measure and print the first results of sandboxes, and of sessions, that are made one after the other."""
    settings: dict[str, Any] = GOLDEN if isolation == "docker" else {}
    pools: dict[str, Any] = {"pool_size": str(count), "sandbox_pool_size": str(count), "pool_max": str(count)}
    with gateway(isolation, image=image, max_sessions_per_tenant=str(9 * count), **pools, **settings) as serving:
        until_full(serving, 2 * count)
        time.sleep(QUIET)
        sessions = [pooled(serving, f"row-{number}") for number in range(count)]
        until_full(serving, 2 * count)
        time.sleep(QUIET)
        sandboxes = []
        for _ in range(count):
            begin = time.perf_counter()
            assert Sandbox.create(timeout=300, **options(serving)).run_code(CODE).text == "2"
            sandboxes.append(time.perf_counter() - begin)
    print(f"first results of {count} sessions in a row, from the pool: {spread(sessions)}")
    print(f"first results of {count} sandboxes in a row, all warm: {spread(sandboxes)}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--isolation", default="docker", choices=["docker", "process"])
    parser.add_argument("--image", default="kernel-gateway/python:latest")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--row", type=int, default=20)
    flags = parser.parse_args()
    say("starting a gateway")
    with gateway(flags.isolation, image=flags.image, pool_size="2") as serving:
        sandbox = Sandbox.create(timeout=3600, **options(serving))
        try:
            sandbox.run_code(CODE)
            seconds = measure(serving, sandbox, flags.rounds)
        finally:
            sandbox.kill()
    firsts(flags.isolation, flags.image)
    in_a_row(flags.isolation, flags.image, flags.row)
    base = median(seconds[BASE])
    print(f"`{CODE}` on {flags.isolation} kernels, {flags.rounds} runs each\n")
    print("| way | p50 ms | p95 ms | p50 to the first |\n|---|---|---|---|")
    for way, values in seconds.items():
        p50, p95 = median(values), percentile(values, 0.95)
        print(f"| {way} | {p50 * 1e3:.1f} | {p95 * 1e3:.1f} | {p50 / base:.2f} |")


if __name__ == "__main__":
    main()
