"""The egress proxy's rules as text, what its reports say, and who may use it. `tests/attacks` shows that they hold."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import docker
import pytest

from kernel_image.egress import credentials
from sessions.backends.base import Launch
from sessions.backends.docker import DockerSettings, EgressSettings
from sessions.backends.docker.isolation.egress import Egress, proxy
from sessions.backends.docker.isolation.egress.networks import (
    Networks,
    ensure_networks,
    inner_name,
    outer_name,
    to_the_proxy,
    to_the_world,
)
from sessions.backends.docker.isolation.egress.proof import PROOF, prove_proxy, wait_for
from sessions.backends.docker.isolation.egress.squid import PRIVATE, configuration, request_of, user_of
from sessions.backends.process import ProcessBackend
from sessions.model.egress import EgressTenants, host_and_port, name_server
from sessions.model.errors import NetworkNotAllowed, NotInitialized
from sessions.model.values import Network, SessionKey
from tests.attacks.bench import forget_network
from tests.fakes import PYTHON

EGRESS = EgressSettings(
    "kernel-gateway/egress:latest",
    (("pypi.example", 443), ("mirror.example", 8080)),
    ("192.0.2.53",),
    "secret",
)
SETTINGS = DockerSettings(
    "runsc", "kernel-gateway/python:latest", "kernel-gateway-tests", f"proof{os.getpid()}", egress=EGRESS
)
KEY = SessionKey("team", "notes")


# -- rules -----------------------------------------------------------------------------------------------------


def test_names_are_refused_before_they_are_resolved_and_addresses_before_anything_is_allowed() -> None:
    lines = configuration(EGRESS, "10.1.0.2").splitlines()
    access = [line for line in lines if line.startswith("http_access ")]
    assert [line.partition(" ")[2] for line in access] == [
        *("deny manager", "deny !session", "deny !listed", "deny crowded", "deny private"),
        *("allow host443 port443", "allow host8080 port8080", "deny all"),
    ]
    assert "acl host8080 dstdomain -n mirror.example" in lines, "a host is allowed with its own port only"
    assert "http_port 10.1.0.2:3128" in lines, "the way out leads to no proxy"
    (private,) = [line for line in lines if line.startswith("acl private ")]
    assert set(PRIVATE) < set(private.split())


def test_the_way_out_leads_to_no_private_address() -> None:
    rules = to_the_world(("192.0.2.53",))
    assert rules[:2] == [f"-d 192.0.2.53/32 -p {kind} -m {kind} --dport 53 -j RETURN" for kind in ("udp", "tcp")]
    assert rules[2:] == [f"-d {network} -j DROP" for network in PRIVATE]


def test_the_proxys_container_is_hardened() -> None:
    config = proxy.host_config(SETTINGS)
    assert (config["runtime"], config["cap_drop"], config["security_opt"]) == ("runsc", ["ALL"], ["no-new-privileges"])
    assert config["read_only"]
    assert config["mem_limit"] == config["memswap_limit"]
    assert not {"privileged", "binds", "port_bindings", "devices", "cap_add", "pid_mode", "mounts"} & set(config)


@pytest.mark.parametrize("entry", ["pypi.example", "PyPI.example:443"])
def test_a_host_without_a_port_means_https(entry: str) -> None:
    assert host_and_port(entry) == ("pypi.example", 443)


@pytest.mark.parametrize(
    "entry",
    [
        *("", "localhost", "*.example.org", ".example.org", "10.0.0.1", "[::1]", "a.example:0", "a.example:x", "a..b"),
        *("a.example:70000", "https://a.example", "a.example/path", "a_b.example", "-a.example", "a.example extra"),
    ],
)
def test_a_host_that_is_not_exact_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="no exact host"):
        host_and_port(entry)


@pytest.mark.parametrize("entry", ["127.0.0.53", "::1", "resolver"])
def test_a_name_server_that_the_proxy_cannot_reach_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match=r"own|Expected|octet"):
        name_server(entry)


# -- reports ---------------------------------------------------------------------------------------------------


def test_a_report_says_who_asked_for_what_and_the_verdict() -> None:
    line = "egress 1700000000.250 team%7Enotes pypi.example 443 {} {} 5000 700"
    allowed, refused = request_of(line.format("TCP_TUNNEL", 200)), request_of(line.format("TCP_DENIED", 403))
    assert allowed is not None
    assert refused is not None
    assert (allowed.tenant, allowed.session, allowed.host, allowed.port) == ("team", "notes", "pypi.example", 443)
    assert (allowed.at, allowed.sent, allowed.received) == (1700000000.25, 5000, 700)
    assert (allowed.allowed, refused.allowed) == (True, False)


@pytest.mark.parametrize(
    "line",
    [
        "2026/11/25 02:22:05| storeLateRelease: released 0 objects",
        "egress 1700000000.250 - pypi.example 443 TCP_DENIED 407 1 1",
        "egress 1700000000.250 team%7Enotes pypi.example 443 TCP_DENIED 407 1 1",  # a wrong password: only claimed
        "egress 1700000000.250 nobody pypi.example 443 TCP_TUNNEL 200 1 1",
    ],
)
def test_a_line_of_no_known_session_is_no_report(line: str) -> None:
    assert request_of(line) is None


# -- who may ---------------------------------------------------------------------------------------------------


def test_only_listed_tenants_may_use_it() -> None:
    EgressTenants(["team"]).require(KEY, Network.ALLOWLIST)
    EgressTenants(["*"]).require(KEY, Network.ALLOWLIST)
    EgressTenants().require(KEY, Network.NONE)
    for tenants in ([], ["other"]):
        with pytest.raises(NetworkNotAllowed):
            EgressTenants(tenants).require(KEY, Network.ALLOWLIST)


async def test_a_process_cannot_be_kept_from_other_hosts_so_it_is_not_started() -> None:
    backend = ProcessBackend()
    with pytest.raises(NetworkNotAllowed, match="process"):
        await backend.start(Launch(PYTHON, egress=KEY))
    await backend.close()


def test_without_a_proxy_no_kernel_gets_its_network() -> None:
    off = Egress(DockerSettings("runsc", "image", "net", "id"))
    assert off.settings_of(Launch(PYTHON)).network == "net"
    with pytest.raises(NetworkNotAllowed):
        off.settings_of(Launch(PYTHON, egress=KEY))


def test_a_kernel_with_the_right_gets_the_way_and_a_session_may_set_its_own() -> None:
    egress = Egress(SETTINGS)
    vars(egress)["_networks"] = Networks("10.1.0.1", "10.1.0.2", rules_were_set=True)
    assert egress.with_proxy_variables(Launch(PYTHON)).env == {}
    env = egress.with_proxy_variables(Launch(PYTHON, env={"NO_PROXY": "mine"}, egress=KEY)).env
    assert env["HTTPS_PROXY"] == f"http://team~notes:{credentials.password('secret', 'team~notes')}@10.1.0.2:3128"
    assert env["NO_PROXY"] == "mine"


def test_names_are_not_compared_without_case() -> None:
    assert "auth_param basic casesensitive on" in configuration(EGRESS, "10.1.0.2").splitlines()
    assert user_of(PROOF) != user_of(PROOF).lower(), "the proof notices a proxy that does"
    upper, lower = (credentials.password("secret", name) for name in ("ACME~NET", "acme~net"))
    assert upper != lower


def test_squid_is_told_which_passwords_are_right() -> None:
    own, other = user_of(KEY), user_of(SessionKey("team", "other"))
    right = credentials.password("secret", own)
    asked = "".join(f"{user.replace('~', '%7E')} {word}\n" for user, word in ((own, right), (other, right), (own, "x")))
    said = subprocess.run(
        [sys.executable, "-I", credentials.__file__],
        input=asked + "nothing\n",
        env={credentials.VARIABLE: "secret"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert said.stdout.split() == ["OK", "ERR", "ERR", "ERR"]


def test_a_proxy_of_an_earlier_gateway_is_removed_when_egress_is_off() -> None:
    api = Mock(containers=Mock(return_value=[{"Id": "old"}]))
    assert Egress(DockerSettings("runsc", "image", "net", "id")).ensure(api) is True
    api.remove_container.assert_called_once_with("old", force=True)
    assert api.containers.call_args.kwargs["filters"] == {"label": f"{proxy.LABEL}=id"}


# -- the proof -------------------------------------------------------------------------------------------------


@pytest.fixture
def proxy_address() -> Iterator[SimpleNamespace]:
    """The engine, and the proxy's address in its networks; all is removed afterwards."""
    with closing(docker.from_env()) as client:
        try:
            yield SimpleNamespace(api=client.api, value=ensure_networks(client.api, SETTINGS, EGRESS).proxy)
        finally:
            proxy.remove_proxy(client.api, SETTINGS)
            pool = client.api.inspect_network(inner_name(SETTINGS))["IPAM"]["Config"][0]["Subnet"]
            forget_network(inner_name(SETTINGS), to_the_proxy(pool))
            forget_network(outer_name(SETTINGS), to_the_world(EGRESS.name_servers))


