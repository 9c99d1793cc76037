"""What a kernel has imported ahead of need makes no difference to its cells, but for their time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sessions.backends.base import KERNEL_IMAGE, Launch
from sessions.backends.process import ProcessBackend
from sessions.kernels.kernel import Kernel
from sessions.kernels.messages import Message
from sessions.model.kernelspecs import KernelSpecs
from tests.fakes import Listener
from tests.tiers import some

PYTHON = KernelSpecs(KERNEL_IMAGE / "kernelspecs").find("python")
NOISY = """
import sys, warnings
from IPython.display import display
print("printed"); print("complained", file=sys.stderr); warnings.warn("old"); display("shown"); value = 1
"""
#: what a cell can see of the interpreter around it
AROUND = """
import json, threading, matplotlib, matplotlib.pyplot, pandas, sklearn.linear_model, warnings
print(json.dumps({
    "names": sorted(set(globals()) - {"json"}), "In": len(In), "Out": len(Out), "count": get_ipython().execution_count,
    "backend": matplotlib.get_backend(auto_select=False), "interactive": matplotlib.is_interactive(),
    "figures": matplotlib.pyplot.get_fignums(), "settings": repr(sorted(matplotlib.rcParams.items())),
    "threads": sorted(thread.name.split("-")[0] for thread in threading.enumerate()),
    "filters": sorted(map(repr, set(warnings.filters))), "callbacks": repr(sorted(get_ipython().events.callbacks)),
    "handlers": sum(map(len, get_ipython().events.callbacks.values())),
}))
"""
PLOT = "import matplotlib.pyplot as plt; plt.plot([1, 3, 2]); print(plt.get_backend())"


@pytest.fixture
async def backend(nothing_left: None) -> AsyncIterator[ProcessBackend]:
    backend = ProcessBackend()
    yield backend
    await backend.close()


class Talk:
    """Runs cells in a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.heard: list[Message] = []
        self._asked = ""
        self._idle = asyncio.Event()
        kernel.attach(Listener(self._note))

    def _note(self, message: Message) -> None:
        if message.channel == "iopub":
            self.heard.append(message)
            if message.parent_id == self._asked and message.content.get("execution_state") == "idle":
                self._idle.set()

    async def says(self, code: str) -> str:
        """Run a cell and return its text."""
        self.heard.clear()
        self._idle.clear()
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        self._asked = self.kernel.connection.send("shell", "execute_request", content)
        async with asyncio.timeout(60):
            await self._idle.wait()
        return "".join(str(message.content.get("text", "")) for message in self.heard)

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [message.content for message in self.heard if message.type == kind]


async def preloaded(backend: ProcessBackend, *modules: str, **env: str) -> Talk:
    """Start a kernel that imports modules ahead of need."""
    kernel = await Kernel.start(backend, Launch(PYTHON, env=env))
    talk = Talk(kernel)
    for module in modules:
        assert await kernel.preloading.load(module) == ""
    return talk


async def test_a_cell_sees_and_hears_nothing_of_a_module_that_was_imported_ahead(
    backend: ProcessBackend, tmp_path: Path
) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    talk = await preloaded(backend, "noisy", PYTHONPATH=str(tmp_path))
    look = "(sorted(globals()), In[:-1], Out, 'noisy' in __import__('sys').modules)"
    await talk.says(look)
    (seen,) = talk.of_type("execute_result")
    plain = await preloaded(backend)
    await plain.says(look)
    (usual,) = plain.of_type("execute_result")
    assert seen["data"]["text/plain"] == usual["data"]["text/plain"].replace("False", "True")
    assert seen["execution_count"] == usual["execution_count"] == 1
    assert "preload_request" not in {message.parent.get("msg_type") for message in talk.heard}
    assert not talk.of_type("stream") + talk.of_type("display_data")
    assert "printed" in await plain.says(f"import sys; sys.path.append({str(tmp_path)!r}); import noisy")


@pytest.mark.parametrize(
    ("module", "problem"),
    some(
        [
            ("raise SystemExit(3)", "SystemExit: 3"),
            (None, "ModuleNotFoundError: No module named 'faulty'"),
            ("raise KeyboardInterrupt", "KeyboardInterrupt: "),
            ("1 +", "SyntaxError: invalid syntax (faulty.py, line 1)"),
        ],
        gate=1,
    ),
)
async def test_a_module_that_cannot_be_imported_is_reported_and_the_kernel_lives(
    backend: ProcessBackend, tmp_path: Path, module: str | None, problem: str
) -> None:
    if module is not None:
        (tmp_path / "faulty.py").write_text(module)
    kernel = await Kernel.start(backend, Launch(PYTHON, env={"PYTHONPATH": str(tmp_path)}))
    assert await kernel.preloading.load("faulty") == problem
    assert await Talk(kernel).says("print(1 + 1)") == "2\n"


