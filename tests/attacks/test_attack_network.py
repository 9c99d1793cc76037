"""A kernel reaches neither the host nor another kernel nor the world. The gateway reaches the kernel."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest
import zmq
from docker.models.networks import Network

from sessions.backends.docker.isolation.network import bridge_name
from sessions.backends.docker.profile import FIRST_PORT
from tests.attacks import probes
from tests.attacks.bench import RUN, Bench, Outside, host_addresses, host_listens, outside
from tests.attacks.cells import Attacker, addresses
from tests.attacks.conftest import LIMITS, NETWORK
from tests.gateways import Gateway, gateway

pytestmark = [pytest.mark.engine, pytest.mark.measured]

PLAIN_BRIDGE = f"kgwp{RUN}"
METADATA = "169.254.169.254"
#: unused addresses (RFC 5737); packets from the bridges to them are led into the test's own namespace
WORLD = ["198.51.100.7", "203.0.113.7"]
CHANNELS = range(FIRST_PORT, FIRST_PORT + 5)
#: DNS question for "gateway.test", type A
QUESTION = "1f1f010000010000000000000767617465776179047465737400" + "00010001"


@pytest.fixture(scope="module")
def plain(own: Bench) -> Network:
    """A bridge without the gateway's rules."""
    return own.bridge(f"{NETWORK}-plain", PLAIN_BRIDGE)


@pytest.fixture(scope="module")
def world(network: str, plain: Network) -> Iterator[Outside]:
    """The namespace that receives both bridges' packets instead of the world."""
    with outside(bridge_name(network), PLAIN_BRIDGE) as made:
        yield made


@dataclass(frozen=True)
class Listener:
    """A service of the host that listens on all addresses."""

    port: int
    datagrams: socket.socket


