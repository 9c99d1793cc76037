"""Each rule of the firewall keeps something out, by IPv4 and by IPv6: without it, the same connection succeeds.

Host, guest and world are network namespaces of the test, so that no rule of this machine is touched, and the guest is
no container: it has raw sockets and IPv6, which is what an attacker would have who has left gVisor.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sessions.backends.docker.isolation import firewall
from sessions.backends.docker.isolation.egress.networks import to_the_proxy, to_the_world

pytestmark = pytest.mark.engine  # the machine with an engine is one where the tests are root

RUN = os.getpid()
HOST, GUEST, WORLD = (f"kgwf{RUN}{name}" for name in "hgw")
BRIDGE = "kgw-walls"
CHAIN = firewall.chain_name(BRIDGE)
PORT = 7000
#: addresses of host and guest on the bridge, and of host and world on the way out
NETWORKS = {GUEST: ("10.99.1", "fd99:1:"), WORLD: ("10.99.2", "fd99:2:")}
ROOT = Path(__file__).parents[4]
#: beginning of a program that runs in a namespace
FIREWALL = "from sessions.backends.docker.isolation import firewall"
LISTEN = (
    "import socket, time\n"
    f"s = socket.create_server(('::', {PORT}), family=socket.AF_INET6, dualstack_ipv6=True)\n"
    "print('ready', flush=True)\n"
    "while True: s.accept()"
)


def run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=check, capture_output=True, text=True, cwd=ROOT, timeout=60)


def inside(namespace: str, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command in a namespace."""
    return run("ip", "netns", "exec", namespace, *command, check=check)


def reaches(namespace: str, address: str) -> bool:
    """Return whether the service at an address is reached from a namespace."""
    code = f"import socket; socket.create_connection(({address!r}, {PORT}), 1).close()"
    return inside(namespace, sys.executable, "-I", "-S", "-c", code, check=False).returncode == 0


def ensure_rules() -> subprocess.CompletedProcess[str]:
    """Set the rules in the host's namespace."""
    code = f"{FIREWALL}; print(firewall.ensure_rules({BRIDGE!r}).name)"
    return inside(HOST, sys.executable, "-c", code, check=False)


def forget(program: str, rule: list[str]) -> None:
    """Take one rule away."""
    inside(HOST, program, "-D", *rule)


@dataclass(frozen=True)
class Way:
    """A connection that a rule keeps out."""

    program: str
    rule: list[str]
    address: str


IPV4, IPV6 = NETWORKS[GUEST]
FAR4, FAR6 = NETWORKS[WORLD]
KEPT_OUT = {
    "host, IPv4": Way("iptables", ["INPUT", "-i", BRIDGE, "-j", CHAIN], f"{IPV4}.1"),
    "host, IPv4, the chain's end": Way("iptables", [CHAIN, "-j", "DROP"], f"{IPV4}.1"),
    "world, IPv4": Way("iptables", ["DOCKER-USER", "-i", BRIDGE, "-j", "DROP"], f"{FAR4}.2"),
    "host, IPv6": Way("ip6tables", ["INPUT", "-i", BRIDGE, "-j", "DROP"], f"{IPV6}:1"),
    "world, IPv6": Way("ip6tables", ["FORWARD", "-i", BRIDGE, "-j", "DROP"], f"{FAR6}:2"),
}