async def test_the_first_plot_is_drawn_by_the_usual_backend_with_fonts_that_are_open(backend: ProcessBackend) -> None:
    talk = await preloaded(backend, *(module for module in PYTHON.preload if "matplotlib" in module))
    plain = await preloaded(backend)
    fonts = "from matplotlib import font_manager; print(font_manager._get_font.cache_info().currsize)"
    assert (await talk.says(fonts), await plain.says(fonts)) == ("1\n", "0\n")
    assert await talk.says(PLOT) == await plain.says(PLOT) == "module://matplotlib_inline.backend_inline\n"
    (plot,), (usual,) = talk.of_type("display_data"), plain.of_type("display_data")
    assert plot["data"] == usual["data"]


#: what a cell can see of earlier errors, and whether what an error needs is there
ERRORS = """
import json, sys
print(json.dumps({
    "ready": "stack_data" in sys.modules and "pygments.lexers.python" in sys.modules,
    "last": [name for name in vars(sys) if name.startswith("last_")],
    "for debug": hasattr(get_ipython().InteractiveTB, "tb"),
    "In": len(In), "Out": len(Out), "count": get_ipython().execution_count, "names": sorted(set(globals()) - {"json"}),
}))
"""


async def test_what_the_first_error_needs_is_there_and_no_error_is(backend: ProcessBackend) -> None:
    ahead = await preloaded(backend, "json.tool")
    seen = json.loads(await ahead.says(ERRORS))
    plain = await preloaded(backend)
    usual = json.loads(await plain.says(ERRORS))
    assert (seen.pop("ready"), usual.pop("ready")) == (True, False)
    assert seen == usual
    assert (seen["last"], seen["for debug"]) == ([], False)
    for talk in (ahead, plain):
        await talk.says("def half(n):\n    return n / 0\nhalf(1)")
    (one,), (other,) = ahead.of_type("error"), plain.of_type("error")
    assert one == other


async def test_an_error_looks_up_no_file_of_modules_that_it_has_nothing_to_do_with(backend: ProcessBackend) -> None:
    talk = await preloaded(backend)
    walked = (
        "import inspect; print(inspect._filesbymodname, [each for each in inspect.modulesbyfile if 'kernel_' in each])"
    )
    assert await talk.says(walked) == "{} []\n"
    for code in ("1 / 0", "import json; json.loads('?')", "def deep(n): return deep(n + 1)\ndeep(0)"):
        await talk.says(code)
        assert len(talk.of_type("error")) == 1
    assert await talk.says(walked) == "{} []\n"


async def test_what_is_imported_ahead_is_left_out_of_garbage_collection(backend: ProcessBackend) -> None:
    count = "import json.tool, gc; listed = [each for each in gc.get_objects() if each is json.tool.__dict__]; "
    count += "print(gc.get_freeze_count(), len(listed))"
    talk, plain = await preloaded(backend, "json.tool"), await preloaded(backend)
    frozen, listed = map(int, (await talk.says(count)).split())
    assert (frozen > 1000, listed) == (True, 0)
    assert await plain.says(count) == "0 1\n"


@pytest.mark.full
async def test_all_that_is_imported_ahead_leaves_a_kernel_as_a_cell_would_that_imports_it(
    backend: ProcessBackend,
) -> None:
    ahead = json.loads(await (await preloaded(backend, *PYTHON.preload)).says(AROUND))
    assert ahead == json.loads(await (await preloaded(backend)).says(AROUND))


@pytest.mark.full
async def test_a_cell_may_choose_another_backend_after_the_imports(backend: ProcessBackend) -> None:
    talk = await preloaded(backend, *PYTHON.preload)
    assert (await talk.says(f"import matplotlib; matplotlib.use('agg'); {PLOT}")).lower() == "agg\n"
    assert not talk.of_type("display_data")


@pytest.mark.full
async def test_two_kernels_draw_different_random_numbers(backend: ProcessBackend) -> None:
    draw = "import random, numpy; print(random.random(), numpy.random.rand(), numpy.random.default_rng().random())"
    one, other = [await preloaded(backend, *PYTHON.preload) for _ in range(2)]
    pairs = zip((await one.says(draw)).split(), (await other.says(draw)).split(), strict=True)
    assert all(mine != theirs for mine, theirs in pairs)
    seeded = f"import random, numpy; random.seed(1); numpy.random.seed(1); {draw}"
    assert (await one.says(seeded)).split()[:2] == (await other.says(seeded)).split()[:2]


@pytest.mark.full
async def test_a_forked_process_can_use_what_was_imported_ahead(backend: ProcessBackend) -> None:
    talk = await preloaded(backend, *PYTHON.preload)
    fork = """
import warnings; warnings.simplefilter("ignore", DeprecationWarning)
from multiprocessing import get_context
def fit(number):
    import pandas, sklearn.linear_model as linear, matplotlib.pyplot as plt
    plt.figure()
    frame = pandas.DataFrame({"x": [1.0, 2.0], "y": [number, 2.0 * number]})
    return float(linear.LinearRegression().fit(frame[["x"]], frame.y).coef_[0])
with get_context("fork").Pool(2) as pool: print([round(each) for each in pool.map(fit, [1, 2, 3])])
"""
    assert await talk.says(fork) == "[1, 2, 3]\n"
