"""Clients without a key: half-open and slow requests, floods of connections, and a process without descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from kernel_gateway import app
from kernel_gateway.app import Service
from kernel_gateway.config import Settings
from kernel_gateway.dialects.jupyter.models import kernel_id
from kernel_gateway.http import handlers
from kernel_gateway.wire import connections, listener
from sessions.model.values import SessionKey
from tests import fakes, gateways
from tests.fakes import FakeBackend
from tests.figures import hold
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import metric, until

#: an address of this machine that an attacker uses; loopback has many
ATTACKER = "127.0.0.2"
HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "


@contextlib.contextmanager
def connections_of(gateway: Gateway, count: int, start: bytes, host: str = ATTACKER) -> Iterator[list[socket.socket]]:
    """Connect clients from one address, which send a start and then nothing."""
    where = urlsplit(gateway.url)
    with contextlib.ExitStack() as stack:
        peers = []
        for _ in range(count):
            peer = socket.create_connection((where.hostname, where.port or 0), timeout=20, source_address=(host, 0))
            peers.append(stack.enter_context(peer))
            with contextlib.suppress(OSError):  # the gateway may have closed it again
                peer.sendall(start)
        yield peers


def healthy(gateway: Gateway) -> bool:
    """Return whether a new client gets an answer."""
    return requests.get(f"{gateway.url}/healthz", timeout=10).status_code == 200


@pytest.fixture(scope="module")
def cramped() -> Iterator[Gateway]:
    """A gateway that may open 256 files."""
    with gateways.gateway("process", under=("prlimit", "--nofile=256:256")) as serving:
        yield serving


# -- connections -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [ATTACKER, "127.0.0.1"])
def test_half_open_requests_keep_nobody_out_and_fill_no_log(cramped: Gateway, host: str) -> None:
    before = cramped.log.stat().st_size
    with connections_of(cramped, 200, HALF, host):
        cramped.http.close()  # the gateway may close an idle connection for others in the moment of its next request
        assert 16 < metric(cramped, "kernel_gateway_connections") <= 128
        assert all(healthy(cramped) for _ in range(10))
        cramped.http.close()
        assert cramped.text("works", "1") == "1"
    assert cramped.log.stat().st_size - before < 10_000
    (warning,) = [line for line in cramped.logged() if line["event"].startswith("few file descriptors")]
    assert (warning["connections"], warning["wanted"]) == (128, 2000)


def test_connections_at_work_are_refused_beyond_the_share_of_an_address() -> None:
    """Work needs a key; a client of another address gets its answer."""
    with gateways.gateway("process", max_connections="64", max_connections_per_address="4") as gateway:
        key = f"Authorization: Bearer {KEYS['alice']}"
        lines = ("POST /v1/sessions HTTP/1.1", "Host: localhost", key, "Content-Length: 9", "Expect: 100-continue")
        slow = "\r\n".join((*lines, "", "")).encode()
        with contextlib.ExitStack() as stack:
            working = stack.enter_context(connections_of(gateway, 4, slow))
            assert all(peer.recv(4096).startswith(b"HTTP/1.1 100 ") for peer in working)
            (refused,) = stack.enter_context(connections_of(gateway, 1, b""))
            answer = refused.recv(4096)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b'"SB036"' in answer
            assert healthy(gateway)
            assert metric(gateway, "kernel_gateway_connections_refused_total", reason="address") == 1
        until(lambda: metric(gateway, "kernel_gateway_connections") <= 1)
        with connections_of(gateway, 1, HALF + b"x\r\n\r\n") as (peer,):
            assert peer.recv(4096).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("share", ["0.5", "1"])
def test_a_tenant_leaves_connections_to_others_from_however_many_addresses(share: str) -> None:
    with gateways.gateway("process", max_connections="32", max_share_per_tenant=share) as gateway:
        key = f"Authorization: Bearer {KEYS['alice']}"
        lines = ("POST /v1/sessions HTTP/1.1", "Host: localhost", key, "Content-Length: 9", "Expect: 100-continue")
        slow = "\r\n".join((*lines, "", "")).encode()
        with contextlib.ExitStack() as stack:
            answers = []
            for number in range(30):
                (peer,) = stack.enter_context(connections_of(gateway, 1, slow, f"127.0.0.{number + 2}"))
                answers.append(peer.recv(4096)[:12])
            places = 15 if share == "0.5" else 30  # of 32, two are for this machine, where all are
            assert answers == [b"HTTP/1.1 100"] * places + [b"HTTP/1.1 429"] * (30 - places)
            assert metric(gateway, "kernel_gateway_connections_refused_total", reason="tenant") == 30 - places
            others = [admitted(stack, gateway) for _ in range(3)]
            assert others == [100, 100, 100 if share == "0.5" else 503]


def admitted(stack: contextlib.ExitStack, gateway: Gateway) -> int:
    """Return the first status for another tenant's request, which waits for its body."""
    asked = f"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEYS['bob']}\r\n"
    asked += "Expect: 100-continue\r\nContent-Length: 9\r\n\r\n"
    (peer,) = stack.enter_context(connections_of(gateway, 1, asked.encode(), "127.0.0.200"))
    return int(peer.recv(4096).split()[1])


def test_clients_that_never_finish_the_handshake_of_tls_keep_nobody_out() -> None:
    with gateways.gateway("process", tls="true", max_connections="64", max_connections_per_address="4") as gateway:
        with connections_of(gateway, 20, b"", "127.0.0.1"), connections_of(gateway, 20, b"\x16\x03\x01", "127.0.0.1"):
            for _ in range(3):
                assert requests.get(f"{gateway.url}/healthz", timeout=10, verify=gateway.trusted).status_code == 200
        assert gateway.text("works", "1") == "1"


