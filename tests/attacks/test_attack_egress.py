"""Code with the network `allowlist` reaches the listed hosts and nothing else; other code reaches no proxy.

The world behind the proxy is a namespace that answers at every address, also at those of metadata services: whatever
is refused would be answered. Its name server says what an attacker's would say.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import NotFound

from kernel_gateway.wire.tls import own_certificate
from sessions.backends.docker import DockerSettings
from sessions.backends.docker.isolation.egress.networks import inner_name, outer_name, to_the_proxy, to_the_world
from sessions.backends.docker.isolation.egress.proxy import LABEL
from sessions.backends.docker.isolation.firewall import way_out_name
from sessions.backends.docker.isolation.network import bridge_name
from sessions.backends.docker.profile import FIRST_PORT
from tests.attacks import listed
from tests.attacks.bench import RUN, Outside, bench, forget_network, outside
from tests.gateways import NETWORK, Gateway, gateway

pytestmark = [pytest.mark.engine, pytest.mark.full]

INSTANCE = f"attack{RUN}"
SETTINGS = DockerSettings("runsc", "kernel-gateway/python:latest", NETWORK, INSTANCE)
INNER, OUTER = inner_name(SETTINGS), outer_name(SETTINGS)
NAME_SERVER = "198.51.100.53"
OPEN = "open.example.org"
ALLOWED = [OPEN, f"{OPEN}:8080", *(f"{name}.example.org:8080" for name in ("inside", "mixed", "rebind"))]
#: what the cells run first; PEM is the certificate of the world's https server
FETCH = """
import json, os, socket, ssl, urllib.error, urllib.request
def fetch(url, proxy=None):
    handlers = [urllib.request.HTTPSHandler(context=ssl.create_default_context(cadata=PEM))]
    handlers += [urllib.request.ProxyHandler({"http": proxy, "https": proxy})] if proxy else []
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=15) as answer:
            return [answer.status, json.loads(answer.read())]
    except urllib.error.HTTPError as error:
        return [error.code, None]
    except OSError as error:
        return [0, str(error)]
def reaches(host, port):
    try:
        socket.create_connection((host, port), 2).close()
    except OSError:
        return False
    return True
"""


@dataclass
class Proxied:
    """A gateway whose sessions may reach listed hosts, and the world behind its proxy."""

    gateway: Gateway
    world: Outside

    def ask(self, expression: str, *, session: str = "listed") -> Any:
        """Return an expression's value in a session, by JSON."""
        return json.loads(self.gateway.text(session, f"print(json.dumps({expression}))"))

    def begin(self, session: str, certificate: Path, **fields: Any) -> None:
        """Make a session that can fetch."""
        made = self.gateway.call("POST", "/v1/sessions", json={"name": session, **fields})
        assert made.status_code == 201, made.text
        self.gateway.execute(session, f"PEM = {certificate.read_text()!r}{FETCH}")


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    """Two sessions of alice: `listed` may use the proxy, `plain` may not."""
    state, keys = tmp_path_factory.mktemp("egress"), tmp_path_factory.mktemp("world")
    (state / "instance").write_text(INSTANCE)
    certificate = own_certificate(keys, frozenset({OPEN}))
    egress = {"egress_allow": ",".join(ALLOWED), "egress_tenants": "alice", "egress_dns": NAME_SERVER}
    try:
        with (
            outside(bridge_name(OUTER), program=listed.__file__, arguments=[str(certificate)]) as world,
            gateway("docker", must_be_ready=True, state_dir=str(state), **egress) as serving,
        ):
            made = Proxied(serving, world)
            made.begin("listed", keys / "tls.pem", network="allowlist")
            made.begin("plain", keys / "tls.pem")
            yield made
        assert not proxies(), "the gateway removes its proxy at its end"
    finally:
        forget()


def forget() -> None:
    """Remove the networks and their rules."""
    with closing(docker.from_env()) as client:
        pool = client.api.inspect_network(INNER)["IPAM"]["Config"][0]["Subnet"]
    forget_network(INNER, to_the_proxy(pool))
    forget_network(OUTER, to_the_world((NAME_SERVER,)))


def proxies() -> list[dict[str, Any]]:
    """Return the engine's records of the proxy."""
    with closing(docker.from_env()) as client:
        return list(client.api.containers(all=True, filters={"label": f"{LABEL}={INSTANCE}"}))


