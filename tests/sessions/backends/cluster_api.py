"""The API of a cluster without a cluster.

Pods run at once. Their commands run on this machine, with a directory for the workspace of each Pod.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from aiohttp import WSMsgType, web
from kubernetes_asyncio import client
from kubernetes_asyncio.stream import WsApiClient

from sessions.backends.kubernetes import KubernetesBackend, KubernetesSettings, walls
from sessions.backends.kubernetes.profile import UID, WORKSPACE
from sessions.backends.kubernetes.streams import PROTOCOL
from sessions.model.kernelspecs import Inventory

ADDRESS = "127.0.0.1"
Pod = dict[str, Any]


@dataclass
class Answer:
    """What the API answers in place of a watch, or of a deletion."""

    status: int
    body: bytes = b'{"kind": "Status", "message": "no"}'


@dataclass
class Api:
    """The Pods of one namespace."""

    #: directory of the Pods' files
    place: Path
    pods: dict[str, Pod] = field(default_factory=dict)
    #: answers of the next watches and deletions; after the last one they succeed
    watches: list[Answer] = field(default_factory=list)
    deletions: list[Answer] = field(default_factory=list)
    #: exit codes in place of the real ones, by a part of the command. None means that the connection breaks.
    ends: dict[str, int | None] = field(default_factory=dict)
    #: seconds before a command begins, by a part of the command
    delays: dict[str, float] = field(default_factory=dict)
    #: what lists of Pods wait for, and how many wait or have waited
    listing: asyncio.Event = field(default_factory=asyncio.Event)
    lists: int = 0
    #: commands that were asked for
    commands: list[str] = field(default_factory=list)
    #: all events; their number is the version of the Pods
    _events: list[bytes] = field(default_factory=list)
    _watchers: set[asyncio.Queue[bytes]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.listing.set()

    def routes(self) -> list[web.RouteDef]:
        pods = "/api/v1/namespaces/{namespace}/pods"
        policies = "/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
        return [
            web.get(pods, self._list),
            web.post(pods, self._create),
            web.delete(pods + "/{name}", self._delete),
            web.get(pods + "/{name}/exec", self._exec),
            web.get(pods + "/{name}/attach", self._attach),
            web.get(policies + "/{name}", self._nothing),
            web.post(policies, self._made),
        ]

    def files(self, name: str) -> Path:
        """Return the directory of a Pod's workspace."""
        return self.place / name

    def report(self, kind: str, pod: Pod) -> None:
        """Send an event to all watches."""
        self._events.append(orjson.dumps({"type": kind, "object": pod}) + b"\n")
        for watcher in self._watchers:
            watcher.put_nowait(self._events[-1])

    async def _nothing(self, _request: web.Request) -> web.Response:
        return web.json_response({"message": "not found"}, status=404)

    async def _made(self, _request: web.Request) -> web.Response:
        return web.json_response({}, status=201)

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request)
        self.lists += 1
        await self.listing.wait()
        version = str(len(self._events))
        return web.json_response({"metadata": {"resourceVersion": version}, "items": list(self.pods.values())})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        if self.watches:
            answer = self.watches.pop(0)
            return web.Response(status=answer.status, body=answer.body)
        response = web.StreamResponse()
        await response.prepare(request)
        events: asyncio.Queue[bytes] = asyncio.Queue()
        for event in self._events[int(request.query["resourceVersion"]) :]:
            events.put_nowait(event)
        self._watchers.add(events)
        try:
            while True:
                await response.write(await events.get())
        finally:
            self._watchers.discard(events)

    async def _create(self, request: web.Request) -> web.Response:
        pod: Pod = await request.json()
        name = pod["metadata"]["name"]
        self.files(name).mkdir(mode=0o777)
        self.files(name).chmod(0o2777)
        pod["status"] = {"podIP": ADDRESS, "containerStatuses": [{"restartCount": 0, "state": {"running": {}}}]}
        self.pods[name] = pod
        self.report("ADDED", pod)
        return web.json_response(pod, status=201)

    async def _delete(self, request: web.Request) -> web.Response:
        if self.deletions:
            answer = self.deletions.pop(0)
            return web.Response(status=answer.status, body=answer.body)
        if (pod := self.pods.pop(request.match_info["name"], None)) is None:
            return await self._nothing(request)
        self.report("DELETED", pod)
        return web.json_response(pod)

    async def _attach(self, request: web.Request) -> web.WebSocketResponse:
        connection = await _accept(request)
        await _input(connection, None)
        return connection

    async def _exec(self, request: web.Request) -> web.WebSocketResponse:
        connection, command = await _accept(request), request.query.getall("command")
        told = " ".join(command)
        self.commands.append(told)
        for part, seconds in self.delays.items():
            await asyncio.sleep(seconds if part in told else 0)
        name = request.match_info["name"]
        if told == "sh -c kill -TERM 1":
            self._end_container(name)
            code = 0
        elif "kill -" in told:  # a launcher, which is no process of this machine
            code = 0
        elif "mkfifo" in told:  # a launcher starts
            await connection.send_bytes(b"\x01123\n")
            code = 0
        elif "select" in told:  # the wait for a launcher's end
            await _input(connection, None)
            return connection
        else:
            code = await self._run(connection, name, command)
        ends = [end for part, end in self.ends.items() if part in told] or [code]
        if ends[0] is not None:
            with suppress(ConnectionError):
                await connection.send_bytes(b"\x03" + _status(ends[0]))
        await connection.close()
        return connection

    def _end_container(self, name: str) -> None:
        ended = {"terminated": {"exitCode": 143, "reason": "Error", "message": "143"}}
        next_one = {"restartCount": 1, "state": {"running": {}}, "lastState": ended}
        self.pods[name]["status"]["containerStatuses"] = [next_one]
        self.report("MODIFIED", self.pods[name])

    async def _run(self, connection: web.WebSocketResponse, name: str, command: list[str]) -> int:
        """Run a command in the Pod's directory, as another user than the directory's owner where that is possible."""
        own = [part.replace(WORKSPACE, str(self.files(name))) for part in command]
        user: dict[str, Any] = {"user": UID, "group": UID, "extra_groups": []} if os.geteuid() == 0 else {}
        program = await asyncio.create_subprocess_exec(*own, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, **user)
        assert program.stdin is not None
        assert program.stdout is not None
        reading = asyncio.get_running_loop().create_task(_input(connection, program.stdin))
        with suppress(ConnectionError):
            while piece := await program.stdout.read(32 * 1024):
                await connection.send_bytes(b"\x01" + piece)
        code = await program.wait()
        reading.cancel()
        await asyncio.wait({reading})
        return code


