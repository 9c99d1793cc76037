"""Drives LlamaIndex's client of dynamic sessions: `llama_index_tool.py ENDPOINT KEY`."""

import sys
from pathlib import Path

from llama_index.tools.azure_code_interpreter import AzureCodeInterpreterToolSpec

endpoint, key = sys.argv[1:]
tool = AzureCodeInterpreterToolSpec(pool_management_endpoint=endpoint)
tool.access_token_provider = lambda: key
assert tool.code_interpreter("x = 40\nx + 2")["properties"]["result"] == 42
Path("up.txt").write_text("abc")
tool.upload_file(local_file_path="up.txt")
assert [file.filename for file in tool.list_files()] == ["up.txt"]
tool.download_file_to_local("up.txt", "down.txt")
assert Path("down.txt").read_text() == "abc"