def becomes(condition: Callable[[], object], seconds: float) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_a_listed_host_is_reached_by_http_and_https(proxied: Proxied) -> None:
    status, seen = proxied.ask(f"fetch('http://{OPEN}:8080/')")
    assert (status, seen["address"]) == (200, listed.PUBLIC)
    assert not {"Proxy-Authorization", "Via", "X-Forwarded-For"} & set(seen["headers"]), "nothing of it goes out"
    assert proxied.ask(f"fetch('https://{OPEN}/')")[0] == 200, "the certificate is the host's own"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://other.example.org:8080/", "not listed"),
        ("https://other.example.org/", "not listed"),
        (f"http://sub.{OPEN}:8080/", "a name below a listed one"),
        (f"http://{OPEN}:80/", "another port"),
        (f"http://{listed.PUBLIC}:8080/", "an address in place of a name"),
        (f"http://{listed.METADATA}:8080/", "the metadata service"),
        ("http://[::1]:8080/", "an address of IPv6"),
        ("http://inside.example.org:8080/", "a listed name of the metadata service"),
        ("http://mixed.example.org:8080/", "a listed name that also has a private address"),
    ],
)
def test_everything_else_is_refused(proxied: Proxied, url: str, why: str) -> None:
    proxied.world.contacts()
    status, said = proxied.ask(f"fetch({url!r})")
    refused = status in {403, 421} or "Tunnel connection failed: 403" in str(said)
    assert refused, (why, status, said)
    contacts = proxied.world.contacts()
    assert not [each for each in contacts if each[0] == "http"], why
    asked = {each[1] for each in contacts if each[0] == "dns"}
    assert asked <= {"inside.example.org", "mixed.example.org"}, "a name that is not listed is not resolved"
    assert proxied.ask(f"fetch('http://{OPEN}:8080/')")[0] == 200


def test_a_name_that_changes_its_address_never_leads_inside(proxied: Proxied) -> None:
    """The name server answers with a public address and the metadata service's in turn, both for no time."""
    proxied.world.contacts()
    answers = proxied.ask("[fetch('http://rebind.example.org:8080/')[0] for _ in range(20)]")
    contacts = proxied.world.contacts()
    assert [listed.PUBLIC, 8080] in [each[1:] for each in contacts] or set(answers) == {421}
    assert listed.METADATA not in {each[1] for each in contacts}


def test_what_gets_past_squid_still_reaches_no_private_address(proxied: Proxied) -> None:
    """A container in the proxy's place. The control is the same connection without the rule."""
    bridge = bridge_name(OUTER)
    code = (
        "import socket\n"
        "def reaches(host):\n"
        "    try: socket.create_connection((host, 80), 2).close()\n"
        "    except OSError: return False\n"
        "    return True\n"
        f"print([reaches(host) for host in {[listed.PUBLIC, listed.METADATA]}])"
    )
    rule = [way_out_name(bridge), "-d", "169.254.0.0/16", "-j", "DROP"]
    with bench() as own:
        assert own.output(code, network=OUTER).strip() == "[True, False]"
        subprocess.run(["iptables", "-w", "-D", *rule], check=True)
        assert own.output(code, network=OUTER).strip() == "[True, True]"
    becomes(
        lambda: subprocess.run(["iptables", "-w", "-C", *rule], check=False, capture_output=True).returncode == 0, 90
    )


def test_other_code_reaches_no_proxy_even_if_it_knows_the_password(proxied: Proxied) -> None:
    way = proxied.ask("os.environ['HTTPS_PROXY']")
    host, port = way.rpartition("@")[2].split(":")
    assert proxied.ask("[name for name in os.environ if 'proxy' in name.lower()]", session="plain") == []
    assert proxied.ask(f"reaches({host!r}, {port})", session="plain") is False
    assert proxied.ask(f"fetch('http://{OPEN}:8080/', {way!r})", session="plain")[0] == 0
    assert proxied.ask(f"[reaches({host!r}, {port}), fetch('http://{OPEN}:8080/', {way!r})[0]]") == [True, 200]


def test_sessions_that_differ_in_capital_letters_only_are_different_ones(proxied: Proxied, tmp_path: Path) -> None:
    own_certificate(tmp_path, frozenset({OPEN}))
    proxied.begin("LISTED", tmp_path / "tls.pem", network="allowlist")
    own, other = (proxied.ask("os.environ['HTTP_PROXY']", session=session) for session in ("LISTED", "listed"))
    assert proxied.ask(f"fetch('http://{OPEN}:8080/')", session="LISTED")[0] == 200
    forged = other.replace("alice~listed", "alice~LISTED"), own.replace("alice~LISTED", "alice~listed")
    assert proxied.ask(f"[fetch('http://{OPEN}:8080/', way)[0] for way in {forged}]", session="LISTED") == [407, 407]