@pytest.fixture(scope="module")
def wires() -> Iterator[None]:
    """Namespaces of a host, of a guest on its bridge, and of a world behind it; each listens."""
    with contextlib.ExitStack() as stack:
        for name in (HOST, GUEST, WORLD):
            run("ip", "netns", "add", name)
            stack.callback(run, "ip", "netns", "delete", name)
            inside(name, "ip", "link", "set", "lo", "up")
        inside(HOST, "ip", "link", "add", BRIDGE, "type", "bridge")
        for peer, port in ((GUEST, "kgw-port"), (WORLD, "kgw-out")):
            inside(HOST, "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", peer)
        inside(HOST, "ip", "link", "set", "kgw-port", "master", BRIDGE, "up")
        for peer, device in ((GUEST, BRIDGE), (WORLD, "kgw-out")):
            for where, name, number in ((HOST, device, 1), (peer, "eth0", 2)):
                inside(where, "ip", "link", "set", name, "up")
                inside(where, "ip", "address", "add", f"{NETWORKS[peer][0]}.{number}/24", "dev", name)
                inside(where, "ip", "address", "add", f"{NETWORKS[peer][1]}:{number}/64", "dev", name, "nodad")
            inside(peer, "ip", "route", "add", "default", "via", f"{NETWORKS[peer][0]}.1")
            inside(peer, "ip", "-6", "route", "add", "default", "via", f"{NETWORKS[peer][1]}:1")
        inside(HOST, "sysctl", "-w", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
        inside(HOST, "iptables", "-N", "DOCKER-USER")
        inside(HOST, "iptables", "-A", "FORWARD", "-j", "DOCKER-USER")
        for name in (HOST, GUEST, WORLD):
            command = ["ip", "netns", "exec", name, sys.executable, "-I", "-S", "-c", LISTEN]
            listener = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            stack.callback(listener.terminate)
            assert listener.stdout is not None
            assert listener.stdout.readline() == b"ready\n"
        yield


@pytest.mark.usefixtures("wires")
@pytest.mark.parametrize("path", KEPT_OUT.values(), ids=KEPT_OUT)
def test_each_rule_keeps_a_guest_out(path: Way) -> None:
    assert ensure_rules().returncode == 0
    assert not reaches(GUEST, path.address)
    forget(path.program, path.rule)
    assert reaches(GUEST, path.address)
    assert ensure_rules().stdout == "MISSING\n"
    assert not reaches(GUEST, path.address)


@pytest.mark.usefixtures("wires")
def test_the_host_still_reaches_the_guest() -> None:
    """The control is the same chain without the rule that lets answers pass."""
    ensure_rules()
    assert reaches(HOST, f"{IPV4}.2")
    forget("iptables", [CHAIN, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"])
    assert not reaches(HOST, f"{IPV4}.2")
    ensure_rules()
    assert reaches(HOST, f"{IPV4}.2")


@pytest.mark.usefixtures("wires")
def test_rules_in_the_wrong_order_are_put_right() -> None:
    ensure_rules()
    inside(HOST, "iptables", "-I", CHAIN, "1", "-j", "ACCEPT")
    assert reaches(GUEST, f"{IPV4}.1")
    assert ensure_rules().stdout == "MISSING\n"
    assert not reaches(GUEST, f"{IPV4}.1")


@pytest.mark.usefixtures("wires")
def test_a_host_that_does_not_filter_bridged_packets_is_refused() -> None:
    switch = "net.bridge.bridge-nf-call-iptables"
    before = inside(HOST, "sysctl", "-n", switch).stdout.strip()
    try:
        inside(HOST, "sysctl", "-w", f"{switch}=0")
        refused = ensure_rules()
        inside(HOST, "sysctl", "-w", f"{switch}=1")
        allowed = ensure_rules()
    finally:
        inside(HOST, "sysctl", "-w", f"{switch}={before}")
    assert "kernels could reach one another" in refused.stderr
    assert allowed.returncode == 0, allowed.stderr


# -- kernels with a way to the egress proxy ----------------------------------------------------------------------

PUBLIC = "203.0.113.7"


def listens(namespace: str, port: int) -> subprocess.Popen[bytes]:
    """Start a service in a namespace."""
    command = ["ip", "netns", "exec", namespace, sys.executable, "-I", "-S", "-c", LISTEN.replace(str(PORT), str(port))]
    listener = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert listener.stdout is not None
    assert listener.stdout.readline() == b"ready\n"
    return listener


@contextlib.contextmanager
def way_out(rules: list[str], ports: list[int]) -> Iterator[None]:
    """The guest's bridge with a way out, and services in the world."""
    code = f"{FIREWALL}; print(firewall.ensure_rules({BRIDGE!r}, {rules!r}).name)"
    closed = ["-i", BRIDGE, "-j", "DROP"]
    ensure_rules()
    forget("iptables", ["DOCKER-USER", *closed])
    with contextlib.ExitStack() as stack:
        for port in ports:
            stack.callback(stack.enter_context(listens(WORLD, port)).terminate)
        inside(HOST, sys.executable, "-c", code)
        assert inside(HOST, sys.executable, "-c", code).stdout == "SET\n"
        yield
    forget("iptables", ["DOCKER-USER", "-i", BRIDGE, "-j", firewall.way_out_name(BRIDGE)])


def reaches_at(address: str, port: int) -> bool:
    """Return whether the guest reaches a service."""
    code = f"import socket; socket.create_connection(({address!r}, {port}), 1).close()"
    return inside(GUEST, sys.executable, "-I", "-S", "-c", code, check=False).returncode == 0


@pytest.mark.usefixtures("wires")
def test_a_guest_with_the_right_reaches_the_proxys_port_only() -> None:
    """The control of the other port is the same chain without its end."""
    proxy = f"{FAR4}.2"
    with way_out(to_the_proxy(proxy), [3128]):
        assert reaches_at(proxy, 3128)
        assert not reaches_at(proxy, PORT)
        assert not reaches_at(f"{IPV4}.1", PORT), "the host stays closed"
        forget("iptables", [firewall.way_out_name(BRIDGE), "-j", "DROP"])
        assert reaches_at(proxy, PORT)


@pytest.mark.usefixtures("wires")
def test_the_proxys_way_out_leads_to_public_addresses_and_the_name_server() -> None:
    inside(WORLD, "ip", "address", "add", f"{PUBLIC}/32", "dev", "lo")
    inside(HOST, "ip", "route", "add", f"{PUBLIC}/32", "via", f"{FAR4}.2")
    private = f"{FAR4}.2"
    with way_out(to_the_world((private,)), [53]):
        assert reaches_at(PUBLIC, PORT)
        assert reaches_at(private, 53), "the name server"
        assert not reaches_at(private, PORT)
        forget("iptables", [firewall.way_out_name(BRIDGE), "-d", "10.0.0.0/8", "-j", "DROP"])
        assert reaches_at(private, PORT)
