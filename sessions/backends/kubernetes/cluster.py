"""Calls to the API of a cluster, in one namespace.

Only this module knows the cluster's client. Answers are plain JSON. An API that does not answer, or that fails, raises
BackendUnavailable; one that refuses raises Refused.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager, closing
from typing import Any

import aiohttp
import orjson
import structlog
from aiohttp.http import HttpProcessingError
from kubernetes_asyncio import client, config
from kubernetes_asyncio.stream import WsApiClient

from sessions.backends.kubernetes.profile import CONTAINER, GRACE, KubernetesSettings
from sessions.backends.kubernetes.streams import PROTOCOL, Stream
from sessions.model.errors import BackendUnavailable, ConnectionFailed, NotInitialized

log = structlog.get_logger()

#: seconds for one call
CALL = 10.0
#: seconds after which a watch is opened again
WATCH = 60
#: seconds after which clients should try again
RETRY_AFTER = 5
#: connections to the API at the same time: one for each tool that runs, and some for calls
CONNECTIONS = 1000
_OK, _NOT_FOUND, _TOO_MANY, _FAILED = 200, 404, 429, 500
_FAILURES = (aiohttp.ClientError, TimeoutError, OSError)
#: the same for a WebSocket: aiohttp only asserts that a connection has outlived the answer to its handshake
_BROKEN = (*_FAILURES, AssertionError)
#: what reading or parsing a line raises that is no event, such as the words of a load balancer or a line without end
_NO_EVENT = (ValueError, KeyError, TypeError, HttpProcessingError)


class Refused(Exception):
    """The API has refused a call."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def unavailable() -> BackendUnavailable:
    """Return the error for an API that does not answer."""
    return BackendUnavailable("the cluster's API does not answer", retry_after=RETRY_AFTER)


