"""Settings as flags: each field of `Settings` becomes one flag."""

from __future__ import annotations

import argparse

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from kernel_gateway.cli.flags import add_config, shown
from kernel_gateway.config import Settings, load, settings_by_group
from sessions.model.errors import InvalidRequest


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting, grouped by subject; its help contains the environment variable and the default."""
    parser.usage = "%(prog)s [-h] [--FLAG [VALUE] ...]"  # the names of all flags would fill a screen
    add_config(parser)
    for subject, settings in settings_by_group().items():
        group = parser.add_argument_group(subject)
        for name, field in settings.items():
            _add_setting(group, name, field)


def _add_setting(group: argparse._ArgumentGroup, name: str, field: FieldInfo) -> None:
    default = f" (default: {shown(field.default)})" if field.default not in (None, "", {}, []) else ""
    switch: dict[str, str] = {"nargs": "?", "const": "true"} if field.annotation is bool else {}
    group.add_argument(
        f"--{name.replace('_', '-')}",
        metavar="VALUE",
        default=argparse.SUPPRESS,
        help=f"{field.description}{default} [KERNEL_GATEWAY_{name.upper()}]".replace("%", "%%"),
        **switch,  # type: ignore[arg-type]
    )


def settings_from(arguments: argparse.Namespace) -> Settings:
    """Return the settings; see `load`.

    Raises:
        InvalidRequest: when the file, the environment or a value is not valid. The message has a line for each value.
    """
    flags = vars(arguments).items()
    given = {name: value for name, value in flags if name in Settings.model_fields and value is not None}
    try:
        return load(given, getattr(arguments, "config", None))
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        raise InvalidRequest("\n".join(map(_told, problems)), field="settings") from None


def _told(problem: ErrorDetails) -> str:
    where = ".".join(map(str, problem["loc"]))
    unknown = problem["type"] == "extra_forbidden"
    what = "is no setting" if unknown else problem["msg"].removeprefix("Value error, ")  # of our own checks
    return f"{where or 'settings'}: {what}"
