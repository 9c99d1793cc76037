"""Runs in a user's Jupyter, and not in the gateway: JupyterLab shows the files of sessions, nbclient runs notebooks.

Two lines of Jupyter's configuration switch the files on, in a server that has the gateway as its `--gateway-url`. This
room knows only HTTP, Jupyter Server, and nothing else of this project. It needs the extra `jupyter`.
"""

from kernel_gateway.for_jupyter.files import SessionFiles
from kernel_gateway.for_jupyter.kernels import SessionKernels
from kernel_gateway.for_jupyter.notebooks import NotebookKernel

__all__ = ["NotebookKernel", "SessionFiles", "SessionKernels"]
