"""The Jupyter dialect, `/api`: kernels, sessions, channels and files as Jupyter clients use them.

Source: Jupyter Server's REST API and WebSocket protocols.
"""

from __future__ import annotations

from kernel_gateway.dialects.jupyter.base import UnsupportedHandler
from kernel_gateway.dialects.jupyter.channels import ChannelsHandler
from kernel_gateway.dialects.jupyter.contents import ContentsHandler
from kernel_gateway.dialects.jupyter.file_versions import FileVersionHandler, FileVersionsHandler
from kernel_gateway.dialects.jupyter.kernels import (
    InterruptHandler,
    KernelHandler,
    KernelsHandler,
    KernelSpecHandler,
    KernelSpecsHandler,
    LogoHandler,
    MeHandler,
    RestartHandler,
    StatusHandler,
    VersionHandler,
)
from kernel_gateway.dialects.jupyter.notebooks import Notebooks, NotebooksHandler, OneNotebookHandler
from kernel_gateway.dialects.jupyter.open_webui import PREFIX as OPEN_WEBUI
from kernel_gateway.dialects.jupyter.openapi import DescriptionHandler
from kernel_gateway.gateway import Dialect, Gateway, Route


def routes(gateway: Gateway) -> list[Route]:
    """Return the routes of the API."""
    kernels = rf"(?:{OPEN_WEBUI})?/api/kernels"
    kernel = kernels + r"/([\w.-]+)"
    table = (
        (r"/api/?", VersionHandler),
        (r"/api/status", StatusHandler),
        (r"/api/me", MeHandler),
        (r"/api/(?:swagger|spec)\.(json|yaml)", DescriptionHandler),
        (r"/api/kernelspecs/?", KernelSpecsHandler),
        (r"/api/kernelspecs/([^/]+)", KernelSpecHandler),
        (r"/kernelspecs/([^/]+)/([^/]+)", LogoHandler),
        (kernels + "/?", KernelsHandler),
        (kernel, KernelHandler),
        (kernel + "/interrupt", InterruptHandler),
        (kernel + "/restart", RestartHandler),
        (kernel + "/channels", ChannelsHandler),
        (r"/api/contents(/.+)/checkpoints", FileVersionsHandler),
        (r"/api/contents(/.+)/checkpoints/(checkpoint)", FileVersionHandler),
        (r"/api/contents(/.*)?", ContentsHandler),
        (r"/api/.*", UnsupportedHandler),
    )
    notebooks = Notebooks(gateway)
    sessions: list[Route] = [
        (path, handler, {"gateway": gateway, "notebooks": notebooks})
        for path, handler in ((r"/api/sessions/?", NotebooksHandler), (r"/api/sessions/([\w-]+)", OneNotebookHandler))
    ]
    return sessions + [(path, handler, {"gateway": gateway}) for path, handler in table]


DIALECT = Dialect("jupyter", routes)
