"""The limits that one tenant has of its own. The gateway's limits, which all tenants have, are their maximum. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from sessions.model.errors import InvalidRequest, NetworkNotAllowed
from sessions.model.values import Limits, Network, SessionSpec, shown

#: value of one limit
Limit = int | float | bool | frozenset[str]
#: the gateway's setting that is the maximum of each limit
SETTINGS = {
    "sessions": "max_sessions_per_tenant",
    "memory": "memory",
    "cpus": "cpus",
    "disk": "disk",
    "timeout": "max_execute_timeout",
    "images": "images",
    "egress": "egress_tenants",
}


@dataclass(frozen=True, slots=True)
class OwnLimits:
    """The limits that a tenant has of its own. None means that the gateway's limit holds."""

    tenant: str = ""
    #: number of sessions and sandboxes at a time
    sessions: int | None = None
    #: bytes of memory of each kernel
    memory: int | None = None
    #: processors of each kernel
    cpus: float | None = None
    #: bytes of each workspace
    disk: int | None = None
    #: seconds that a cell may run
    timeout: float | None = None
    #: images that sessions may ask for; the usual image needs no mention
    images: frozenset[str] | None = None
    #: whether sessions may have the network `allowlist`
    egress: bool | None = None

    @classmethod
    def of(cls, tenant: str, values: Mapping[str, Any]) -> Self:
        """Return the limits of a tenant from JSON values, by name."""
        return cls(tenant, **{name: _limit(value) for name, value in values.items()})

    def named(self) -> dict[str, Limit]:
        """Return the limits that are set, by name."""
        return {name: value for name in SETTINGS if (value := getattr(self, name)) is not None}

    def as_json(self) -> dict[str, Any]:
        """Return the limits that are set as JSON values."""
        return {name: as_json(value) for name, value in self.named().items()}

    def note(self, name: str) -> str:
        """Return the end of a message about a limit: whose it is and who can change it. Empty: it is the gateway's."""
        if getattr(self, name, None) is None:
            return ""
        return f": this is the limit of tenant {self.tenant!r}, which an admin of the gateway can change"

    # -- as the maximum of other limits ---------------------------------------------------------------------

    def allows(self, name: str, value: Limit) -> bool:
        """Return whether a limit of this name may have a value, because these limits are its maximum."""
        most: Any = getattr(self, name)
        return bool(value <= most)  # a set of images may have no others; a bool may not be true where this is false

    def require(self, name: str, value: Limit) -> None:
        """Check that a tenant's own limit may have a value, because these limits are the gateway's.

        Raises:
            InvalidRequest: when the value is above the gateway's limit.
        """
        if self.allows(name, value):
            return
        most, setting = getattr(self, name), SETTINGS[name]
        if name == "egress":
            told = "egress needs the gateway's settings `egress_allow` and `egress_tenants`, and they do not allow it"
        elif isinstance(value, frozenset):
            told = f"images: {min(value - most)[:200]!r} is not in the gateway's setting `{setting}`"
        else:
            limit = f"{most:g} s" if name == "timeout" else shown(most)
            told = f"{name} must be at most {limit}: the gateway's setting `{setting}` is the most for any tenant"
        raise InvalidRequest(told, field=name, max=as_json(most))

    def within(self, most: OwnLimits) -> OwnLimits:
        """Return these limits without what is above the gateway's limits `most`."""
        kept: dict[str, Any] = {}
        for name, value in self.named().items():
            if most.allows(name, value):
                kept[name] = value
            elif isinstance(value, frozenset):
                kept[name] = value & getattr(most, name)
        return OwnLimits(self.tenant, **kept)

    # -- of sessions ----------------------------------------------------------------------------------------

    def lower(self, spec: SessionSpec) -> SessionSpec:
        """Return the settings of a session whose client asks for nothing, within these limits."""
        if not self.named():
            return spec
        return replace(
            spec,
            limits=self.lowered(spec.limits),
            max_execute_timeout=at_most(spec.max_execute_timeout, self.timeout),
        )

    def lowered(self, limits: Limits) -> Limits:
        """Return the limits of a kernel, lowered to these limits."""
        return replace(
            limits,
            memory=at_most(limits.memory, self.memory),
            cpus=at_most(limits.cpus, self.cpus),
            disk=at_most(limits.disk, self.disk),
        )

    def check(self, limits: Limits) -> None:
        """Check that a new kernel may have such limits.

        Raises:
            InvalidRequest: when one of them is above the tenant's own limit.
        """
        for name in ("memory", "cpus", "disk"):
            most = getattr(self, name)
            if most is not None and getattr(limits, name) > most:
                raise InvalidRequest(
                    f"limit {name} must be at most {shown(most)}{self.note(name)}", field=f"limits.{name}", max=most
                )

    def check_session(self, spec: SessionSpec) -> None:
        """Check that the tenant may have a new session. A session in a sandbox has what the sandbox was given.

        Raises:
            InvalidRequest: when a limit or the image is not within the tenant's own limits.
            NetworkNotAllowed: when the tenant may not use the network.
        """
        if spec.in_sandbox:
            return
        self.check(spec.limits)
        if spec.image:
            self.check_image(spec.image)
        if self.egress is False and spec.network is not Network.NONE:
            raise NetworkNotAllowed(f"this session may not have the network `{spec.network}`{self.note('egress')}")

    def check_image(self, image: str) -> None:
        """Check that a session may ask for an image, which is not the usual one.

        Raises:
            InvalidRequest: when it is not among the tenant's images.
        """
        if self.images is not None and image not in self.images:
            known = ", ".join(["the usual image", *sorted(self.images)])
            raise InvalidRequest(f"image must be one of {known}{self.note('images')}", field="image")


#: returns the limits that a tenant has of its own
OwnLimitsOf = Callable[[str], OwnLimits]

N = TypeVar("N", int, float)


def at_most(value: N, most: N | None) -> N:
    """Return a number, or the maximum if that is lower. None means no maximum."""
    return value if most is None else min(value, most)


def as_json(value: Limit) -> Any:
    """Return a limit as a JSON value."""
    return sorted(value) if isinstance(value, frozenset) else value


def _limit(value: Any) -> Any:
    return frozenset(value) if isinstance(value, list) else value
