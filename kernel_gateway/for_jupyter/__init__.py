"""Runs in a user's Jupyter Server, and not in the gateway: JupyterLab shows the files of the gateway's sessions.

Two lines of Jupyter's configuration switch it on, in a server that has the gateway as its `--gateway-url`. This room
knows only HTTP, Jupyter Server, and nothing else of this project. It needs the extra `jupyter`.
"""

from kernel_gateway.for_jupyter.files import SessionFiles
from kernel_gateway.for_jupyter.kernels import SessionKernels

__all__ = ["SessionFiles", "SessionKernels"]
