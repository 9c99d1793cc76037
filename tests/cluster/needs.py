"""Measures what a live session needs of the gateway and of the cluster's API. docs/kubernetes.md reckons with it.

tests/cluster/cluster.sh run .venv/bin/python -m tests.cluster.needs
"""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import requests

from tests.cluster.access import API, KEYS, gateway, pods, wait_for
from tests.gateways import Gateway

SESSIONS, AT_ONCE, CELLS, SECONDS = 30, 10, 300, 30.0


def writes() -> float:
    """Return the number of requests that have changed something in the cluster."""
    admin = (str(KEYS / "admin.crt"), str(KEYS / "admin.key"))
    text = requests.get(f"{API}/metrics", timeout=30, cert=admin, verify=str(KEYS / "ca.crt")).text
    verbs = "POST|PUT|PATCH|APPLY|DELETE"
    found = re.findall(rf'^apiserver_request_total{{.*verb="(?:{verbs})".*}} (\S+)$', text, re.MULTILINE)
    assert found
    return sum(map(float, found))


def processor_seconds(serving: Gateway) -> float:
    """Return the processor time of the gateway's process so far."""
    fields = Path(f"/proc/{serving.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle(serving: Gateway) -> tuple[float, float]:
    """Return the API's writes per second, and the gateway's share of a processor, while nothing happens."""
    before, used, start = writes(), processor_seconds(serving), time.monotonic()
    time.sleep(SECONDS)
    seconds = time.monotonic() - start
    return (writes() - before) / seconds, (processor_seconds(serving) - used) / seconds


def measure(serving: Gateway) -> None:
    """Start sessions, use one, end all, and print the figures."""
    quiet, alone = idle(serving)
    print(f"no sessions: {quiet:.2f} writes/s, gateway {alone:.2%} of a processor, {serving.memory() >> 20} MiB")

    def spent(do: object, start: float, before: float, used: float) -> str:
        seconds = time.monotonic() - start
        each = (writes() - before - quiet * seconds) / SESSIONS
        busy = 1000 * (processor_seconds(serving) - used) / SESSIONS
        return f"{do}: {seconds:.1f} s, {each:.1f} writes and {busy:.0f} ms of the gateway for each"

    names = [f"s{number}" for number in range(SESSIONS)]
    start, before, used, memory = time.monotonic(), writes(), processor_seconds(serving), serving.memory()
    with ThreadPoolExecutor(AT_ONCE) as clients:
        assert set(clients.map(lambda name: serving.text(name, "1 + 1"), names)) == {"2"}
    print(spent(f"{SESSIONS} sessions, {AT_ONCE} at a time", start, before, used))
    print(f"memory of the gateway: {(serving.memory() - memory) / SESSIONS / 2**10:.0f} KiB for each")

    rate, share = idle(serving)
    print(f"idle: {rate:.2f} writes/s, gateway {share:.2%} of a processor")
    used, start = processor_seconds(serving), time.monotonic()
    for number in range(CELLS):
        serving.text(names[number % SESSIONS], "1 + 1")
    cell = 1000 * (processor_seconds(serving) - used) / CELLS
    print(f"a cell: {1000 * (time.monotonic() - start) / CELLS:.1f} ms, of these {cell:.1f} ms of the gateway")

    start, before, used = time.monotonic(), writes(), processor_seconds(serving)
    with ThreadPoolExecutor(AT_ONCE) as clients:
        codes = list(clients.map(lambda name: serving.call("DELETE", f"/v1/sessions/{name}").status_code, names))
    assert set(codes) == {204}, codes
    wait_for(lambda: not pods())
    print(spent("their end", start, before, used))


if __name__ == "__main__":
    with gateway(pool_size="0", cpus="0.2", memory="200m", preload="", disk="32m") as serving:
        measure(serving)
