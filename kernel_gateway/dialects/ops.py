"""Calls for whoever runs the gateway; they name no tenant and need no key."""

from __future__ import annotations

from collections import Counter
from http import HTTPStatus

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from kernel_gateway.handlers import BaseHandler, Dialect, Gateway, Route
from sessions.states import State


class HealthHandler(BaseHandler):
    """The process lives and its loop turns; nothing else is asked."""

    public = True

    def get(self) -> None:
        """Say so."""
        self.finish_json({"status": "ok"})


class ReadyHandler(BaseHandler):
    """Kernels can be started."""

    public = True

    def get(self) -> None:
        """Say so, or why not."""
        trouble = self.gateway.trouble()
        if trouble is None:
            self.finish_json({"ready": True})
        else:
            self.set_status(HTTPStatus.SERVICE_UNAVAILABLE)
            self.finish_json({"ready": False, **self.render_failure(trouble)})


class MetricsHandler(BaseHandler):
    """Prometheus reads here."""

    public = True

    def get(self) -> None:
        """All metrics."""
        metrics, registry = self.gateway.metrics, self.gateway.registry
        states = Counter(session.doing for session in registry.all())
        for state in State:
            metrics.sessions.labels(state.value).set(states[state])
        metrics.sandboxes.set(len(self.gateway.sandboxes.all()))
        metrics.warm.set(self.gateway.warm())
        metrics.ready.set(self.gateway.trouble() is None)
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(generate_latest(metrics.registry))


def routes(gateway: Gateway) -> list[Route]:
    """The service calls."""
    return [
        (path, handler, {"gateway": gateway})
        for path, handler in (("/healthz", HealthHandler), ("/readyz", ReadyHandler), ("/metrics", MetricsHandler))
    ]


DIALECT = Dialect("ops", routes)
