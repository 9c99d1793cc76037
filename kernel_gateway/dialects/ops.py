"""Calls for whoever runs the gateway; they name no tenant and need no key."""

from __future__ import annotations

from http import HTTPStatus

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from kernel_gateway.handlers import BaseHandler, Dialect, Gateway, Route


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
        gateway, metrics = self.gateway, self.gateway.metrics
        metrics.sessions_are((session.doing for session in gateway.registry.all()), gateway.executions())
        metrics.sandboxes.set(len(gateway.sandboxes.all()))
        metrics.warm.set(gateway.warm())
        metrics.trouble_is(gateway.trouble())
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(generate_latest(metrics.registry))


def routes(gateway: Gateway) -> list[Route]:
    """The service calls."""
    return [
        (path, handler, {"gateway": gateway})
        for path, handler in (
            # RAGFlow's clients ask at `/` too, and put what they ask for behind an endpoint with a slash at its end.
            ("//?", HealthHandler),
            ("//?healthz", HealthHandler),
            ("/readyz", ReadyHandler),
            ("/metrics", MetricsHandler),
        )
    ]


DIALECT = Dialect("ops", routes)
