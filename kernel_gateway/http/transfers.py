"""Sends files of a sandbox to clients in pieces, so the memory use does not depend on the size of a file."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from http import HTTPStatus
from urllib.parse import quote

from tornado.httputil import HTTPHeaders, format_timestamp
from tornado.iostream import StreamClosedError

from kernel_gateway.errors import RangeNotSatisfiable
from kernel_gateway.http.handlers import BaseHandler
from sessions.guest.reading import TAG, OpenFile, Part
from sessions.model.errors import SessionError

#: seconds without progress after which the connection to a client that reads nothing is closed
STALL_TIMEOUT = 60.0


#: the part of a file that answers a HEAD request
NO_CONTENT = Part(0, 0)
#: the only form of the Range header that is answered with a part. Source: RFC 9110, 14.1.2
_RANGE = re.compile("bytes=([0-9]{0,18})-([0-9]{0,18})")
#: the first and last second of the years 1 to 9999, in seconds since 1970
_TIMES = (-62_135_596_800, 253_402_300_799)


def wanted_part(headers: HTTPHeaders) -> Part | None:
    """Return the part of a file that a request asks for, or None for the whole file.

    A Range header that is not one range of bytes counts as a request for the whole file, and so does an If-Range header
    that is not one of our ETags. Source: RFC 9110, 13.1.5 and 14.2.
    """
    found = _RANGE.fullmatch(headers.get("Range", ""))
    if found is None or not any(found.groups()):
        return None
    first, last = found.groups()
    tag = None
    if "If-Range" in headers:
        tag = headers["If-Range"][1:-1]
        if headers["If-Range"] != f'"{tag}"' or not TAG.fullmatch(tag):
            return None
    if not first:
        return Part(-int(last), None if int(last) else 0, tag)
    if last and int(last) < int(first):
        return None
    return Part(int(first), int(last) - int(first) + 1 if last else None, tag)


async def send_headers(
    handler: BaseHandler, file: OpenFile, path: str, size: int, media_type: str = "application/octet-stream"
) -> None:
    """Send the headers of an answer with a file.

    Args:
        handler: handler of the request.
        file: the file.
        path: path of the file; its last part is the name that the client sees.
        size: size of the body in bytes.
        media_type: media type of the content.
    """
    handler.set_header("Content-Type", media_type)
    handler.set_header("Content-Length", str(size))
    handler.set_header("Accept-Ranges", "bytes")
    handler.set_header("ETag", f'"{file.tag}"')
    if _TIMES[0] <= file.modified <= _TIMES[1]:  # user code may set an invalid time
        handler.set_header("Last-Modified", format_timestamp(file.modified))
    # Source: RFC 6266 with RFC 5987. The name is quoted, so that it cannot add other headers.
    name = quote(path.rsplit("/", 1)[-1], safe="")
    handler.set_header("Content-Disposition", f"attachment; filename*=UTF-8''{name}")
    await handler.flush()  # if an answer ended before its headers are sent, tornado would set its own ETag


async def send_file(
    handler: BaseHandler, file: OpenFile, path: str, media_type: str = "application/octet-stream"
) -> None:
    """Answer with a file, or with the part that the request asks for.

    Args:
        handler: handler of the request.
        file: the file to send.
        path: path of the file; its last part is the name that the client sees.
        media_type: media type of the content. The answer's headers keep a browser from running any of it.

    Raises:
        RangeNotSatisfiable: when the wanted part is behind the end of the file.
    """
    if file.partial:
        if not file.count:
            raise RangeNotSatisfiable(size=file.size)
        handler.set_status(HTTPStatus.PARTIAL_CONTENT)
        handler.set_header("Content-Range", f"bytes {file.start}-{file.start + file.count - 1}/{file.size}")
    try:
        async with asyncio.timeout(STALL_TIMEOUT):
            await send_headers(handler, file, path, file.count, media_type)
    except (StreamClosedError, TimeoutError):
        handler.http.close()
        return
    await send_pieces(handler, file.content)


async def send_pieces(handler: BaseHandler, pieces: AsyncIterator[bytes]) -> None:
    """Send a body in pieces. Each piece waits until the client has received the piece before."""
    try:
        async for piece in pieces:
            handler.write(piece)
            async with asyncio.timeout(STALL_TIMEOUT):
                await handler.flush()
    except (SessionError, TimeoutError):
        # The head is already sent, so only closing the connection early shows the failure to the client.
        handler.http.close()
    except StreamClosedError:
        return  # the client has left; returning here also ends the tool that reads the file
