"""Drives a client of Dify's sandbox: `dify_sandbox_client.py ENDPOINT KEY`."""

import asyncio
import sys

from dify_sandbox.client import AsyncDifySandboxClient


async def main(endpoint: str, key: str) -> None:
    async with AsyncDifySandboxClient(base_url=endpoint, api_key=key, timeout=60) as client:
        assert await client.ahealth_check()
        python, node = await client.arun_python("print(40 + 2)"), await client.arun_nodejs("console.log(1)")
        assert (python.stdout, python.error, node.stdout, node.error) == ("42\n", "", "1\n", "")
        packages = await client.aget_dependencies()
        assert "jinja2" in {package["name"] for package in packages.dependencies}


asyncio.run(main(*sys.argv[1:]))
