"""Endpoints for operators: health, readiness and metrics. They reveal no tenant and need no key."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from kernel_gateway.gateway import Dialect, Gateway, Route
from kernel_gateway.http.handlers import BaseHandler


class HealthHandler(BaseHandler):
    """Answers if the process runs and its event loop responds. Nothing else is checked."""

    public = True

    def get(self) -> None:
        """Answer that the process is alive."""
        self.finish_json({"status": "ok"})


class ReadyHandler(BaseHandler):
    """Answers whether kernels can be started."""

    public = True

    def get(self) -> None:
        """Answer that the gateway is ready, or the reason why it is not."""
        trouble = self.gateway.trouble()
        if trouble is None:
            abilities = {
                "golden_images": self.gateway.golden_images(),
                "sleep": self.gateway.sleep(),
                "pauses": self.gateway.pauses(),
            }
            told = {name: {"on": ability.on, "detail": ability.detail} for name, ability in abilities.items()}
            self.finish_json({"ready": True, **told})
        else:
            self.set_status(HTTPStatus.SERVICE_UNAVAILABLE)
            self.finish_json({"ready": False, **self.render_failure(trouble)})


class MetricsHandler(BaseHandler):
    """Answers with the metrics for Prometheus."""

    public = True

    def get(self) -> None:
        """Send all metrics."""
        gateway, metrics = self.gateway, self.gateway.metrics
        metrics.set_sessions((session.state for session in gateway.registry.all()), gateway.count_executions())
        metrics.tasks.set(len(asyncio.all_tasks()))
        metrics.sandboxes.set(len(gateway.sandboxes.all()))
        metrics.warm.set(gateway.warm_kernels())
        metrics.ports.set(gateway.ports.used)
        metrics.set_trouble(gateway.trouble())
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(generate_latest(metrics.registry))


def routes(gateway: Gateway) -> list[Route]:
    """Return the routes of the endpoints."""
    return [
        (path, handler, {"gateway": gateway})
        for path, handler in (
            # RAGFlow's clients also request `/`, and append paths to an endpoint that may end with a slash.
            ("//?", HealthHandler),
            ("//?healthz", HealthHandler),
            ("/readyz", ReadyHandler),
            ("/metrics", MetricsHandler),
        )
    ]


DIALECT = Dialect("ops", routes)
