"""The environment of the attacks: containers without the gateway's defences, and a namespace as the "internet".

An attack that reaches no target proves something only if the target can be reached otherwise. So the same probes run in
containers on a plain bridge. Packets that leave either bridge for the outside are routed into a network namespace that
answers to every address, and never onto a real network.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError
from docker.models.containers import Container
from docker.models.networks import Network

from sessions.backends.docker.isolation import firewall
from sessions.backends.docker.isolation.network import bridge_name
from sessions.backends.docker.profile import FIRST_PORT, PYTHON
from tests.attacks import internet
from tests.attacks.cells import answer_in, call_of

IMAGE = "kernel-gateway/python:latest"
#: process id of this run; every name on the host ends with it, so that several runs do not collide
RUN = os.getpid()
NETWORK_PREFIX = "kernel-gateway-attacks-"
LABELS = {"kernel-gateway.attacks": str(RUN)}
#: seconds that a throw-away container may take
CONTAINER_TIMEOUT = 60


@dataclass
class Bench:
    """Makes containers and networks, and removes them at its end."""

    client: docker.DockerClient
    networks: list[Network] = field(default_factory=list)
    containers: list[Container] = field(default_factory=list)

    def bridge(self, name: str, interface: str) -> Network:
        """Create a bridge with Docker's defaults: it has a way out, and its containers reach one another."""
        made = self.client.networks.create(
            name, driver="bridge", labels=LABELS, options={"com.docker.network.bridge.name": interface}
        )
        self.networks.append(made)
        return made

    def start(self, program: str, **options: Any) -> Container:
        """Start a container of the kernels' image that runs a Python program."""
        settings: dict[str, Any] = {
            "runtime": "runsc",
            "network": "none",
            "mem_limit": "256m",
            "labels": LABELS,
        }
        container: Container = self.client.containers.run(
            IMAGE, [PYTHON, "-I", "-S", "-c", program], detach=True, use_config_proxy=False, **settings | options
        )
        self.containers.append(container)
        return container

    def output(self, program: str, **options: Any) -> str:
        """Run a program in a new container, and return its output."""
        container = self.start(program, **options)
        container.wait(timeout=CONTAINER_TIMEOUT)
        said: bytes = container.logs(stdout=True, stderr=True)
        return said.decode(errors="replace")

    def probe(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Run a probe in a new container, and return its answer."""
        return answer_in(self.output(call_of(function, *arguments), **options))

    def listener(self, network: Network, **options: Any) -> str:
        """Start a container that listens on a kernel's ports, and return its address."""
        program = (
            f"import socket, time; s = [socket.create_server(('0.0.0.0', {FIRST_PORT} + i)) for i in range(5)]; "
            "time.sleep(600)"
        )
        container = self.start(program, network=network.name, **options)
        container.reload()
        return str(container.attrs["NetworkSettings"]["Networks"][network.name]["IPAddress"])

    def clear(self) -> None:
        """Remove all containers and networks that were made."""
        for container in self.containers:
            container.remove(force=True)
        for network in self.networks:
            network.remove()


@contextlib.contextmanager
def bench() -> Iterator[Bench]:
    """A bench, cleared afterwards."""
    with contextlib.closing(docker.from_env(timeout=CONTAINER_TIMEOUT)) as client:
        made = Bench(client)
        try:
            yield made
        finally:
            made.clear()


def forget_network(name: str, way_out: Sequence[str] | None = None) -> None:
    """Remove a kernels' network with its firewall; leave both unchanged if another run still uses the network.

    Args:
        name: name of the network.
        way_out: rules of its way out; None: it has none.
    """
    with contextlib.closing(docker.from_env()) as client, contextlib.suppress(APIError):
        client.api.remove_network(name)
        firewall.remove_rules(bridge_name(name), way_out)


def forget_networks_of_the_dead() -> None:
    """Remove the networks of runs that were killed."""
    with contextlib.closing(docker.from_env()) as client:
        names = [item["Name"] for item in client.api.networks()]
    for name in names:
        process = name.removeprefix(NETWORK_PREFIX).partition("-")[0]
        if name.startswith(NETWORK_PREFIX) and not Path(f"/proc/{process}").exists():
            forget_network(name)


# -- the host ---------------------------------------------------------------------------------------------------


def host_addresses(family: str = "inet") -> list[str]:
    """Return every address of every interface; IPv6 with its scope where it needs one."""
    found = []
    for interface in json.loads(run("ip", "-json", "address")):
        for item in interface["addr_info"]:
            scope = f"%{interface['ifname']}" if item["local"].startswith("fe80") else ""
            found += [item["local"] + scope] if item["family"] == family else []
    return found


def host_listens(family: str = "4") -> set[int]:
    """Return every TCP port on which a process of this host listens."""
    lines = run("ss", f"-{family}", "--no-header", "--listening", "--tcp", "--numeric").splitlines()
    return {int(line.split()[3].rpartition(":")[2]) for line in lines}


def run(*command: str) -> str:
    """Run a command that must succeed, and return its output."""
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout


# -- the outside ------------------------------------------------------------------------------------------------

NAMESPACE = f"kgw-outside-{RUN}"
_OUR_END, _ITS_END = f"kgwo{RUN}a", f"kgwo{RUN}b"
#: addresses of the link (from RFC 2544's range for benchmarks) and the routing table that leads into it
_LINK = f"198.18.{RUN // 63 % 256}.{{}}"
_OUR_ADDRESS, _ITS_ADDRESS = _LINK.format(RUN % 63 * 4 + 1), _LINK.format(RUN % 63 * 4 + 2)
_TABLE = str(10_000 + RUN % 20_000)
_PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")


@dataclass
class Outside:
    """The namespace that represents all networks beyond this host."""

    process: subprocess.Popen[bytes]

    def contacts(self) -> list[list[Any]]:
        """Return the contacts since the last call, as protocol, local address and port."""
        found = []
        assert self.process.stdout is not None
        time.sleep(0.2)  # for packets that are on their way
        while select.select([self.process.stdout], [], [], 0)[0]:
            found.append(json.loads(self.process.stdout.readline()))
        return found


@contextlib.contextmanager
def outside(*interfaces: str, program: str = internet.__file__, arguments: Sequence[str] = ()) -> Iterator[Outside]:
    """An outside world for packets from these bridges only.

    Args:
        *interfaces: names of the bridges, which may not exist yet.
        program: file of the program that answers there.
        arguments: its arguments.
    """
    try:
        _make_outside(interfaces)
        with subprocess.Popen(
            ["ip", "netns", "exec", NAMESPACE, sys.executable, "-I", program, *arguments],
            stdout=subprocess.PIPE,
            bufsize=0,
        ) as process:
            try:
                assert process.stdout is not None
                assert json.loads(process.stdout.readline()) == ["ready"]
                yield Outside(process)
            finally:
                process.kill()
    finally:
        _remove_outside(interfaces)


def _make_outside(interfaces: tuple[str, ...]) -> None:
    inside = ("ip", "-netns", NAMESPACE)
    run("ip", "netns", "add", NAMESPACE)
    run("ip", "link", "add", _OUR_END, "type", "veth", "peer", "name", _ITS_END, "netns", NAMESPACE)
    run("ip", "address", "add", f"{_OUR_ADDRESS}/30", "dev", _OUR_END)
    run("ip", "link", "set", _OUR_END, "up")
    run(*inside, "address", "add", f"{_ITS_ADDRESS}/30", "dev", _ITS_END)
    for link in ("lo", _ITS_END):
        run(*inside, "link", "set", link, "up")
    run(*inside, "route", "add", "local", "default", "dev", "lo")  # every address is local
    for network in _PRIVATE:
        run(*inside, "route", "add", network, "via", _OUR_ADDRESS)
    run("ip", "route", "add", "default", "via", _ITS_ADDRESS, "dev", _OUR_END, "table", _TABLE)
    for interface in interfaces:
        run("ip", "rule", "add", "pref", _TABLE, "iif", interface, "lookup", _TABLE)


def _remove_outside(interfaces: tuple[str, ...]) -> None:
    for interface in interfaces:
        _try("ip", "rule", "del", "pref", _TABLE, "iif", interface)
    _try("ip", "link", "del", _OUR_END)
    _try("ip", "netns", "del", NAMESPACE)


def _try(*command: str) -> None:
    subprocess.run(command, capture_output=True, timeout=20, check=False)


def require_root() -> None:
    """Check that the tests run as root, which network namespaces and the firewall need."""
    assert os.geteuid() == 0, "run the attacks as root"
