"""The program of the namespace behind the egress proxy: name server, http and https at every address.

Each contact is one line of JSON on standard output: what was asked, local address, port. Standard library only.

Arguments of the process: file with the certificate and key of the https server.
"""

from __future__ import annotations

import json
import socket
import socketserver
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

PUBLIC, METADATA = "203.0.113.7", "169.254.169.254"
#: answers of the name server, by the first label of a name; any other name is public
ANSWERS = {"inside": [METADATA], "mixed": [PUBLIC, METADATA]}
_ROUNDS = count()
_A, _AAAA = 1, 28


def main(certificate: str) -> None:
    """Answer until killed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    servers: list[socketserver.BaseServer] = [_names()]
    for port in (80, 443, 8080):
        web = ThreadingHTTPServer(("0.0.0.0", port), Web)  # noqa: S104 - in its own namespace
        if port == 443:
            web.socket = context.wrap_socket(web.socket, server_side=True)
        servers.append(web)
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    say("ready")
    threading.Event().wait()


def say(*words: object) -> None:
    """Report a contact."""
    print(json.dumps(words), flush=True)


class Web(BaseHTTPRequestHandler):
    """Answers with the head of the request."""

    def do_GET(self) -> None:
        """Answer."""
        address, port = self.connection.getsockname()[:2]
        say("http", address, port)
        body = json.dumps({"address": address, "headers": dict(self.headers)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Report nothing more."""


class Names(socketserver.BaseRequestHandler):
    """Answers questions for addresses. Source: RFC 1035, 4.1."""

    def handle(self) -> None:
        """Answer one question."""
        data, receiver = self.request
        end = data.index(b"\0", 12) + 5
        kind = int.from_bytes(data[end - 4 : end - 2], "big")
        name = _name(data[12 : end - 4])
        say("dns", name, 53)
        found = self._answers(name) if kind == _A else [IPV6] if kind == _AAAA and name.startswith("open.") else []
        records = b"".join(
            b"\xc0\x0c" + kind.to_bytes(2, "big") + b"\x00\x01" + bytes(4) + len(each).to_bytes(2, "big") + each
            for each in found
        )
        head = data[:2] + b"\x81\x80\x00\x01" + len(found).to_bytes(2, "big") + bytes(4)
        receiver.sendto(head + data[12:end] + records, self.client_address)

    def _answers(self, name: str) -> list[bytes]:
        label = name.partition(".")[0]
        if label == "rebind":  # public and metadata in turn, and no answer may be kept
            return [socket.inet_aton((PUBLIC, METADATA)[next(_ROUNDS) % 2])]
        return [socket.inet_aton(address) for address in ANSWERS.get(label, [PUBLIC])]


IPV6 = socket.inet_pton(socket.AF_INET6, "2001:db8::7")


def _name(question: bytes) -> str:
    labels, at = [], 0
    while size := question[at]:
        labels.append(question[at + 1 : at + 1 + size].decode())
        at += 1 + size
    return ".".join(labels)


def _names() -> socketserver.BaseServer:
    return socketserver.ThreadingUDPServer(("198.51.100.53", 53), Names)


if __name__ == "__main__":
    main(sys.argv[1])
