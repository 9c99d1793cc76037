"""Templates: the images that the operator offers, under short names, too. Nothing is built here."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernel_gateway.config import Settings
from kernel_gateway.dialects.e2b.base import ENVD_VERSION, ControlHandler
from kernel_gateway.errors import NotSupported
from kernel_gateway.times import rfc3339
from sessions.model.errors import InvalidRequest, TemplateNotFound
from sessions.model.values import Limits

#: names of the usual image's template
USUAL = ("code-interpreter-v1", "base")
NO_BUILDS = "templates are not built here: they are the images that the gateway's operator offers (setting `images`)"
_LATEST = ":latest"
_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class ImageTemplate:
    """One image as clients know it."""

    #: the first one is also its id
    names: tuple[str, ...]
    #: empty for the usual image
    image: str


def image_templates(settings: Settings) -> Iterator[ImageTemplate]:
    """Yield the templates that a tenant may use: first that of the usual image.

    Args:
        settings: settings of the gateway, as the tenant has them.
    """
    taken = {*USUAL, *_names_of(settings.image)}
    yield ImageTemplate((*USUAL, *_names_of(settings.image)), "")
    for image in settings.images:
        names = tuple(name for name in _names_of(image) if name not in taken)
        if names and _may_have(settings, image):
            taken.update(names)
            yield ImageTemplate(names, image)


def _names_of(image: str) -> tuple[str, ...]:
    """Return the names of an image: shortly without its registry, and without the tag `latest`; the shortest first."""
    short = image.rpartition("/")[2]
    return tuple(dict.fromkeys((short.removesuffix(_LATEST), short, image.removesuffix(_LATEST), image)))


def _may_have(settings: Settings, image: str) -> bool:
    try:
        settings.valid_image(image)
    except InvalidRequest:
        return False
    return True


def find_template(name: str, settings: Settings) -> ImageTemplate:
    """Return the template with this name. The usual image's own names may have any tag.

    Raises:
        TemplateNotFound: when there is none, or the tenant may not use its image.
    """
    templates = list(image_templates(settings))
    if name.partition(":")[0] in USUAL:
        return templates[0]
    for template in templates:
        if name in template.names:
            return template
    known = ", ".join(sorted({*USUAL, *(template.names[0] for template in templates[1:])}))
    raise TemplateNotFound(f"template {name[:64]!r} not found; there are: {known}")


def size_model(limits: Limits) -> dict[str, int]:
    """Return limits as clients see the size of a sandbox, or of a template's sandboxes."""
    return {
        "cpuCount": math.ceil(limits.cpus),
        "memoryMB": limits.memory // _MIB,
        "diskSizeMB": limits.disk // _MIB,
    }


def template_model(template: ImageTemplate, settings: Settings, since: str) -> dict[str, Any]:
    """Return a template as clients see it, with its only build.

    Args:
        template: the template.
        settings: settings of the gateway, as the tenant has them.
        since: time since which the template is offered.
    """
    size = size_model(settings.limits) | {
        "envdVersion": ENVD_VERSION,
        "createdAt": since,
        "updatedAt": since,
    }
    build = str(uuid.uuid5(uuid.NAMESPACE_OID, template.image or settings.image))
    return size | {
        "templateID": template.names[0],
        "names": list(template.names),
        "aliases": list(template.names),
        "public": False,
        "buildID": build,
        "buildStatus": "ready",
        "buildCount": 1,
        "builds": [{"buildID": build, "status": "ready", "finishedAt": since, **size}],
        "spawnCount": 0,
        "lastSpawnedAt": None,
        "createdBy": None,
    }


class TemplateBase(ControlHandler):
    """Base of the handlers for templates."""

    def model(self, template: ImageTemplate) -> dict[str, Any]:
        """Return a template as clients see it. It is offered since the gateway's start."""
        started = self.gateway.templates.of(self.tenant)[0].created_at
        return template_model(template, self.tenant_settings, rfc3339(started))


class TemplatesHandler(TemplateBase):
    """`/templates`, and `/v2/templates`."""

    def get(self) -> None:
        """List the templates."""
        self.finish_json([self.model(template) for template in image_templates(self.tenant_settings)])

    def post(self) -> None:
        """Refuse to build one."""
        raise NotSupported(NO_BUILDS)


class TemplateHandler(TemplateBase):
    """`/templates/{id}`."""

    def get(self, name: str) -> None:
        """Describe a template."""
        self.finish_json(self.model(find_template(name, self.tenant_settings)))

    def refuse(self, _name: str = "") -> None:
        """Refuse to build, change or delete one."""
        raise NotSupported(NO_BUILDS)

    post = patch = refuse


class AliasHandler(TemplateBase):
    """`/templates/aliases/{name}`, by which clients ask whether a template exists."""

    def get(self, name: str) -> None:
        """Return the id of the template with this name."""
        template = find_template(name, self.tenant_settings)
        self.finish_json({"templateID": template.names[0], "public": False})
