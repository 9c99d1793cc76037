"""The proof that the proxy refuses forbidden requests. The gateway itself sends these requests."""

from __future__ import annotations

import base64
import socket
import time

from kernel_image.egress.credentials import password
from sessions.backends.docker.isolation.egress.squid import FORBIDDEN, MISDIRECTED, PORT, TRAP, UNKNOWN_USER, user_of
from sessions.backends.docker.profile import EgressSettings
from sessions.model.errors import NotInitialized
from sessions.model.values import SessionKey

#: seconds for squid to start, and for its answer, which takes 2 s for a wrong password
START, ANSWER = 30.0, 10.0
#: session in whose name the requests are sent; no tenant has this name. The capital letter shows that squid does not
#: change names to small letters.
PROOF = SessionKey("egress", "Proof")
UNLISTED = "unlisted.kernel-gateway.invalid:443"
#: forbidden requests: target, status of the refusal, and what the proxy would allow without the refusal
REFUSALS = (
    (UNLISTED, FORBIDDEN, "a host that is not in `egress_allow`"),
    ("169.254.169.254:80", FORBIDDEN, "an address in place of a name"),
    (f"{TRAP}:80", MISDIRECTED, "a private address by a listed name, at another port"),
    (f"{TRAP}:443", MISDIRECTED, "a private address by a listed name"),
)


def prove_proxy(address: str, egress: EgressSettings) -> None:
    """Send forbidden requests to the proxy, which must already accept connections.

    Each refusal must have its own status. So it cannot be mistaken for the refusal of a wrong password.

    Raises:
        NotInitialized: when the proxy does not answer, or answers with another status.
    """
    right = password(egress.secret, user_of(PROOF))
    for secret, what in ((None, "without a password"), ("wrong", "with a wrong password")):
        if (status := _status(address, UNLISTED, secret)) != UNKNOWN_USER:
            raise NotInitialized(f"the egress proxy does not refuse a request {what}: it answers {status}")
    for target, expected, what in REFUSALS:
        if (status := _status(address, target, right)) != expected:
            raise NotInitialized(f"the egress proxy does not refuse {what}: it answers {status}, not {expected}")


def wait_for(address: str) -> None:
    """Wait until the proxy accepts connections.

    Raises:
        NotInitialized: when the proxy accepts none in time.
    """
    deadline = time.monotonic() + START
    while True:
        try:
            socket.create_connection((address, PORT), 1).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise NotInitialized(f"the egress proxy does not answer: {error}") from error
            time.sleep(0.1)
        else:
            return


def _status(address: str, target: str, secret: str | None) -> int:
    """Ask for a tunnel, and return the status of the answer, or 0 if there was no valid answer."""
    credential = base64.b64encode(f"{user_of(PROOF)}:{secret}".encode()).decode()
    head = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    head += [] if secret is None else [f"Proxy-Authorization: Basic {credential}"]
    try:
        with socket.create_connection((address, PORT), ANSWER) as connection:
            connection.sendall("\r\n".join([*head, "", ""]).encode())
            answer = connection.recv(64)
    except OSError:
        return 0
    words = answer.split()
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
