"""Configurations and their schemas: what fits, what is shown of it, and what comes back from where it was shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from sessions.errors import InvalidRequest
from sessions.providers.base import Config, Field, SandboxProvider, Schema

#: what stands for the part of a secret that is not shown
HIDDEN = "••••"
#: how many characters of a secret are shown, and from which length on: of a short one they would be too much
SHOWN, LONG = 4, 12

TYPES: Mapping[str, type] = {"string": str, "integer": int, "boolean": bool}
WORDS = {"string": "text", "integer": "a whole number", "boolean": "true or false"}


def checked(schema: Schema, config: Mapping[str, object]) -> dict[str, Any]:
    """Check a configuration against its schema; null is as good as nothing.

    Returns:
        all its fields, those that were left out with their defaults.

    Raises:
        InvalidRequest: it does not fit; `fields` in its details names each `field` and its `problem`, never a value.
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
        return "what is shown of a secret is not the secret: enter it anew"
    return None


def masked(schema: Schema, config: Config) -> dict[str, Any]:
    """What may be shown of a configuration: its secrets' last characters, and nothing that the schema does not know."""
    return {
        name: _hidden(config[name]) if field.secret else config[name]
        for name, field in schema.items()
        if name in config
    }


def _hidden(secret: str) -> str:
    """The form in which a secret is shown; that there is none is no secret."""
    if not secret:
        return secret
    return HIDDEN + (secret[-SHOWN:] if len(secret) >= LONG else "")


def merged(schema: Schema, kept: Config, sent: Mapping[str, object]) -> dict[str, object]:
    """Put the secrets that are kept where they were sent back as they are shown: they have not been changed.

    Not so when a destination has changed: a secret would be sent to wherever somebody likes who does not know it. It
    stays as it is shown then, which `checked` refuses.

    Returns:
        the configuration as it is meant, to be checked.
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


# -- what providers ask of what they are given -----------------------------------------------------------------


def accepted(provider: SandboxProvider, config: Mapping[str, object]) -> dict[str, Any]:
    """A configuration as `checked`, that the provider itself has no objection to either.

    Raises:
        InvalidRequest: it is not valid.
    """
    complete = checked(provider.get_config_schema(), config)
    valid, problem = provider.validate_config(complete)
    if not valid:
        raise InvalidRequest(f"The configuration is not valid: {problem}.")
    return complete


def supported(provider: SandboxProvider, language: str) -> str:
    """A language that the provider has.

    Raises:
        InvalidRequest: it has not.
    """
    languages = provider.get_supported_languages()
    if language not in languages:
        raise InvalidRequest(f"there is no language {language[:64]!r}; known: {', '.join(languages)}", field="language")
    return language


def is_url(text: str) -> bool:
    """Whether it can be a service's address; a password is none of it, because it is shown."""
    try:
        parts = urlsplit(text)
        plain = parts.port != 0 and not parts.query and "@" not in parts.netloc
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and plain
    except ValueError:
        return False
