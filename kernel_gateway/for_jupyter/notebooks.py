"""A kernel manager for programs that run whole notebooks: nbclient, nbconvert and papermill.

Jupyter Server's own classes for a gateway are made for its web server. Here they have what these programs need, too.
"""

from __future__ import annotations

from threading import Thread

import websocket
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_server.gateway.gateway_client import GatewayClient
from jupyter_server.gateway.managers import GatewayKernelClient, GatewayKernelManager
from jupyter_server.utils import url_escape, url_path_join
from traitlets import Type


class NotebookClient(GatewayKernelClient):
    """The connection to one kernel."""

    async def start_channels(self, *channels: bool, **named: bool) -> None:  # type: ignore[override] # as upstream's
        """Connect with the key. Jupyter Server's own class sends none, and no setting makes it.

        Raises:
            WebSocketBadStatusException: when the gateway refuses, with its answer.
            OSError: when the gateway cannot be reached.
        """
        settings = GatewayClient.instance()
        certificates = {"ca_certs": settings.ca_certs, "certfile": settings.client_cert, "keyfile": settings.client_key}
        self.channel_socket = websocket.create_connection(
            url_path_join(settings.ws_url or "", settings.kernels_endpoint, url_escape(self.kernel_id), "channels"),
            header={settings.auth_header_key: f"{settings.auth_scheme} {settings.auth_token}"},
            timeout=settings.KERNEL_LAUNCH_TIMEOUT,
            enable_multithread=True,
            sslopt={name: path for name, path in certificates.items() if path},
        )
        AsyncKernelClient.start_channels(self, *channels, **named)
        self.response_router = Thread(target=self._route_responses)
        self.response_router.start()

    async def is_alive(self) -> bool:
        """Ask the manager: Jupyter Server's class asks a provisioner, which a remote kernel does not have."""
        return self.parent is not None and bool(await self.parent.is_alive() and self.parent.has_kernel)

    _async_is_alive = is_alive

    def stop_channels(self) -> None:
        """Close the socket, also if the gateway closed it first. Without a connection there is nothing to close."""
        if self.channel_socket is not None:
            super().stop_channels()
            self.channel_socket.shutdown()


class NotebookKernel(GatewayKernelManager):
    """One kernel of the gateway, for one run of a notebook. Its session ends with the run."""

    client_factory = Type(klass=NotebookClient)
