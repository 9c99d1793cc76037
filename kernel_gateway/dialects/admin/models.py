"""Models of the requests, and descriptions of providers. Unknown fields are ignored, as RAGFlow does."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, Field

from sessions.providers.base import SandboxProvider, Schema


class ProviderConfig(BaseModel):
    """A provider's configuration."""

    provider_type: str
    config: dict[str, Any] = Field(default_factory=dict)


class SaveConfig(ProviderConfig):
    """A configuration to save."""

    set_active: bool = True
    test_connection: bool = False


class ActivateProvider(BaseModel):
    """The provider to activate."""

    provider: str


def schema_json(schema: Schema) -> dict[str, Any]:
    """Return a configuration's schema as JSON, from which clients make a form. Empty attributes are left out."""
    return {
        name: {
            key: value
            for key, value in asdict(field).items()
            if key in {"type", "required", "secret", "label"}
            or (value is not None and value not in ("", ()) and value is not False)
        }
        for name, field in schema.items()
    }


def provider_json(provider: SandboxProvider) -> dict[str, Any]:
    """Return the description of a provider as JSON."""
    return {
        "id": provider.id,
        "name": provider.name,
        "description": provider.description,
        "icon": provider.id,
        "tags": ["sandbox" if provider.sandboxed else "no sandbox"],
        "supported_languages": provider.get_supported_languages(),
    }
