"""Fake providers with every kind of field. `test_providers_for_real.py` tests the gateway's own."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Page, Route

from tests.clients.browsers import URL

SCHEMA: dict[str, dict[str, Any]] = {
    "endpoint": {"type": "string", "label": "Endpoint", "required": True, "description": "Where it listens."},
    "api_key": {
        "type": "string",
        "label": "API key",
        "required": True,
        "secret": True,
        "description": "Of the project.",
    },
    "token": {"type": "string", "label": "Proxy token", "secret": True},
    "timeout": {"type": "integer", "label": "Timeout", "default": 30, "min": 5, "max": 300},
    "region": {"type": "string", "label": "Region", "options": ["us", "eu"], "default": "us"},
    "verify": {"type": "boolean", "label": "Verify its certificate", "default": True},
}
HIDDEN = "••••"
TIMEOUT_MAX = 300


class FakeProviders:
    """Two providers in memory; `plain` has nothing to set."""

    def __init__(self, page: Page) -> None:
        self.active = "plain"
        self.kept: dict[str, Any] = {"timeout": 30, "region": "us", "verify": True}
        #: last part of the path, and body, of each request
        self.sent: list[tuple[str, dict[str, Any]]] = []
        page.route(f"{URL}/api/admin/sandbox/*", self._answer)

    def _answer(self, route: Route) -> None:
        what = route.request.url.rpartition("/")[2]
        assert route.request.headers["authorization"].startswith("Bearer ")
        if route.request.method == "GET":
            route.fulfill(json={"data": self._providers() if what == "providers" else self._config()})
            return
        body = json.loads(route.request.post_data or "")
        self.sent.append((what, body))
        status, answer = getattr(self, f"_{what}_sent")(body)
        route.fulfill(status=status, json=answer)

    def _providers(self) -> list[dict[str, Any]]:
        languages = ["python", "javascript"]
        full = {"id": "full", "name": "Everything", "description": "Elsewhere.", "config_schema": SCHEMA}
        plain = {"id": "plain", "name": "Plain", "description": "", "config_schema": {}, "tags": ["no sandbox"]}
        return [provider | {"supported_languages": languages} for provider in (plain, full)]

    def _config(self) -> dict[str, Any]:
        shown = {
            name: HIDDEN + value[-4:] if SCHEMA[name].get("secret") else value for name, value in self.kept.items()
        }
        return {"active": self.active, "plain": {}, "full": shown}

    def _config_sent(self, body: dict[str, Any]) -> tuple[int, Any]:
        config = body["config"]
        problems = [
            {"field": name, "problem": "it is required"}
            for name, field in SCHEMA.items()
            if field.get("required") and not config.get(name)
        ]
        if config.get("timeout", 0) > TIMEOUT_MAX:
            problems.append({"field": "timeout", "problem": f"it must be at most {TIMEOUT_MAX}"})
        if problems:
            told = {"error": "The configuration is not valid.", "error_code": "SB002", "resolution": "Mend it."}
            return 400, told | {"details": problems}
        changed = {name: value for name, value in config.items() if not str(value).startswith(HIDDEN)}
        self.kept = {name: self.kept.get(name) for name in config if name not in changed} | changed
        return 200, {"message": "The configuration was saved."}

    def _test_sent(self, body: dict[str, Any]) -> tuple[int, Any]:
        works = body["config"].get("endpoint") == "https://works.example"
        message = "the test program ran" if works else "nobody listens there"
        return 200, {"success": works, "message": message, "latency_ms": 12.4}

    def _active_sent(self, body: dict[str, Any]) -> tuple[int, Any]:
        self.active = body["provider"]
        return 200, {"message": "Activated."}