def test_a_password_is_good_for_its_own_session_only(proxied: Proxied) -> None:
    way = proxied.ask("os.environ['HTTP_PROXY']")
    forged = (way.replace("alice~listed", "alice~other"), way.replace("alice~listed:", "alice~listed:0"))
    for proxy in (*forged, f"http://{way.rpartition('@')[2]}"):
        assert proxied.ask(f"fetch('http://{OPEN}:8080/', {proxy!r})")[0] == 407
    assert proxied.ask(f"fetch('http://{OPEN}:8080/', {way!r})")[0] == 200


def test_code_with_the_right_reaches_neither_the_host_nor_another_kernel(proxied: Proxied, tmp_path: Path) -> None:
    own_certificate(tmp_path, frozenset({OPEN}))
    proxied.begin("second", tmp_path / "tls.pem", network="allowlist")
    with closing(docker.from_env()) as client:
        network = client.api.inspect_network(INNER)
    kernels = {
        each["IPv4Address"].partition("/")[0] for each in network["Containers"].values() if each["Name"] != INNER
    }
    port = int(proxied.gateway.url.rpartition(":")[2])
    host = network["IPAM"]["Config"][0]["Gateway"]
    proxy = proxied.ask("os.environ['HTTP_PROXY']").rpartition("@")[2].partition(":")[0]
    own = proxied.ask("socket.gethostbyname(socket.gethostname())")
    others = kernels - {own}
    assert len(others) == len(kernels) - 1 > 0, "the second one, and those of tests before"
    targets = [*((other, FIRST_PORT) for other in others), (host, port), (host, 22), (proxy, 22), (proxy, 3129)]
    assert not any(proxied.ask(f"[reaches(*target) for target in {targets}]"))
    assert proxied.ask(f"reaches({proxy!r}, 3128)")
    proxied.gateway.call("DELETE", "/v1/sessions/second")


def test_a_tenant_that_may_not_is_refused(proxied: Proxied) -> None:
    refused = proxied.gateway.call("POST", "/v1/sessions", tenant="bob", json={"network": "allowlist"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "SB039")
    assert "egress_tenants" in refused.json()["error"]["resolution"]


def test_each_request_is_recorded_with_its_session_and_verdict(proxied: Proxied) -> None:
    proxied.ask(f"[fetch('https://{OPEN}/')[0], fetch('http://recorded.example.org:8080/')[0]]")

    def recorded() -> list[tuple[Any, ...]]:
        fields = ("tenant", "session", "host", "port", "allowed")
        return [tuple(line[name] for name in fields) for line in proxied.gateway.logged() if line["event"] == "egress"]

    expected = {
        ("alice", "listed", OPEN, 443, True),
        ("alice", "listed", "recorded.example.org", 8080, False),
    }
    becomes(lambda: expected <= set(recorded()), 20)
    sizes = [line for line in proxied.gateway.logged() if line["event"] == "egress" and line.get("port") == 443]
    assert all(line["sent"] > 100 and line["received"] > 100 for line in sizes if line["allowed"])


def test_a_restarted_session_keeps_its_network(proxied: Proxied, tmp_path: Path) -> None:
    own_certificate(tmp_path, frozenset({OPEN}))
    proxied.begin("again", tmp_path / "tls.pem", network="allowlist")
    assert proxied.gateway.call("POST", "/v1/sessions/again/restart").status_code == 200
    proxied.gateway.execute("again", f"PEM = ''{FETCH}".replace("cadata=PEM", ""))
    assert proxied.ask(f"fetch('http://{OPEN}:8080/')[0]", session="again") == 200
    assert proxied.gateway.call("GET", "/v1/sessions/again").json()["network"] == "allowlist"
    proxied.gateway.call("DELETE", "/v1/sessions/again")


@pytest.mark.parametrize("how", ["crash", "removal"])
def test_a_proxy_that_is_gone_comes_back_where_kernels_know_it(proxied: Proxied, how: str) -> None:
    def end() -> bool:
        with closing(docker.from_env()) as client, suppress(NotFound):  # the gateway may be replacing it
            if how == "crash":
                os.kill(client.api.inspect_container(INNER)["State"]["Pid"], signal.SIGKILL)
            else:
                client.api.remove_container(INNER, force=True)
            return True
        return False

    becomes(end, 30)
    becomes(lambda: proxied.ask(f"fetch('http://{OPEN}:8080/')[0]") == 200, 120)
