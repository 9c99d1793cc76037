"""The addresses at which a kernel listens, and the secrets for its messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: default signature scheme of messages: `hmac-` and the name of a hash
SIGNATURE = "hmac-sha256"


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """Address and ports of one kernel, and the secrets for its messages.

    Source: the connection file of jupyter_client, with its CurveZMQ fields.
    """

    transport: str
    ip: str
    shell_port: int
    iopub_port: int
    stdin_port: int
    control_port: int
    hb_port: int
    key: bytes = field(repr=False)
    signature: str = SIGNATURE
    curve_publickey: bytes | None = field(repr=False, default=None)
    curve_secretkey: bytes | None = field(repr=False, default=None)

    def endpoint(self, channel: str) -> tuple[str, int]:
        """Return the address and port of one channel."""
        return self.ip, getattr(self, f"{channel}_port")

    def url(self, channel: str) -> str:
        """Return the ZMQ endpoint of one channel."""
        port = getattr(self, f"{channel}_port")
        separator = "-" if self.transport == "ipc" else ":"
        return f"{self.transport}://{self.ip}{separator}{port}"

    @property
    def ports(self) -> frozenset[int]:
        """The ports of all channels."""
        return frozenset((self.shell_port, self.iopub_port, self.stdin_port, self.control_port, self.hb_port))

    def file(self) -> dict[str, Any]:
        """Return the content of a Jupyter connection file, as the kernel reads it."""
        content: dict[str, Any] = {
            "transport": self.transport,
            "ip": self.ip,
            "key": self.key.decode(),
            "signature_scheme": self.signature,
            **{f"{name}_port": getattr(self, f"{name}_port") for name in ("shell", "iopub", "stdin", "control", "hb")},
        }
        if self.curve_publickey and self.curve_secretkey:
            content["curve_publickey"] = self.curve_publickey.decode()
            content["curve_secretkey"] = self.curve_secretkey.decode()
        return content