# -- descriptors -----------------------------------------------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process. Source: proc(5), stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@contextlib.contextmanager
def without_descriptors(gateway: Gateway) -> Iterator[None]:
    """Leave a gateway no file descriptor for 40 clients that connect now; the limit is as before afterwards."""
    pid = gateway.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    opened = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (opened + 3, limits[1]))
    with connections_of(gateway, 40, HALF):
        yield
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        until(lambda: any(line["event"] == "connections are accepted again" for line in gateway.logged()))
        assert healthy(gateway)


def waits(gateway: Gateway) -> int:
    return sum(line["event"].startswith("new connections wait") for line in gateway.logged())


def test_a_gateway_without_descriptors_waits_says_so_once_and_goes_on() -> None:
    with gateways.gateway("process") as gateway:
        limits = resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE)
        assert limits[0] == limits[1]  # it has raised its own limit
        assert gateway.text("works", "1") == "1"
        with without_descriptors(gateway):
            until(lambda: waits(gateway))
            time.sleep(1.2)  # and tries again, twice
        assert waits(gateway) == metric(gateway, "kernel_gateway_accept_pauses_total") == 1
        assert gateway.text("works", "1") == "1"


@pytest.mark.full
def test_a_gateway_without_descriptors_costs_no_processor_time() -> None:
    with gateways.gateway("process") as gateway:
        before = cpu_seconds(gateway.process.pid)
        time.sleep(2)
        idle = cpu_seconds(gateway.process.pid) - before
        with without_descriptors(gateway):
            before = cpu_seconds(gateway.process.pid)
            time.sleep(2)
            waiting = cpu_seconds(gateway.process.pid) - before
        hold("processor time without descriptors", waiting, max(idle, 0.1), "s")


@pytest.mark.parametrize(("limit", "status", "told"), [("256", 1, "PROBLEM  open files"), ("8192", 0, "ok       open")])
def test_the_doctor_says_whether_there_are_enough_descriptors(limit: str, status: int, told: str) -> None:
    command = [sys.executable, "-m", "kernel_gateway", "doctor", "--isolation", "process"]
    ran = subprocess.run(
        ["prlimit", f"--nofile={limit}:{limit}", *command], capture_output=True, text=True, check=False
    )
    assert ran.returncode == status, ran.stderr
    assert told in ran.stdout
    assert ("fix: raise the hard limit to 4000" in ran.stdout) is bool(status)


# -- time ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def service(backend: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    """A service whose clients have half a second for the head of a request, and for its body."""
    monkeypatch.setattr(app, "make_backend", lambda *_: backend)
    monkeypatch.setattr(connections, "HEAD_TIMEOUT", 0.5)
    monkeypatch.setattr(handlers, "BODY_SECONDS", 0.5)
    monkeypatch.setattr(handlers, "BODY_RATE", 2**30)
    settings = Settings.model_validate({"state_dir": tmp_path, "port": 0, "pool_size": 0, "keys": {"key-0001": "acme"}})
    service = await Service(settings).start()
    yield service
    await service.stop()


async def ended(service: Service, head: bytes, drip: bytes, count: int) -> bool:
    """Send a head, then a byte at a time; return whether the gateway ends the connection before all are sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(head)
    try:
        for _ in range(count):
            await asyncio.sleep(0.1)
            writer.write(drip)
            await writer.drain()
            if reader.at_eof() or reader._buffer:  # type: ignore[attr-defined]
                return True
    except ConnectionError:
        return True
    finally:
        writer.close()
    return False


async def test_no_byte_prolongs_the_time_for_the_head_of_a_request(service: Service) -> None:
    assert await ended(service, HALF, b"x", 100)


async def test_no_byte_prolongs_the_time_for_a_body(service: Service) -> None:
    head = b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nX-API-Key: key-0001\r\nContent-Length: 1000\r\n\r\n"
    assert await ended(service, head, b" ", 100)


async def test_a_client_that_sends_nothing_is_disconnected(service: Service) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    writer.close()


async def test_a_connection_may_be_idle_between_requests(service: Service) -> None:
    whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    for _ in range(2):
        writer.write(whole)
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
        await asyncio.sleep(1)
    writer.write(whole[:-10])  # but a further head must be complete in time
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    writer.close()


async def test_a_client_that_takes_nothing_of_an_answer_is_disconnected(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "UNREAD_MS", 1000)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", service.port))
        client.sendall(b"GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await fakes.until(lambda: opened(service) == 1)
        await fakes.until(lambda: opened(service) == 0)


def opened(service: Service) -> float:
    return service.metrics.registry.get_sample_value("kernel_gateway_connections") or 0.0


# -- the end ---------------------------------------------------------------------------------------------------


async def test_a_reset_tells_the_client_and_does_nothing_once_the_stream_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        connection = connections.Connection("127.0.0.1")
        connection.attach(connections.PlainStream(listening.accept()[0]))
    with client:
        connection.reset()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    connection.reset()  # a client may leave while the last words to it are prepared


async def test_sockets_of_all_dialects_close_when_the_gateway_stops(service: Service) -> None:
    session = await service.registry.get_or_create(SessionKey("acme", "s1"))
    clients = [
        await websocket_connect(HTTPRequest(f"ws://127.0.0.1:{service.port}{path}", headers={"X-API-Key": "key-0001"}))
        for path in ("/v1/sessions/s1/stream", f"/api/kernels/{kernel_id(session.key)}/channels")
    ]
    await service.drain()
    assert not session.closed
    await service.stop()
    for client in clients:
        while await client.read_message() is not None:
            pass
        assert (client.close_code, client.close_reason) == (1001, "the gateway is shutting down")
        client.close()
