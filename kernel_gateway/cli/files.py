"""`kernel-gateway files`: list, fetch, send and delete files of a session."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from kernel_gateway.cli.client_command import add_examples, add_session, client_command, print_list
from kernel_gateway.cli.remote import PIECE, Failed, Remote, path_of
from kernel_image.file_names import text_of

#: in place of a local file: standard input or output
STANDARD = "-"
ACTIONS = {
    "ls": "list a directory",
    "get": "fetch a file",
    "put": "send a file; the session is made on first use",
    "rm": "delete a file, or a directory with all that is in it",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's actions."""
    parsers = parser.add_subparsers(dest="action", required=True, metavar="ACTION", help="what to do")
    listing, get, put, remove = (
        parsers.add_parser(name, help=text, description=text) for name, text in ACTIONS.items()
    )
    listing.add_argument("path", nargs="?", default="", metavar="PATH", help="the directory (default: the workspace)")
    listing.add_argument("--json", action="store_true", help="print the entries as JSON")
    get.add_argument("path", metavar="PATH", help="the file in the session")
    get.add_argument("file", nargs="?", metavar="FILE", help="the local file to write; - or none: standard output")
    put.add_argument("file", metavar="FILE", help="the local file; -: standard input")
    put.add_argument("path", nargs="?", metavar="PATH", help="the file in the session (default: the local file's name)")
    remove.add_argument("path", metavar="PATH", help="the file or directory in the session")
    add_session(parser, listing, get, put, remove)
    add_examples(
        parser,
        "kernel-gateway files ls -s demo",
        "kernel-gateway files put -s demo data.csv",
        "kernel-gateway files get -s demo results/plot.png plot.png",
        "tar c src | kernel-gateway files put -s demo - src.tar",
        "kernel-gateway files rm -s demo data.csv",
    )


@client_command
def main(arguments: argparse.Namespace, remote: Remote) -> None:
    """Run one action."""
    {"ls": _list, "get": _get, "put": _put, "rm": _remove}[arguments.action](arguments, remote)


def _list(arguments: argparse.Namespace, remote: Remote) -> None:
    reply = remote.json("GET", f"{_path(arguments, arguments.path)}?list")
    if reply["truncated"]:
        print("kernel-gateway: the directory has more entries than a listing holds", file=sys.stderr)
    rows = ((each["type"], str(each["size"]), _time(each["modified"]), each["name"]) for each in reply["entries"])
    print_list(reply, rows, json=arguments.json)


def _get(arguments: argparse.Namespace, remote: Remote) -> None:
    receive(remote, _path(arguments, arguments.path), arguments.file)


def _put(arguments: argparse.Namespace, remote: Remote) -> None:
    if arguments.path is None and arguments.file == STANDARD:
        raise Failed("standard input has no name: give the PATH, too")
    path = _path(arguments, text_of(Path(arguments.file).name) if arguments.path is None else arguments.path)
    with _source(arguments.file) as source:
        size = None if arguments.file == STANDARD else _size(source)
        length = {} if size is None else {"Content-Length": str(size)}
        with remote.answer("PUT", path, _pieces(source, size), **length):
            pass


def _remove(arguments: argparse.Namespace, remote: Remote) -> None:
    remote.json("DELETE", _path(arguments, arguments.path))


def _path(arguments: argparse.Namespace, path: str) -> str:
    return f"{path_of(arguments.session)}/files/{quote(path.encode(errors='surrogateescape'))}"


def _time(seconds: float) -> str:
    """Return a time as text (UTC); user code may give its files any time."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):
        return "-"


def _source(file: str) -> BinaryIO:
    return os.fdopen(os.dup(0), "rb") if file == STANDARD else Path(file).open("rb")


def _size(source: BinaryIO) -> int | None:
    """Return the bytes of a file; None: of a pipe, a device, or a file whose content the system makes as it is read."""
    described = os.fstat(source.fileno())
    return described.st_size or None if stat.S_ISREG(described.st_mode) else None


def _pieces(source: BinaryIO, size: int | None) -> Iterator[bytes]:
    """Yield what is to be sent: all, or as many bytes as were announced, also if the file grows meanwhile.

    Raises:
        Failed: when the file cannot be read, or is shorter than announced.
    """
    left = sys.maxsize if size is None else size
    try:
        while left and (piece := source.read(min(PIECE, left))):
            left -= len(piece)
            yield piece
    except OSError as error:
        raise Failed(f"{source.name}: {error}") from None
    if size is not None and left:
        raise Failed(f"{source.name} became shorter while it was sent; the session's file is as it was")


def receive(remote: Remote, path: str, file: str | None) -> None:
    """Write an answer into a local file, or to standard output. A refusal leaves the local file as it is.

    Args:
        remote: the gateway.
        path: path of the API.
        file: the local file; None and "-": standard output.

    Raises:
        Failed: when the gateway refuses, or the connection breaks off; then the file is not complete.
        OSError: when the file cannot be written.
    """
    with remote.answer("GET", path) as pieces:
        if file in {None, STANDARD}:
            sys.stdout.buffer.writelines(pieces)
            sys.stdout.buffer.flush()
        else:
            with Path(str(file)).open("wb") as target:
                target.writelines(pieces)
