"""A kernel manager for Jupyter Server: a notebook in a session's directory runs in this session's kernel."""

from __future__ import annotations

from typing import Any

from jupyter_server.gateway.managers import GatewayMappingKernelManager

from kernel_gateway.for_jupyter.requests import answer, ask

KERNELS = "api/kernels"


class SessionKernels(GatewayMappingKernelManager):
    """Uses the kernel that a session has, and never ends a session: the end would delete the session's notebooks."""

    # Jupyter Server's own class overrides the same methods by coroutines.
    async def start_kernel(  # type: ignore[override]
        self, *, kernel_id: str | None = None, path: str | None = None, **options: Any
    ) -> str:
        """Return the id of the kernel for a notebook.

        Args:
            kernel_id: the kernel. None means the kernel of the session at `path`, or a new one without such a path.
            path: directory of a session, from `SessionFiles.get_kernel_path`. Empty means the root.
            options: further options, for Jupyter Server's own class.

        Raises:
            HTTPError: when there is no such session.
        """
        if kernel_id is None and path:
            kernel_id = str((await answer("GET", KERNELS, path))["id"])
        return str(await super().start_kernel(kernel_id=kernel_id, path=path, **options))

    async def shutdown_kernel(self, kernel_id: str, **_options: bool) -> None:  # type: ignore[override]
        """Give the session a fresh kernel, and forget it. The gateway ends the session when it is idle for long."""
        await ask("POST", KERNELS, kernel_id, "restart")
        self.remove_kernel(kernel_id)

    async def shutdown_all(self, **_options: bool) -> None:  # type: ignore[override]
        """Forget all kernels, because the Jupyter server ends. The sessions keep their variables."""
        self._kernels.clear()