@pytest.fixture
def listener() -> Iterator[Listener]:
    """A service of the host, by TCP and by UDP on one port."""
    with socket.create_server(("0.0.0.0", 0)) as server:  # noqa: S104 - as any service of the host would
        port = server.getsockname()[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            datagrams.bind(("0.0.0.0", port))  # noqa: S104
            datagrams.settimeout(0.5)
            yield Listener(port, datagrams)


@pytest.fixture(scope="module")
def open_gateway(network: str) -> Iterator[Gateway]:
    """A gateway that listens on every address of the host."""
    settings = LIMITS | {"host": "0.0.0.0", "pool_size": "0"}  # noqa: S104
    with gateway("docker", must_be_ready=True, **settings) as serving:
        yield serving


def port_of(serving: Gateway) -> int:
    port = urlsplit(serving.url).port
    assert port is not None
    return port


def outer_addresses() -> list[str]:
    """Return the host's addresses that could be reached from other machines."""
    return [host for host in host_addresses() if not host.startswith("127.")]


def still_there(hosts: list[str]) -> set[str]:
    """Return the addresses that the host still has: other programs may make and remove networks meanwhile."""
    return set(hosts) & set(host_addresses())


def received(datagrams: socket.socket) -> int:
    """Return how many datagrams have arrived."""
    count = 0
    with contextlib.suppress(TimeoutError):
        while datagrams.recvfrom(4096):
            count += 1
    return count


# -- the host ---------------------------------------------------------------------------------------------------


@pytest.mark.gate
def test_a_kernel_reaches_no_port_that_the_host_listens_on(
    evil: Attacker, listener: Listener, own: Bench, plain: Network
) -> None:
    ports = sorted({*host_listens(), listener.port, 22, 2375})
    hosts = outer_addresses()
    targets = [[host, port] for host in hosts for port in ports]
    assert evil.probe(probes.reached, targets) == []
    by_anybody = own.probe(probes.reached, targets, network=plain.name)
    assert {host for host, port in by_anybody if port == listener.port} >= still_there(hosts)


def test_a_kernels_own_loopback_is_not_the_hosts(evil: Attacker, listener: Listener) -> None:
    ports = {*host_listens(), listener.port, port_of(evil.gateway)} - {*CHANNELS}
    targets = [["127.0.0.1", port] for port in sorted(ports)]
    assert ["127.0.0.1", listener.port] in probes.reached(targets)
    assert evil.probe(probes.reached, targets) == []


def test_a_kernel_does_not_reach_a_gateway_that_listens_on_all_addresses(
    open_gateway: Gateway, own: Bench, plain: Network
) -> None:
    hosts = outer_addresses()
    targets = [[host, port_of(open_gateway)] for host in hosts]
    inmate = Attacker(open_gateway, "inmate")
    inmate.expect("ok", "pass")
    assert inmate.probe(probes.reached, targets) == []
    by_anybody = own.probe(probes.reached, targets, network=plain.name)
    assert {host for host, _ in by_anybody} >= still_there(hosts)


def test_a_kernels_datagrams_do_not_reach_the_host(
    evil: Attacker, listener: Listener, own: Bench, plain: Network
) -> None:
    hosts = outer_addresses()
    targets = [[host, listener.port] for host in hosts]
    evil.probe(probes.answered, targets, "00", 0.1)
    assert received(listener.datagrams) == 0
    own.probe(probes.answered, targets, "00", 0.1, network=plain.name)
    assert received(listener.datagrams) >= len(still_there(hosts)) > 0


def test_the_host_does_not_even_answer_a_ping(evil: Attacker, own: Bench, plain: Network) -> None:
    hosts = outer_addresses()
    assert evil.probe(probes.echoed, hosts) == []
    assert set(own.probe(probes.echoed, hosts, network=plain.name)) >= still_there(hosts)


# -- other kernels ----------------------------------------------------------------------------------------------


@pytest.mark.gate
def test_a_kernel_reaches_no_other_kernels_ports(evil: Attacker, own: Bench, plain: Network) -> None:
    mine = evil.text("import socket; print(socket.gethostbyname(socket.gethostname()))").strip()
    others = [address for item in evil.gateway.containers() for address in addresses(item) if address != mine]
    assert others
    targets = [[address, port] for address in others for port in CHANNELS]
    assert evil.probe(probes.reached, targets) == []
    assert probes.reached(targets) == sorted(targets)  # the gateway's host reaches them
    neighbour = own.listener(plain)
    reachable = [[neighbour, port] for port in CHANNELS]
    assert own.probe(probes.reached, reachable, network=plain.name) == reachable


def test_a_kernel_does_reach_its_own_ports(evil: Attacker) -> None:
    mine = evil.text("import socket; print(socket.gethostbyname(socket.gethostname()))").strip()
    targets = [[mine, port] for port in CHANNELS]
    assert evil.probe(probes.reached, targets) == targets


def test_a_stranger_without_the_kernels_keys_receives_nothing_from_its_ports(evil: Attacker) -> None:
    """The host acts as a neighbour on a network whose rules have failed."""
    keys = json.loads(evil.text("print(open('/home/kernel/.connection.json').read())"))
    address = next(iter(addresses(evil.container)))
    code = "import time\nfor _ in range(10):\n    print('SECRET', flush=True)\n    time.sleep(0.1)"
    assert heard(evil, code, address, {}) == b""
    strangers = dict(zip(("curve_publickey", "curve_secretkey"), zmq.curve_keypair(), strict=True))
    assert heard(evil, code, address, strangers | {"curve_serverkey": zmq.curve_keypair()[0]}) == b""
    assert b"SECRET" in heard(evil, code, address, strangers | {"curve_serverkey": keys["curve_publickey"].encode()})


def heard(evil: Attacker, code: str, address: str, keys: dict[str, bytes]) -> bytes:
    """Return all bytes that a listener on the kernel's iopub receives while the cell runs."""
    ear: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
    with contextlib.closing(ear):
        ear.linger = 0
        ear.rcvtimeo = 200
        for name, value in keys.items():
            setattr(ear, name, value)
        ear.subscribe(b"")
        ear.connect(f"tcp://{address}:{FIRST_PORT + 1}")
        time.sleep(0.3)
        evil.expect("ok", code)
        pieces = []
        with contextlib.suppress(zmq.Again):
            while True:
                pieces.append(b"".join(ear.recv_multipart()))
    return b"".join(pieces)


# -- the world --------------------------------------------------------------------------------------------------


@pytest.mark.gate
def test_a_kernel_reaches_neither_the_world_nor_the_clouds_metadata(
    evil: Attacker, own: Bench, plain: Network, world: Outside
) -> None:
    targets = [[host, port] for host in [METADATA, *WORLD] for port in (80, 443)]
    assert evil.probe(probes.reached, targets) == []
    assert world.contacts() == []
    assert own.probe(probes.reached, targets, network=plain.name) == sorted(targets)
    assert len(world.contacts()) == len(targets)


def test_a_kernels_ping_does_not_leave_the_host(evil: Attacker, own: Bench, plain: Network, world: Outside) -> None:
    hosts = [METADATA, *WORLD]
    assert evil.probe(probes.echoed, hosts) == []
    assert own.probe(probes.echoed, hosts, network=plain.name) == hosts


@pytest.mark.gate
def test_a_kernel_cannot_resolve_a_name(evil: Attacker, own: Bench, plain: Network, world: Outside) -> None:
    names = ["gateway.test", "6578706f7274.evil.test", "host.docker.internal", "neighbour"]
    assert evil.probe(probes.resolved, names, timeout=60) == []
    resolvers = [[host, 53] for host in ["127.0.0.1", "127.0.0.11", *host_addresses(), METADATA, *WORLD]]
    assert evil.probe(probes.answered, resolvers, QUESTION) == []
    assert world.contacts() == []
    there = {"network": plain.name, "dns": [WORLD[0]]}
    assert own.probe(probes.answered, resolvers, QUESTION, **there)[-2:] == [[host, 53] for host in WORLD]
    assert own.probe(probes.resolved, names[:2], runtime="runc", **there) == names[:2]
    assert ["udp", WORLD[0], 53] in world.contacts()


@pytest.mark.gate
def test_a_kernel_has_no_ipv6(evil: Attacker) -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]
        hosts = host_addresses("inet6")
        bare = {host.partition("%")[0] for host in hosts} - {"::1"}
        targets = [[f"{host}%eth0" if host.startswith("fe80") else host, port] for host in [*bare, "ff02::1%eth0"]]
        assert evil.probe(probes.reached, [*targets, ["2001:db8::1", 80]]) == []
        assert evil.probe(probes.answered, targets, "00", 0.3) == []
        bridge = next(host for host in hosts if host.endswith(f"%{bridge_name(NETWORK)}"))
        assert len(probes.reached([["::1", port], [bridge, port]])) == 2
    # Loopback may have `::1`, which Docker 28 leaves there: no way leads out of it.
    interfaces = "{line.split()[-1] for name in glob.glob('/proc/net/if_inet6') for line in open(name)}"
    assert evil.text(f"import glob; print({interfaces} - {{'lo'}})") == "set()\n"
    routes = "{line.split()[-1] for name in glob.glob('/proc/net/ipv6_route') for line in open(name)}"
    assert evil.text(f"import glob; print({routes} - {{'lo'}})") == "set()\n"
