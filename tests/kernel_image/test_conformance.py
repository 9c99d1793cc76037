"""The suite that every Jupyter kernel must pass, on the Python kernel."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import jupyter_kernel_test
import pytest

from sessions.backends.base import KERNEL_IMAGE

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABh6FO1AAAAABJRU5ErkJggg=="


@pytest.fixture(scope="class", autouse=True)
def kernelspec(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The kernel under the name by which the suite starts it, and a separate directory for files of kernels."""
    home = tmp_path_factory.mktemp("home")
    spec = json.loads((KERNEL_IMAGE / "kernelspecs/python/kernel.json").read_text())
    places = {"python": sys.executable, "image": str(KERNEL_IMAGE), "connection_file": "{connection_file}"}
    spec["argv"] = [part.format(**places) for part in spec["argv"]]
    Path(home, "kernels/ours").mkdir(parents=True)
    Path(home, "kernels/ours/kernel.json").write_text(json.dumps(spec))
    with pytest.MonkeyPatch.context() as environment:
        for name in ("JUPYTER_PATH", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            environment.setenv(name, str(home))
        yield


class TestConformance(jupyter_kernel_test.KernelTests):  # type: ignore[misc]
    """The whole suite."""

    kernel_name = "ours"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    code_generate_error = "raise ValueError"
    code_inspect_sample = "print"
    code_page_something = "print?"
    code_clear_output = "from IPython.display import clear_output; clear_output()"
    completion_samples = ({"text": "zi", "matches": {"zip"}},)
    complete_code_samples = ("1", "print('hello, world')", "def f(x):\n    return x * 2\n\n")
    incomplete_code_samples = ("print('''hello", "def f(x):\n    x * 2")
    invalid_code_samples = ("import = 7q",)
    code_execute_result = (
        {"code": "1 + 2 + 3", "result": "6"},
        {"code": "[n * n for n in range(1, 4)]", "result": "[1, 4, 9]"},
    )
    code_display_data = (
        {"code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))", "mime": "text/html"},
        {
            "code": f"import base64; from IPython.display import *; display(Image(base64.b64decode({PNG!r})))",
            "mime": "image/png",
        },
    )
    supported_history_operations = ("tail", "range", "search")
    code_history_pattern = "1 ? 2*"
    support_iopub_welcome = True
