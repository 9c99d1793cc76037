"""The suite that every Jupyter kernel must pass, on the kernels of this image."""

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
    """The kernels under the names by which the suite starts them, and a separate directory for files of kernels."""
    home = tmp_path_factory.mktemp("home")
    places = {"python": sys.executable, "image": str(KERNEL_IMAGE), "connection_file": "{connection_file}"}
    for language in ("python", "bash"):
        spec = json.loads((KERNEL_IMAGE / "kernelspecs" / language / "kernel.json").read_text())
        spec["argv"] = [part.format(**places) for part in spec["argv"]]
        Path(home, f"kernels/our-{language}").mkdir(parents=True)
        Path(home, f"kernels/our-{language}/kernel.json").write_text(json.dumps(spec))
    with pytest.MonkeyPatch.context() as environment:
        for name in ("JUPYTER_PATH", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            environment.setenv(name, str(home))
        yield


class TestPython(jupyter_kernel_test.KernelTests):  # type: ignore[misc]
    """The whole suite on the Python kernel."""

    kernel_name = "our-python"
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


class TestBash(jupyter_kernel_test.KernelTests):  # type: ignore[misc]
    """The suite on the Bash kernel, without what a shell does not have: displays, pages, descriptions of names."""

    kernel_name = "our-bash"
    language_name = "bash"
    file_extension = ".sh"
    code_hello_world = "echo hello, world"
    code_stderr = "echo test >&2"
    code_generate_error = "false"
    completion_samples = ({"text": "$BASH_VERSI", "matches": {"$BASH_VERSINFO", "$BASH_VERSION"}},)
    complete_code_samples = ("echo 1", "for i in 1 2; do echo $i; done")
    incomplete_code_samples = ("for i in 1 2; do", "echo 'hello")
    invalid_code_samples = ("if; then",)
    supported_history_operations = ("tail", "range", "search")
    code_history_pattern = "echo ?2*"
    support_iopub_welcome = True
