"""Measures what clients of E2B's SDK wait for, each beside the same with the native API on the same gateway.

The parts: `runs` (`run_code` and `/execute` on one kernel), `firsts` (from `Sandbox.create` to the first result,
command and file, warm and not, and a further context), `row` (sandboxes that are created one after the other, without
a pause), `files` (commands and files, small and of 10 MiB), and `copies` (forks, snapshots, pause and wake, and what a
paused sandbox keeps). The ways take turns: read the ratios. Run by hand:

    .venv/bin/python -m tests.benchmarks.e2b [--isolation docker|process] [--part NAME] [--image NAME] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from statistics import median
from typing import Any

from e2b_code_interpreter import Sandbox

from tests.benchmarks.figures import engine, machine, percentile, say
from tests.benchmarks.live import control_groups
from tests.benchmarks.returns import end, post, until_asleep
from tests.benchmarks.start import PRELOAD
from tests.benchmarks.ways import AUTHORIZATION, CODE
from tests.gateways import KEYS, Gateway, gateway

MIB = 1024**2
#: settings with which kernels are restored from golden images, as users have it
GOLDEN = {"golden_images": "auto", "preload": ",".join(PRELOAD)}
#: seconds for the pool to fill, and of rest before each measurement
FULL, QUIET = 240.0, 1.0
#: a small file and a large one, in bytes
SMALL, LARGE = 100, 10 * MIB
COMMAND = "echo 2"
#: a cell that runs the command, for the native API, which has no commands
CELL = f"import subprocess; print(subprocess.run({COMMAND!r}, shell=True, capture_output=True, text=True).stdout)"
#: what a client does first in a new sandbox
FIRSTS: dict[str, Callable[[Sandbox], object]] = {
    "result": lambda sandbox: sandbox.run_code(CODE).text == "2",
    "command": lambda sandbox: sandbox.commands.run(COMMAND).stdout == "2\n",
    "file": lambda sandbox: sandbox.files.write("two", "2"),
}
Rows = dict[str, list[float]]


@dataclass(frozen=True)
class Found:
    """What was measured: seconds by what a client waits for, and the native figure to compare it with."""

    #: by name. Names without a native figure stand alone
    e2b: Rows
    native: Rows

    def lines(self) -> Iterator[str]:
        """Yield the lines of a table."""
        yield "| | E2B p50, ms | p95 | native p50, ms | ratio |\n|---|---|---|---|---|"
        for name, seconds in self.e2b.items():
            shown = f"| {name} | {median(seconds) * 1e3:,.1f} | {percentile(seconds, 0.95) * 1e3:,.1f} |"
            base = self.native.get(name)
            yield (
                f"{shown} {median(base) * 1e3:,.1f} | {median(seconds) / median(base):.2f} |"
                if base
                else f"{shown} | |"
            )


@dataclass(frozen=True)
class Asked:
    """What the command line asks for."""

    isolation: str
    image: str
    rounds: int
    row: int

    def serving(self, **settings: Any) -> AbstractContextManager[Gateway]:
        """Return a gateway to enter, whose kernels are restored where they can be."""
        settings |= GOLDEN if self.isolation == "docker" else {}
        return gateway(self.isolation, image=self.image, **settings)


def options(serving: Gateway) -> dict[str, Any]:
    """Return the options of the SDK with which it finds the gateway."""
    return {"api_key": KEYS["alice"], "api_url": serving.url, "sandbox_url": serving.url}


@contextmanager
def made(serving: Gateway, template: str | None = None) -> Iterator[Sandbox]:
    """A new sandbox."""
    sandbox = Sandbox.create(template, timeout=3600, **options(serving))
    try:
        yield sandbox
    finally:
        sandbox.kill()


def took(work: Callable[[], object]) -> float:
    """Return the seconds of some work, which must return something true."""
    begin = time.perf_counter()
    assert work()
    return time.perf_counter() - begin


def executed(serving: Gateway, name: str, code: str = CODE) -> bool:
    """Run a cell in a session, which is made on first use."""
    return bool(serving.execute(name, code)["status"] == "ok")


def further(sandbox: Sandbox) -> bool:
    """Make a further context, and run its first code."""
    return bool(sandbox.run_code(CODE, context=sandbox.create_code_context()).text == "2")


def until_full(serving: Gateway, kernels: int) -> None:
    """Wait for so many warm kernels, those of warm sandboxes included, and for the golden images of all of them."""
    deadline = time.monotonic() + FULL
    wanted = re.compile(r"^kernel_gateway_warm_kernels (\d+)", re.MULTILINE)
    while True:
        found = wanted.search(serving.call("GET", "/metrics", tenant=None).text)
        shapes = {each["shared"] for each in serving.logged() if each.get("event") == "kernels are restored"}
        if found and int(found[1]) >= kernels and (serving.isolation == "process" or len(shapes) == len((False, True))):
            break
        assert time.monotonic() < deadline, "the pool does not fill"
        time.sleep(0.2)
    time.sleep(QUIET)


# -- the parts -------------------------------------------------------------------------------------------------


def runs(asked: Asked) -> Found:
    """Measure runs of code, all on the same kernel."""
    with asked.serving(pool_size="1") as serving, made(serving) as sandbox:
        sandbox.run_code(CODE)
        context = sandbox.list_code_contexts()[0].id
        connection = HTTPConnection(serving.url.removeprefix("http://"))
        token = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49999"}
        token["X-Access-Token"] = str(sandbox._envd_access_token)

        def sent(path: str, headers: dict[str, str]) -> bytes:
            connection.request("POST", path, json.dumps({"code": CODE}), headers)
            return connection.getresponse().read()

        ways: dict[str, Callable[[], bool]] = {
            "": lambda: b'"ok"' in sent(f"/v1/sessions/{context}/execute", AUTHORIZATION),
            "`/execute`": lambda: b"end_of_execution" in sent("/execute", token),
            "`run_code` of the SDK": lambda: sandbox.run_code(CODE).text == "2",
            "the same with `envs`": lambda: sandbox.run_code(CODE, envs={"A": "b"}).text == "2",
        }
        found: Rows = {way: [] for way in ways}
        for _ in range(10 * asked.rounds):
            for way, run in random.sample(list(ways.items()), len(ways)):
                found[way].append(took(run))
    native = found.pop("")
    return Found(found, dict.fromkeys(found, native))


def firsts(asked: Asked) -> Found:
    """Measure what a client waits for in a new sandbox, and in a new session."""
    e2b, native = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    with ExitStack() as stack:
        cold = stack.enter_context(asked.serving())
        warm = stack.enter_context(asked.serving(pool_size="1", sandbox_pool_size="1"))
        with made(cold) as sandbox:  # asks for the golden image of a sandbox's kernels
            sandbox.run_code(CODE)
        for number in range(asked.rounds):
            for name, first in FIRSTS.items():
                for way, serving in (("not warm", cold), ("warm", warm)):
                    until_full(serving, 2 * (serving is warm))
                    begin = time.perf_counter()
                    with made(serving) as sandbox:
                        assert first(sandbox)
                        e2b[f"{way}: create and first {name}"].append(time.perf_counter() - begin)
                        sandbox.run_code(CODE)
                        e2b["a further context and its first result"].append(took(partial(further, sandbox)))
                    until_full(serving, 2 * (serving is warm))
                    session = f"{name}-{number}"
                    seconds = took(partial(FIRST_OF_SESSIONS[name], serving, session))
                    native[f"{way}: create and first {name}"].append(seconds)
                    if serving is cold and name == "result":  # a context is not from the pool
                        native["a further context and its first result"].append(seconds)
                    end(serving, session)
            say(f"firsts: round {number + 1} of {asked.rounds}")
    return Found({name: e2b[name] for name in sorted(e2b, reverse=True)}, native)


def row(asked: Asked) -> Found:
    """Measure the first results of sandboxes, and of sessions, that are made one after the other."""
    count, name = asked.row, f"create and first result, {asked.row} in a row"
    pools = {"pool_size": str(count), "sandbox_pool_size": str(count), "pool_max": str(count)}
    with asked.serving(max_sessions_per_tenant=str(9 * count), max_share_per_tenant="1", **pools) as serving:
        until_full(serving, 2 * count)
        sessions = [took(partial(executed, serving, f"row-{number}")) for number in range(count)]
        until_full(serving, 2 * count)
        sandboxes = [
            took(lambda: Sandbox.create(timeout=300, **options(serving)).run_code(CODE).text == "2")
            for _ in range(count)
        ]
    return Found({name: sandboxes}, {name: sessions})


def files(asked: Asked) -> Found:
    """Measure commands and files in a sandbox and in a session."""
    with asked.serving() as serving, made(serving) as sandbox:
        executed(serving, "files")
        path = "/v1/sessions/files/files"
        small, large = bytes(SMALL), os.urandom(LARGE)

        def put(name: str, content: bytes) -> bool:
            return bool(serving.call("PUT", f"{path}/{name}", data=content).ok)

        def got(name: str, content: bytes) -> bool:
            return bool(serving.call("GET", f"{path}/{name}").content == content)

        pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "a command": (
                lambda: sandbox.commands.run(COMMAND).stdout == "2\n",
                lambda: serving.text("files", CELL) == "2\n\n",
            ),
            "write a small file": (lambda: sandbox.files.write("s", small), lambda: put("s", small)),
            "read it": (lambda: sandbox.files.read("s", format="bytes") == small, lambda: got("s", small)),
            "write 10 MiB": (lambda: sandbox.files.write("l", large), lambda: put("l", large)),
            "read them": (lambda: sandbox.files.read("l", format="bytes") == large, lambda: got("l", large)),
            "list a directory": (
                lambda: len(sandbox.files.list("/home/user")) == len(("s", "l")),
                lambda: len(serving.call("GET", f"{path}/?list").json()["entries"]) == len(("s", "l")),
            ),
        }
        e2b: Rows = {name: [] for name in pairs}
        native: Rows = {name: [] for name in pairs}
        for number in range(asked.rounds + 1):
            for name, (ours, theirs) in pairs.items():
                seconds = took(ours), took(theirs)
                if number:  # the first ones start tools
                    e2b[name].append(seconds[0])
                    native[name].append(seconds[1])
    return Found(e2b, native)


def copies(asked: Asked) -> Found:
    """Measure forks, snapshots, pause and wake; a session has branches, checkpoints and sleep."""
    e2b, native = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    with asked.serving() as serving:
        serving.wait_for_sleep()
        for number in range(asked.rounds + 1):
            mine, its = one_round(serving)
            if number:  # the first one costs more
                for rows, seconds in ((e2b, mine), (native, its)):
                    for name, each in seconds.items():
                        rows[name].append(each)
            say(f"copies: round {number} of {asked.rounds}")
    return Found(dict(e2b), dict(native))


def one_round(serving: Gateway) -> tuple[dict[str, float], dict[str, float]]:
    """Return the seconds of each step with a sandbox, and with a session; the two take no turns within a step."""
    e2b: dict[str, float] = {}
    with made(serving) as sandbox:
        sandbox.run_code("x = 1")
        time.sleep(QUIET)
        begin = time.perf_counter()
        (fork,) = sandbox.fork(timeout=300, request_timeout=240)
        assert isinstance(fork, Sandbox), fork
        assert fork.run_code("x").text == "1"
        e2b["fork and its first result"] = time.perf_counter() - begin
        fork.kill()
        begin = time.perf_counter()
        snapshot = sandbox.create_snapshot().snapshot_id
        e2b["snapshot"] = time.perf_counter() - begin
        begin = time.perf_counter()
        with made(serving, snapshot) as again:
            assert again.run_code("x").text == "1"
            e2b["create from it and first result"] = time.perf_counter() - begin
        Sandbox.delete_snapshot(snapshot, **options(serving))
        held = memory(serving)
        begin = time.perf_counter()
        sandbox.pause()
        e2b["pause"] = time.perf_counter() - begin
        kept = sum(each.stat().st_size for each in (serving.state_dir / "asleep").rglob("*") if each.is_file())
        say(f"a sandbox with one context: {held:.0f} MiB; paused {memory(serving):.0f} MiB, {kept / MIB:.0f} on disk")
        e2b["resume and first result"] = took(
            lambda: Sandbox.connect(sandbox.sandbox_id, timeout=300, **options(serving)).run_code("x").text == "1"
        )
    return e2b, natively(serving)


def natively(serving: Gateway) -> dict[str, float]:
    """Return the seconds of the same steps with a session. It has no pause: it sleeps when it is idle."""
    name = uuid.uuid4().hex
    sleeper, branch, other = f"{name}-sleeper", f"{name}-branch", f"{name}-other"
    post(serving, "", name=sleeper, on_idle="sleep", idle_timeout=2)
    assert executed(serving, sleeper, "x = 1")
    until_asleep(serving, sleeper)
    assert executed(serving, name, "x = 1")
    time.sleep(QUIET)

    def branched(to: str, **body: str) -> bool:
        post(serving, f"/{name}/branch", **{"as": to}, **body)
        return serving.text(to, "x") == "1"

    def kept() -> bool:
        post(serving, f"/{name}/checkpoints", name="one")
        return True

    seconds = {
        "fork and its first result": took(partial(branched, branch)),
        "snapshot": took(kept),
        "create from it and first result": took(partial(branched, other, **{"from": "one"})),
        "resume and first result": took(lambda: serving.text(sleeper, "x") == "1"),
    }
    for each in (sleeper, branch, other, name):
        end(serving, each)
    return seconds


def memory(serving: Gateway) -> float:
    """Return the MiB of all containers."""
    return sum(group.memory() or 0 for group in control_groups(serving)) / MIB


#: what a client does first in a new session
FIRST_OF_SESSIONS: dict[str, Callable[[Gateway, str], bool]] = {
    "result": executed,
    "command": lambda serving, session: executed(serving, session, CELL),
    "file": lambda serving, session: serving.call("PUT", f"/v1/sessions/{session}/files/two", data=b"2").ok,
}
PARTS = {each.__name__: each for each in (runs, firsts, row, files, copies)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--isolation", default="docker", choices=["docker", "process"])
    parser.add_argument("--part", action="append", choices=PARTS, help="only this; may be repeated")
    parser.add_argument("--image", default="kernel-gateway/python:latest")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--row", type=int, default=20)
    flags = parser.parse_args()
    asked = Asked(flags.isolation, flags.image, flags.rounds, flags.row)
    print(f"{machine()}, {engine()}; on {flags.isolation} kernels")
    for name in flags.part or PARTS:
        say(f"== {name}")
        print(f"\n{name}\n")
        for line in PARTS[name](asked).lines():
            print(line, flush=True)


if __name__ == "__main__":
    main()
