"""Drives Semantic Kernel's client of dynamic sessions: `semantic_kernel_tool.py ENDPOINT KEY CERTIFICATE`."""

import asyncio
import ssl
import sys
from pathlib import Path

import httpx
from semantic_kernel.core_plugins import SessionsPythonTool


async def main(endpoint: str, key: str, certificate: str) -> None:
    tool = SessionsPythonTool(
        pool_management_endpoint=endpoint,
        auth_callback=lambda: key,
        http_client=httpx.AsyncClient(verify=ssl.create_default_context(cafile=certificate), timeout=120),
        enable_dangerous_file_uploads=True,
        allowed_upload_directories={"."},
    )
    assert (await tool.execute_code("40 + 2")).startswith("Status:\nSuccess\nResult:\n42\n")
    await tool.upload_file(local_file_path="up.txt")
    assert [file.filename for file in await tool.list_files()] == ["up.txt"]
    assert (await tool.download_file(remote_file_name="up.txt")).read() == b"abc"


Path("up.txt").write_text("abc")
asyncio.run(main(*sys.argv[1:]))
