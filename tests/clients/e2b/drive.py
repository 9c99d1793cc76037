"""Uses each service of a sandbox with E2B's Python SDK, unmodified, by host names alone.

A separate program, because releases of the SDK cannot be installed together. The SDK reads `E2B_API_KEY`, `E2B_DOMAIN`
and `SSL_CERT_FILE`. The only argument is the address of the proxy that knows the names. Prints the sandbox's id.
"""

from __future__ import annotations

import sys
import urllib.request

from e2b import PtySize
from e2b_code_interpreter import Sandbox


def life(proxy: str) -> str:
    """Use a sandbox from its creation to its end, and return its id."""
    sandbox = Sandbox.create(timeout=120, metadata={"a": "b"}, envs={"WHO": "me"}, proxy=proxy)
    try:
        assert sandbox.is_running()
        assert sandbox.get_info().metadata == {"a": "b"}
        assert sandbox.get_host(8000).startswith(f"8000-{sandbox.sandbox_id}.")
        execution = sandbox.run_code("import os\nprint(os.environ['WHO'])\nx = 20\nx + 1")
        assert (execution.text, execution.logs.stdout) == ("21", ["me\n"])
        context = sandbox.create_code_context(cwd="/home/user/inside")
        assert sandbox.run_code("import os; os.path.basename(os.getcwd())", context=context).text == "inside"
        again = Sandbox.connect(sandbox.sandbox_id, proxy=proxy)
        assert again.run_code("x").text == "20"
        sandbox.files.write("ä.txt", "grüße")
        assert sandbox.files.read("ä.txt") == "grüße"
        assert {entry.name for entry in sandbox.files.list(".")} == {"inside", "ä.txt"}
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({"https": proxy}))
        with opener.open(sandbox.download_url("ä.txt", use_signature_expiration=600), timeout=60) as response:
            assert response.read().decode() == "grüße"
        assert sandbox.commands.run("cat ä.txt; echo $WHO >&2").stderr == "me\n"
        terminal = sandbox.pty.create(PtySize(rows=20, cols=50))
        sandbox.pty.send_stdin(terminal.pid, b"stty size; exit\n")
        shown: list[bytes] = []
        terminal.wait(on_pty=shown.append)
        assert b"20 50" in b"".join(shown)
        listed = Sandbox.list(proxy=proxy).next_items()
        assert [each.sandbox_id for each in listed] == [sandbox.sandbox_id]
    finally:
        assert sandbox.kill()
    assert not sandbox.is_running()
    return str(sandbox.sandbox_id)


if __name__ == "__main__":
    print(life(sys.argv[1]))
