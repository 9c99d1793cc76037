"""Starts tornado's HTTP server behind our listener, with the limits of the settings."""

from __future__ import annotations

import ssl

import structlog
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application

from kernel_gateway.config import Settings
from kernel_gateway.fair_loop import FairLoop
from kernel_gateway.wire import descriptors
from kernel_gateway.wire.admission import Admission, CountedRequests
from kernel_gateway.wire.connection_metrics import ConnectionMetrics
from kernel_gateway.wire.host_header import PlainHosts
from kernel_gateway.wire.large_bodies import RequestsInTurn
from kernel_gateway.wire.listener import BACKLOG, Listener

log = structlog.get_logger()

#: seconds for which a connection may be idle between two requests
IDLE = 120
#: maximum bytes of the head of a request
MAX_HEAD = 32768


def serve(
    application: Application,
    settings: Settings,
    tls: ssl.SSLContext | None,
    metrics: ConnectionMetrics,
    *,
    max_body: int,
    fair_loop: FairLoop,
) -> tuple[HTTPServer, Listener]:
    """Serve an application on the address of the settings.

    Args:
        application: answers the requests.
        settings: contains the address and the limits of connections.
        tls: TLS context for https. None means plain http.
        metrics: counts connections.
        max_body: maximum bytes of a request's body, unless its handler allows more.
        fair_loop: gives each request its turn that is large, or beyond its tenant's share.

    Returns:
        the server, which owns the open connections, and the listener, which accepts new connections.

    Raises:
        OSError: when the gateway cannot listen on the address.
    """
    admission = _admission(settings, metrics)
    metrics.open.set_function(lambda: admission.open)
    server = HTTPServer(
        CountedRequests(PlainHosts(RequestsInTurn(application, fair_loop)), admission),
        max_body_size=max_body,
        idle_connection_timeout=IDLE,
        max_header_size=MAX_HEAD,
    )
    listener = Listener(server, admission, tls, metrics.paused)
    try:
        listener.listen(bind_sockets(settings.port, settings.host, backlog=BACKLOG))
    except OSError as error:  # the system's message does not contain the address
        raise OSError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from error
    return server, listener


def _admission(settings: Settings, metrics: ConnectionMetrics) -> Admission:
    wanted = settings.max_connections
    most = descriptors.places(wanted)
    if most < wanted:
        log.warning("few file descriptors: there can be fewer connections", connections=most, wanted=wanted)
    of_address = max(1, settings.max_connections_per_address * most // wanted)
    return Admission(most, of_address, metrics.refused, settings.share)
