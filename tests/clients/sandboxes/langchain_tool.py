"""Drives LangChain's client of dynamic sessions, as its own end-to-end test does: `langchain_tool.py ENDPOINT KEY`."""

import sys
from io import BytesIO

from langchain_azure_dynamic_sessions import SessionsPythonREPLTool

endpoint, key = sys.argv[1:]
tool = SessionsPythonREPLTool(pool_management_endpoint=endpoint, access_token_provider=lambda: key)
answer = tool.execute("print('hello world')\n1 + 1")
assert (answer["result"], answer["stdout"], answer["stderr"]) == (2, "hello world\n", "")
for number in range(4):
    tool.upload_file(data=BytesIO(b"hello world!!!!!"), remote_file_path=f"test{number}.txt")
assert [(file.filename, file.size_in_bytes) for file in tool.list_files()] == [(f"test{n}.txt", 16) for n in range(4)]
assert tool.download_file(remote_file_path="test1.txt").read() == b"hello world!!!!!"
