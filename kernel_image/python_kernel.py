"""The Python kernel: ipykernel, with what a service needs changed for stated reasons.

- iopub never drops: with stock settings a slow reader loses outputs and the final `idle` (XPUB_NODROP).
- every subscriber is welcomed, not only the first (XPUB_VERBOSE).
- long text is sent in pieces: one huge message would be refused by whoever bounds message sizes.
- the folder of this file is not on the path of cells.
- no history database: the transcript is kept outside, and writing it costs a fifth of a small cell's time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import zmq
from ipykernel.iostream import OutStream
from ipykernel.kernelapp import IPKernelApp
from traitlets.config import Config

#: characters of stream text per message
PIECE = 1024 * 1024


class PiecewiseStream(OutStream):
    """A stdout or stderr that sends long text as several messages."""

    def _flush_buffers(self) -> Iterator[tuple[dict[str, Any], str]]:
        for parent, text in super()._flush_buffers():
            for start in range(0, len(text), PIECE):
                yield parent, text[start : start + PIECE]


class KernelApp(IPKernelApp):
    """The application that owns the kernel's sockets."""

    def _bind_socket(self, s: zmq.Socket[bytes], port: int) -> Any:
        if s.socket_type == zmq.XPUB:
            s.setsockopt(zmq.XPUB_NODROP, 1)
            s.setsockopt(zmq.XPUB_VERBOSE, 1)
        return super()._bind_socket(s, port)


def config() -> Config:
    """Settings of the kernel."""
    settings = Config()
    settings.KernelApp.outstream_class = f"{__name__}.PiecewiseStream"
    settings.HistoryManager.enabled = False
    settings.IPythonKernel._execute_sleep = 0  # noqa: SLF001 - its own name; half a millisecond per cell
    return settings


if __name__ == "__main__":
    # What lies beside this file is no business of cells: their own `files.py` must not be hidden by ours.
    del sys.path[0]
    KernelApp.launch_instance(config=config())
