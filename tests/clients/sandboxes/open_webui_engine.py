"""Drives Open WebUI's own client of Jupyter, which its code execution uses: `open_webui_engine.py ENDPOINT KEY`.

Open WebUI reads the environment when it is imported.
"""

import asyncio
import sys

from open_webui.utils.code_interpreter import execute_code_jupyter

LARGE = "from IPython.display import Image, display\nimport os\ndisplay(Image(b'\\x89PNG' + os.urandom(1_200_000)))\n"


async def main(endpoint: str, key: str) -> None:
    async def run(code: str) -> dict[str, str]:
        answer: dict[str, str] = await execute_code_jupyter(endpoint, code, key, "", 60)
        return answer

    answer = await run("import sys\nprint('out')\nprint('err', file=sys.stderr)\n40 + 2")
    assert answer == {"stdout": "out", "stderr": "err", "result": "42"}, answer
    plot = await run("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
    assert plot["result"].startswith("data:image/png;base64,iVBOR"), plot
    assert "ZeroDivisionError" in (await run("kept = 1 / 0"))["stderr"]
    assert (await run("'kept' in globals()"))["result"] == "False"
    assert (await run("print('é' * 3_000_000)"))["stdout"] == "é" * 3_000_000
    large = await run(f"{LARGE}print('after')")
    assert (large["stdout"], "was left out" in large["stderr"]) == ("after", True), large
    assert (await run("import os; os.path.samefile('/mnt/data', os.getcwd())"))["result"] == "True"
    refused = await execute_code_jupyter(endpoint, "1", f"{key}x", "", 60)
    assert "401" in refused["stderr"], refused


asyncio.run(main(*sys.argv[1:]))