async def _accept(request: web.Request) -> web.WebSocketResponse:
    connection = web.WebSocketResponse(protocols=[PROTOCOL])
    await connection.prepare(request)
    return connection


async def _input(connection: web.WebSocketResponse, program: asyncio.StreamWriter | None) -> None:
    """Pass the input on to a program, until the connection ends."""
    with suppress(ConnectionError):
        async for message in connection:
            assert message.type is WSMsgType.BINARY
            if program is not None and message.data[0] == 0:
                program.write(message.data[1:])
                await program.drain()
            elif program is not None:
                program.close()
    if program is not None:
        program.close()


def _status(code: int) -> bytes:
    if code == 0:
        return orjson.dumps({"status": "Success"})
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return orjson.dumps({"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}})


async def prove(*_asked: object) -> walls.Proven:
    """Take the place of the proof of a cluster's walls."""
    return walls.Proven(gvisor=False, inventory=Inventory("3.12", {}))


@asynccontextmanager
async def serve(api: Api) -> AsyncIterator[Callable[[], KubernetesBackend]]:
    """Serve the API. Yields what makes a backend that calls it."""
    made: list[KubernetesBackend] = []

    def backend() -> KubernetesBackend:
        made.append(KubernetesBackend(KubernetesSettings("kernels:1", "instance", kubeconfig="none")))
        settings, cluster = client.Configuration(host=f"http://{ADDRESS}:{port}"), made[-1]._cluster
        cluster._plain = client.CoreV1Api(client.ApiClient(settings))
        cluster._policies = client.NetworkingV1Api(cluster._plain.api_client)
        cluster._streams = client.CoreV1Api(WsApiClient(settings, "sec-websocket-protocol", PROTOCOL))
        return made[-1]

    app = web.Application()
    app.add_routes(api.routes())
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, ADDRESS, 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield backend
    finally:
        for each in made:
            await each.close()
        await runner.cleanup()
