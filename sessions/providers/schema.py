"""Configurations and their schemas: check them, mask their secrets, and merge masked secrets that clients send back."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from sessions.model.errors import InvalidRequest
from sessions.providers.base import Config, Field, SandboxProvider, Schema

#: replaces the hidden part of a secret
HIDDEN = "••••"
#: characters of a secret that are shown, and the minimum length of such a secret: a shorter one is hidden completely
SHOWN, LONG = 4, 12

#: characters of a URL
URL_MAX = 2048
#: host and port of a URL
_SERVER = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{0,5})?")

TYPES: Mapping[str, type] = {"string": str, "integer": int, "boolean": bool}
WORDS = {"string": "text", "integer": "a whole number", "boolean": "true or false"}


def checked(schema: Schema, config: Mapping[str, object]) -> dict[str, Any]:
    """Check a configuration against its schema. A null counts as a missing field.

    Returns:
        all fields of the configuration, with defaults for the missing ones.

    Raises:
        InvalidRequest: when a field does not fit. `fields` in the details has each `field` and `problem`, but no value.
    """
    problems = [{"field": name, "problem": "there is no such field"} for name in config if name not in schema]
    complete: dict[str, Any] = {}
    for name, field in schema.items():
        value = config.get(name)
        value = field.default if value is None else value
        if problem := _problem(field, value):
            problems.append({"field": name, "problem": problem})
        elif value is not None:
            complete[name] = value
    if problems:
        told = "; ".join(f"{problem['field']}: {problem['problem']}" for problem in problems)
        raise InvalidRequest(f"The configuration is not valid: {told}.", fields=problems)
    return complete


def _problem(field: Field, value: object) -> str | None:
    if value is None or value == "":
        return "it is required" if field.required else None
    if not isinstance(value, TYPES[field.type]) or (field.type == "integer" and isinstance(value, bool)):
        return f"it must be {WORDS[field.type]}"
    if field.min is not None and isinstance(value, int) and value < field.min:
        return f"it must be at least {field.min}"
    if field.max is not None and isinstance(value, int) and value > field.max:
        return f"it must be at most {field.max}"
    return _refused_text(field, value) if isinstance(value, str) else None


def _refused_text(field: Field, value: str) -> str | None:
    if field.options and value not in field.options:
        return f"it must be one of {', '.join(field.options)}"
    if field.secret and value.startswith(HIDDEN):
        return "the masked form of a secret is not the secret: enter it anew"
    return None


def masked(schema: Schema, config: Config) -> dict[str, Any]:
    """Return a configuration with masked secrets (last characters only) and without fields unknown to the schema."""
    return {
        name: _hidden(config[name]) if field.secret else config[name]
        for name, field in schema.items()
        if name in config
    }


def _hidden(secret: str) -> str:
    """Return the masked form of a secret. An empty secret is shown as empty."""
    if not secret:
        return secret
    return HIDDEN + (secret[-SHOWN:] if len(secret) >= LONG else "")


def merged(schema: Schema, kept: Config, sent: Mapping[str, object]) -> dict[str, object]:
    """Replace each secret that a client sent back in its masked form by the stored secret: it has not been changed.

    When a destination has changed, masked secrets stay masked and `checked` refuses them. Otherwise a client that does
    not know a secret could have it sent to any address.

    Returns:
        the complete configuration, not checked yet.
    """
    if any(
        field.destination and _given(name, field, sent) != _given(name, field, kept) for name, field in schema.items()
    ):
        return dict(sent)
    unchanged = {
        name: kept[name]
        for name, field in schema.items()
        if field.secret and kept.get(name) and sent.get(name) == _hidden(kept[name])
    }
    return {**sent, **unchanged}


def _given(name: str, field: Field, config: Mapping[str, object]) -> object:
    value = config.get(name)
    return field.default if value is None else value


# -- checks that providers share -------------------------------------------------------------------------------


def accepted(provider: SandboxProvider, config: Mapping[str, object]) -> dict[str, Any]:
    """Check a configuration against the schema and against the provider's own rules.

    Raises:
        InvalidRequest: when the configuration is not valid.
    """
    complete = checked(provider.get_config_schema(), config)
    valid, problem = provider.validate_config(complete)
    if not valid:
        raise InvalidRequest(f"The configuration is not valid: {problem}.")
    return complete


def supported(provider: SandboxProvider, language: str) -> str:
    """Return `language` if the provider supports it.

    Raises:
        InvalidRequest: when the provider does not support the language.
    """
    languages = provider.get_supported_languages()
    if language not in languages:
        raise InvalidRequest(f"there is no language {language[:64]!r}; known: {', '.join(languages)}", field="language")
    return language


def is_plain(text: str) -> bool:
    """Return True if the text fits into a header and an address: ASCII on one line."""
    return text.isascii() and text.isprintable()


def is_url(text: str) -> bool:
    """Return True if the text is a URL of a service. A URL with a password is refused, because URLs are shown."""
    if len(text) > URL_MAX or not is_plain(text) or " " in text:
        return False  # Python's parser drops line breaks, and HTTP clients refuse them
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
        if ":" in host:
            ipaddress.IPv6Address(host)
        host.encode("idna")  # refuses empty labels, and those that are too long
        port = parts.port
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(_SERVER.fullmatch(parts.netloc)) and port != 0 and not parts.query
