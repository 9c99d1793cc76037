"""The sandbox client of OpenAI's Agents SDK for E2B, in an environment of its own."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
from agents.sandbox import Manifest


async def main() -> None:
    """Use a workspace from its start to its end, with the client's defaults: pause at the timeout, wake on use."""
    client = E2BSandboxClient()
    options = E2BSandboxClientOptions(sandbox_type="e2b", template="base", timeout=300)
    session = await client.create(manifest=Manifest(root="/workspace"), options=options)
    async with session:
        ran = await session.exec("sh", "-c", "echo hello > a.txt; pwd", shell=False)
        assert (ran.exit_code, ran.stdout) == (0, b"/home/user\n"), ran
        assert (await session.read(Path("/workspace/a.txt"))).read() == b"hello\n"
        await session.write(Path("/workspace/sub/b.txt"), io.BytesIO(b"more"))
        assert (await session.exec("cat", "sub/b.txt", shell=False)).stdout == b"more"
        await session.mkdir(Path("/workspace/deep/er"), parents=True)
        assert (await session.exec("test", "-d", "deep/er", shell=False)).exit_code == 0
        assert await session.running()
        assert (await session.persist_workspace()).read(2)
    await client.delete(session)


asyncio.run(main())