class Cluster:
    """One namespace of a cluster."""

    def __init__(self, settings: KubernetesSettings) -> None:
        """Keep the settings. `connect` makes the connection."""
        self._settings = settings
        # Untyped, because the client declares classes where it also takes plain JSON.
        self._plain: Any = None
        self._policies: Any = None
        self._streams: Any = None
        #: address of the API, as host and port
        self.address = ("", 0)
        #: what owns the objects that the gateway makes. None means that it is not known yet.
        self._owners: list[dict[str, str]] | None = None

    async def connect(self) -> None:
        """Read the address and the credentials of the cluster. Idempotent.

        Raises:
            NotInitialized: when they cannot be read.
        """
        if self._plain is not None:
            return
        made = client.Configuration()
        try:
            if self._settings.kubeconfig:
                await config.load_kube_config(self._settings.kubeconfig, client_configuration=made)
            else:
                config.load_incluster_config(made)
        except config.ConfigException as error:
            raise NotInitialized(f"the cluster's address and credentials cannot be read: {error}") from error
        vars(made).update(connection_pool_maxsize=CONNECTIONS)
        host, _, port = str(made.host).removeprefix("https://").partition(":")
        self.address = (host, int(port or 443))
        self._plain = client.CoreV1Api(client.ApiClient(made))
        self._policies = client.NetworkingV1Api(self._plain.api_client)
        self._streams = client.CoreV1Api(WsApiClient(made, "sec-websocket-protocol", PROTOCOL, heartbeat=30.0))

    async def close(self) -> None:
        """Close all connections."""
        if self._plain is not None:
            await self._plain.api_client.close()
            await self._streams.api_client.close()
            self._plain = None

    async def _answer(self, call: Awaitable[Any]) -> bytes:
        try:
            async with asyncio.timeout(CALL):
                response = await call
                body: bytes = await response.read()
        except _FAILURES as error:
            log.warning("the cluster's API does not answer", error=str(error)[:200])
            raise unavailable() from error
        _check(response.status, body)
        return body

    async def version(self) -> str:
        """Connect, and return the version of the API.

        Raises:
            NotInitialized: when the address or the credentials cannot be read.
        """
        await self.connect()
        call = client.VersionApi(self._plain.api_client).get_code(_preload_content=False)
        return str(orjson.loads(await self._answer(call))["gitVersion"])

    async def _owned(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Return a manifest that names the StatefulSet of the gateway's own Pod as owner, if there is one.

        The cluster removes objects whose owner is gone. So nothing is left of a gateway that was removed for good,
        while kernels outlive each of its Pods.
        """
        if self._owners is None:
            self._owners = [] if self._settings.kubeconfig else await self._own_set()
        return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": self._owners}}

    async def _own_set(self) -> list[dict[str, str]]:
        name = socket.gethostname()  # a Pod has its own name, unless its manifest says otherwise
        call = self._plain.read_namespaced_pod(name, self._settings.namespace, _preload_content=False)
        try:
            owners = orjson.loads(await self._answer(call))["metadata"].get("ownerReferences", [])
        except Refused as error:  # such as a gateway in another namespace, where owners do not count
            log.info("the gateway's own Pod is not known, so its objects have no owner", error=str(error))
            return []
        names = ("apiVersion", "kind", "name", "uid")
        return [{name: owner[name] for name in names} for owner in owners if owner["kind"] == "StatefulSet"]

    async def create_pod(self, manifest: dict[str, Any]) -> None:
        """Make a Pod."""
        name, owned = self._settings.namespace, await self._owned(manifest)
        await self._answer(self._plain.create_namespaced_pod(name, owned, _preload_content=False))

    async def delete_pod(self, name: str) -> bool:
        """Ask for the end of a Pod. Return whether there is one."""
        call = self._plain.delete_namespaced_pod(
            name, self._settings.namespace, grace_period_seconds=GRACE, _preload_content=False
        )
        try:
            await self._answer(call)
        except Refused as error:
            if error.status != _NOT_FOUND:
                raise
            return False
        return True

    async def pods(self) -> tuple[list[dict[str, Any]], str]:
        """Return all Pods of this installation, and the version from which a watch sees all later changes."""
        call = self._plain.list_namespaced_pod(
            self._settings.namespace, label_selector=self._settings.selector, _preload_content=False
        )
        listed = orjson.loads(await self._answer(call))
        return listed["items"], str(listed["metadata"]["resourceVersion"])

    @asynccontextmanager
    async def watch(self, version: str) -> AsyncIterator[AsyncGenerator[tuple[str, dict[str, Any]], None]]:
        """Open a watch: the changes of this installation's Pods since a version, until the API ends it.

        Raises:
            BackendUnavailable: when the API does not answer or fails, also later when the connection breaks.
            Refused: when the API refuses the watch.
        """
        call = self._plain.list_namespaced_pod(
            self._settings.namespace,
            label_selector=self._settings.selector,
            resource_version=version,
            watch=True,
            timeout_seconds=WATCH,
            _preload_content=False,
            _request_timeout=(CALL, WATCH + CALL),
        )
        try:
            response = await call
        except _FAILURES as error:
            raise unavailable() from error
        with closing(response):
            if response.status != _OK:
                _check(response.status, await _body(response))
            async with aclosing(_events(response)) as changes:
                yield changes

    async def log(self, name: str) -> bytes:
        """Return what a Pod has printed."""
        call = self._plain.read_namespaced_pod_log(name, self._settings.namespace, _preload_content=False)
        return await self._answer(call)

    async def ensure_policy(self, manifest: dict[str, Any]) -> bool:
        """Make a network policy, or replace one of the same name that differs. Return whether it was missing."""
        name, namespace = manifest["metadata"]["name"], self._settings.namespace
        try:
            call = self._policies.read_namespaced_network_policy(name, namespace, _preload_content=False)
            there = orjson.loads(await self._answer(call))
        except Refused as error:
            if error.status != _NOT_FOUND:
                raise
            owned = await self._owned(manifest)
            call = self._policies.create_namespaced_network_policy(namespace, owned, _preload_content=False)
            await self._answer(call)
            return True
        if {**there["spec"], "egress": there["spec"].get("egress", [])} == manifest["spec"]:
            return False
        owned = await self._owned(manifest)
        call = self._policies.replace_namespaced_network_policy(name, namespace, owned, _preload_content=False)
        await self._answer(call)
        return True

    async def delete_policy(self, name: str) -> None:
        """Delete a network policy."""
        call = self._policies.delete_namespaced_network_policy(name, self._settings.namespace, _preload_content=False)
        await self._answer(call)

    @asynccontextmanager
    async def run(self, name: str, command: list[str] | None) -> AsyncIterator[Stream]:
        """Run a command in a Pod's container, or reach the input of its first process.

        Args:
            name: name of the Pod.
            command: the command. None means the first process.

        Raises:
            ConnectionFailed: when the container cannot be reached.
        """
        wanted = {"container": CONTAINER, "stdin": True, "stderr": False, "_preload_content": False}
        streams, namespace = self._streams, self._settings.namespace
        try:
            async with asyncio.timeout(CALL):
                if command is None:
                    call = streams.connect_get_namespaced_pod_attach(name, namespace, stdout=True, **wanted)
                else:
                    call = streams.connect_get_namespaced_pod_exec(
                        name, namespace, command=command, stdout=True, **wanted
                    )
                connection = await (await call)
        except _BROKEN as error:
            log.info("a Pod cannot be reached", error=str(error)[:200])
            raise ConnectionFailed("the sandbox cannot be reached now") from error
        async with aclosing(Stream(connection)) as stream:
            yield stream


def _check(status: int, body: bytes) -> None:
    """Check the status of an answer.

    Raises:
        BackendUnavailable: when the API has failed.
        Refused: when the API has refused the call.
    """
    if status >= _FAILED or status == _TOO_MANY:
        log.warning("the cluster's API fails", status=status, answer=body[:300].decode(errors="replace"))
        raise unavailable()
    if status >= 400:  # noqa: PLR2004 - every refusal
        raise Refused(status, _message(body))


async def _body(response: Any) -> bytes:
    """Return the body of an answer that is no watch."""
    try:
        async with asyncio.timeout(CALL):
            return bytes(await response.read())
    except _FAILURES as error:
        raise unavailable() from error


async def _events(response: Any) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
    """Yield the events of a watch.

    Raises:
        BackendUnavailable: when the connection breaks, or brings something else.
    """
    while event := await _event(response):
        yield event


async def _event(response: Any) -> tuple[str, dict[str, Any]] | None:
    """Return the next event of a watch, or None at its end."""
    try:
        if not (line := await response.content.readline()):
            return None
        event = orjson.loads(line)
        return event["type"], event["object"]
    except _FAILURES as error:
        raise unavailable() from error
    except _NO_EVENT as error:
        log.warning("the cluster's API sends no event", error=str(error)[:200])
        raise unavailable() from error


def _message(body: bytes) -> str:
    try:
        return str(orjson.loads(body).get("message", ""))[:300]
    except (orjson.JSONDecodeError, AttributeError):
        return body[:300].decode(errors="replace")
