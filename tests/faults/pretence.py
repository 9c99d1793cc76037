"""A fake Docker engine for tests of the engine's client: it runs nothing, and answers at once unless delayed."""

from __future__ import annotations

import contextlib
import json
import re
import socketserver
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

#: network that every container is on
NETWORK = "network"
#: every tool's output
TOOL_SAYS = b'{"size": 1}\nx'


class FakeEngine(socketserver.ThreadingUnixStreamServer):
    """The server of the fake engine, and its state."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), _Handler)
        self.path = path
        #: its API: the version, and the oldest that it takes
        self.version, self.oldest = (1, 41), (1, 12)
        #: ids of the containers that run
        self.running: set[str] = set()
        #: its driver of control groups
        self.driver = "cgroupfs"
        #: parents of the control groups of the containers that clients have requested
        self.parents: list[str] = []
        #: called when a client lists the containers, before the answer
        self.on_list: Callable[[], None] = lambda: None
        #: message with which it refuses to make a container; empty: it makes one
        self.refusal = ""
        #: names of the containers that it has made and not removed, each with its volumes
        self.made: dict[str, list[str]] = {}
        #: names of the volumes that it has made and not removed
        self.volumes: set[str] = set()
        #: while cleared, it delays the making of every container, even when the client no longer waits
        self.may_make = threading.Event()
        self.may_make.set()
        #: number of containers that clients have requested
        self.asked = 0
        #: number of further removals of volumes that fail
        self.volume_failures = 0
        #: state of every container that a client inspects; empty: there is none
        self.state: dict[str, Any] = {"Running": True, "ExitCode": 0}
        self.events: list[dict[str, Any]] = []
        self.news = threading.Condition()

    def make(self, name: str, mounts: list[str]) -> None:
        """Make a container, after `may_make` is set."""
        self.asked += 1
        self.may_make.wait()
        self.volumes.update(mounts)
        self.made[name] = mounts

    def remove_volume(self, name: str) -> HTTPStatus:
        """Remove a volume unless a container has it.

        Returns:
            status of the answer.
        """
        if self.volume_failures:
            self.volume_failures -= 1
            return HTTPStatus.INTERNAL_SERVER_ERROR
        if name not in self.volumes:
            return HTTPStatus.NOT_FOUND
        if any(name in mounts for mounts in self.made.values()):
            return HTTPStatus.CONFLICT
        self.volumes.remove(name)
        return HTTPStatus.OK

    def tell(self, event: dict[str, Any]) -> None:
        """Publish an event."""
        with self.news:
            self.events.append(event)
            self.news.notify_all()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeEngine

    def do_GET(self) -> None:
        if self._too_old():
            self._answer({"message": "the client's version is too old"}, 400)
        else:
            self._serve()

    def _serve(self) -> None:
        path, _, asked_for = self.path.partition("?")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if path.endswith("/version"):
            self._answer({"ApiVersion": "{}.{}".format(*self.server.version)})
        elif path.endswith("/containers/json"):
            running = [{"Id": container} for container in self.server.running]
            self.server.on_list()
            self._answer(running)
        elif path.endswith(("/info", "/volumes")):
            self._answer(
                {
                    "NCPU": 64,
                    "CgroupDriver": self.server.driver,
                    "Volumes": [{"Name": name} for name in self.server.volumes],
                }
            )
        elif path.endswith("/containers/create"):
            host = json.loads(body)["HostConfig"]
            self.server.parents.append(host.get("CgroupParent", ""))
            if self.server.refusal:
                self._answer({"message": self.server.refusal}, 400)
            else:
                mounts = host.get("Mounts", [])
                self.server.make(parse_qs(asked_for)["name"][0], [mount["Source"] for mount in mounts])
                self._answer({"Id": "made", "Warnings": []})
        elif found := re.search("/(containers|volumes)/(kernel-gateway-[^/]+)$", path):
            self._remove(*found.groups())
        elif "/exec" in path:
            self._run_tool(path)
        elif re.search("/containers/[^/]+/json$", path):
            self._describe()
        elif path.endswith("/events"):
            self._tell_events()
        else:
            self._answer({})

    do_POST = do_DELETE = do_GET  # noqa: N815 - the base class's names

    def _too_old(self) -> bool:
        of = re.match(r"/v(\d+)\.(\d+)/", self.path)
        return of is not None and tuple(map(int, of.groups())) < self.server.oldest

    def _describe(self) -> None:
        if self.server.state:
            address = {"Networks": {NETWORK: {"IPAddress": "127.0.0.1"}}}
            self._answer({"State": self.server.state, "NetworkSettings": address})
        else:
            self._answer({"message": "No such container"}, HTTPStatus.NOT_FOUND)

    def _remove(self, kind: str, name: str) -> None:
        if kind == "volumes":
            status = self.server.remove_volume(name)
            self._answer({"message": status.phrase}, status)
        elif self.server.made.pop(name, None) is None:
            self._answer({"message": "No such container"}, HTTPStatus.NOT_FOUND)
        else:
            self._answer({})

    def _answer(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            # A real engine sends this header, too: without it a client may use the connection again while it closes.
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _run_tool(self, path: str) -> None:
        if path.endswith("/exec"):
            self._answer({"Id": "tool"})
        else:  # head and answer in one piece, as a client that reads slowly gets them
            head = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
            self.wfile.write(head + struct.pack(">BxxxI", 1, len(TOOL_SAYS)) + TOOL_SAYS)
            self.close_connection = True

    def _tell_events(self) -> None:
        told = len(self.server.events)  # whoever has the head of the answer gets all that happens from then on
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        while True:
            with self.server.news:
                while len(self.server.events) == told:
                    self.server.news.wait()
            line = json.dumps(self.server.events[told]).encode()
            told += 1
            with contextlib.suppress(OSError):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
                self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name for it
        pass


@contextlib.contextmanager
def pretence() -> Iterator[FakeEngine]:
    """A fake engine that serves."""
    with (
        tempfile.TemporaryDirectory(prefix="kgw-engine-") as directory,
        FakeEngine(Path(directory, "engine.sock")) as server,
    ):
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
