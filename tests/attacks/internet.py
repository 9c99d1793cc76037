"""The program of the namespace that represents the internet: it answers at every address.

Each contact is one line of JSON on standard output: protocol, local address, port. Standard library only.
"""

from __future__ import annotations

import json
import selectors
import socket

TCP_PORTS = (22, 53, 80, 443, 8080)
UDP_PORTS = (53, 123)
#: the resolver's answer to every question
ANSWER = "203.0.113.99"
#: socket option that shows the target address of a datagram. Source: linux/in.h
_IP_PKTINFO = 8


def main() -> None:
    """Answer until killed."""
    selector = selectors.DefaultSelector()
    for port in TCP_PORTS:
        selector.register(socket.create_server(("0.0.0.0", port)), selectors.EVENT_READ, _accept)  # noqa: S104
    for port in UDP_PORTS:
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        receiver.bind(("0.0.0.0", port))  # noqa: S104
        selector.register(receiver, selectors.EVENT_READ, _receive)
    _say("ready")
    while True:
        for key, _ in selector.select():
            key.data(key.fileobj)


def _say(*words: object) -> None:
    print(json.dumps(words), flush=True)


def _accept(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        _say("tcp", *connection.getsockname())


def _receive(receiver: socket.socket) -> None:
    data, extra, _, sender = receiver.recvmsg(4096, 256)
    here = socket.inet_ntoa(extra[0][2][8:12])
    _say("udp", here, receiver.getsockname()[1])
    info = extra[0][2][:4] + socket.inet_aton(here) + socket.inet_aton(here)
    answer = _resolved(data) if receiver.getsockname()[1] == 53 else b"!"
    receiver.sendmsg([answer], [(socket.IPPROTO_IP, _IP_PKTINFO, b"\0" * 4 + info[4:])], 0, sender)


def _resolved(question: bytes) -> bytes:
    """Return a DNS answer with one address. Source: RFC 1035, 4.1."""
    end = question.index(b"\0", 12) + 5
    record = b"\xc0\x0c\x00\x01\x00\x01" + (60).to_bytes(4, "big") + b"\x00\x04" + socket.inet_aton(ANSWER)
    return question[:2] + b"\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00" + question[12:end] + record


if __name__ == "__main__":
    main()
