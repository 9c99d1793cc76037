"""What admins send, and what they are shown of providers. Unknown fields are left alone, as RAGFlow does."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, Field

from sessions.providers.base import SandboxProvider, Schema


class Sent(BaseModel):
    """A provider's configuration."""

    provider_type: str
    config: dict[str, Any] = Field(default_factory=dict)


class Saved(Sent):
    """One to be kept."""

    set_active: bool = True
    test_connection: bool = False


class Chosen(BaseModel):
    """The provider to be used."""

    provider: str


def schema_json(schema: Schema) -> dict[str, Any]:
    """A schema as forms are made from it: without what a field has not."""
    return {
        name: {
            key: value
            for key, value in asdict(field).items()
            if key in {"type", "required", "secret", "label"}
            or (value is not None and value not in ("", ()) and value is not False)
        }
        for name, field in schema.items()
    }


def described(provider: SandboxProvider) -> dict[str, Any]:
    """A provider, for people."""
    return {
        "id": provider.id,
        "name": provider.name,
        "description": provider.description,
        "icon": provider.id,
        "tags": ["sandbox" if provider.sandboxed else "no sandbox"],
        "supported_languages": provider.get_supported_languages(),
    }
