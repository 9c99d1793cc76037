"""Requests to the gateway, with the URL and the key that Jupyter Server itself uses for kernels."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from jupyter_server.gateway.gateway_client import GatewayClient
from tornado.httpclient import HTTPClientError, HTTPResponse
from tornado.simple_httpclient import SimpleAsyncHTTPClient
from tornado.web import HTTPError

#: status with which tornado's client reports that a request took too long
TIMED_OUT = 599
#: seconds that the transfer of a file may take, and its maximum bytes
TRANSFER = 3600.0
BYTES_MAX = 2**40


async def ask(method: str, *path: str, body: object = None, **options: Any) -> HTTPResponse:
    """Send one request to the gateway, and return the answer.

    Args:
        method: method of the request.
        path: parts of the URL's path. Each may contain slashes, and all other special characters are quoted.
        body: value that is sent as JSON. None means no body.
        options: options of tornado's `AsyncHTTPClient.fetch`, which override Jupyter Server's; and the URL's `query`.

    Raises:
        HTTPError: when the gateway refuses, with its status and message, or cannot be reached.
    """
    client = GatewayClient.instance()
    url = "/".join([(client.url or "").rstrip("/"), *(quote(part, safe="/") for part in path)])
    if body is not None:
        options |= {"body": json.dumps(body), "headers": {"Content-Type": "application/json"}}
    elif method in {"POST", "PUT"} and "body_producer" not in options:
        options["body"] = ""
    asked = client.load_connection_args(**options) | {name: options[name] for name in options if name != "headers"}
    query = asked.pop("query", "")
    http = SimpleAsyncHTTPClient(force_instance=True, max_body_size=BYTES_MAX)
    try:
        return await http.fetch(f"{url}{query}", method=method, **asked)
    except HTTPClientError as error:
        raise HTTPError(_status(error.code), f"the kernel gateway: {_message(error)}") from error
    except OSError as error:
        raise HTTPError(HTTPStatus.SERVICE_UNAVAILABLE, f"the kernel gateway cannot be reached: {error}") from error
    finally:
        http.close()


async def answer(method: str, *path: str, **options: Any) -> Any:
    """Send one request like `ask`, and return the JSON value of the answer."""
    return json.loads((await ask(method, *path, **options)).body)


def file_place(path: str) -> tuple[str, ...]:
    """Return the parts of the URL of a file's content, for `ask`.

    Args:
        path: path of the file; the first part is the name of its session.
    """
    session, _, inner = path.partition("/")
    return ("v1/sessions", session, "files", inner)


def _status(code: int) -> int:
    if code == TIMED_OUT:
        return HTTPStatus.GATEWAY_TIMEOUT
    # The browser must not ask its user to log in: it is the server's key that the gateway refuses.
    return HTTPStatus.BAD_GATEWAY if code == HTTPStatus.UNAUTHORIZED else code


def _message(error: HTTPClientError) -> str:
    try:  # the native API has the message in `error`, and Jupyter's API beside it, too
        return str(json.loads(error.response.body)["error"]["message"]) if error.response else str(error.message)
    except (ValueError, LookupError, TypeError):
        return str(error.message)