@pytest.mark.engine
@pytest.mark.full
@pytest.mark.parametrize(
    "line",
    ["", "http_access deny !session\n", "http_access deny private\n", "auth_param basic casesensitive on\n"],
)
def test_the_proof_notices_a_proxy_that_refuses_too_little(
    proxy_address: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    weak = configuration(EGRESS, proxy_address.value).replace(line, "")
    monkeypatch.setattr(proxy, "configuration", lambda *_: weak)
    assert proxy.ensure_proxy(proxy_address.api, SETTINGS, EGRESS, proxy_address.value)
    assert not proxy.ensure_proxy(proxy_address.api, SETTINGS, EGRESS, proxy_address.value), "it runs already"
    wait_for(proxy_address.value)
    if not line:
        return prove_proxy(proxy_address.value, EGRESS)
    with pytest.raises(NotInitialized, match="does not refuse"):
        prove_proxy(proxy_address.value, EGRESS)
    return None


@pytest.mark.engine
def test_a_missing_image_is_reported_with_the_remedy() -> None:
    with closing(docker.from_env()) as client, pytest.raises(NotInitialized, match="make egress-image"):
        proxy.require_image(client.api, EgressSettings("no/such:image", (), (), "x"))


def test_the_image_has_what_the_gateway_expects() -> None:
    recipe = Path(credentials.__file__).with_name("Dockerfile").read_text()
    assert "USER 65532:65532" in recipe
    assert "credentials.py start.py" in recipe
    assert "/opt/egress/credentials.py" in configuration(EGRESS, "10.1.0.2")
