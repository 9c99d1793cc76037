"""What people find in the image, used in real sessions: packages, fonts, pip."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_image.no_network import POLICY
from sessions.backends.base import KERNEL_IMAGE
from tests.figures import hold
from tests.gateways import Gateway, gateway
from tests.kernel_image.wheel import write_wheel

pytestmark = [pytest.mark.engine, pytest.mark.full]

PAGE = (KERNEL_IMAGE.parent / "docs/packages.md").read_text()
#: packages whose module has another name
MODULES = {
    "beautifulsoup4": "bs4",
    "e2b-charts": "e2b_charts",
    "pillow": "PIL",
    "python-docx": "docx",
    "python-pptx": "pptx",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
}
#: draws text in three scripts and in all styles, and prints what matplotlib has to say
DRAW = """
import io, logging, warnings
import matplotlib
import matplotlib.pyplot as plt
said = io.StringIO()
logging.getLogger("matplotlib").addHandler(logging.StreamHandler(said))
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    figure = plt.figure()
    figure.suptitle("图表 グラフ 도표", weight="bold", {options})
    figure.text(0, 0, "销售额", style="italic", {options})
    figure.savefig(io.BytesIO())
    plt.close(figure)
print(said.getvalue(), *(each.message for each in found))
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one wheel; its permissions allow everything to everybody."""
    directory = tmp_path_factory.mktemp("wheels")
    directory.chmod(0o777)
    write_wheel(directory)
    return directory


@pytest.fixture(scope="module")
def serving() -> Iterator[Gateway]:
    """A gateway with the default settings."""
    with gateway("docker") as serving:
        yield serving


def test_each_package_of_the_list_can_be_imported(serving: Gateway) -> None:
    listed = re.findall(r"^([\w-]+)[>=]", (KERNEL_IMAGE / "requirements.txt").read_text(), re.MULTILINE)
    assert len(listed) > 25
    modules = [MODULES.get(name.lower(), name) for name in listed]
    reply = serving.execute("packages", f"import {', '.join(modules)}", timeout=300)
    assert (reply["status"], reply["outputs"]) == ("ok", [])


def test_plots_find_a_font_for_chinese_japanese_and_korean(serving: Gateway) -> None:
    assert "missing from" in serving.text("fonts", DRAW.format(options="family='DejaVu Sans'"), timeout=120)
    assert serving.text("fonts", DRAW.format(options="")).strip() == ""
    theme = 'import seaborn; seaborn.set_theme(font=["sans-serif", "WenQuanYi Micro Hei"])\n'
    assert theme.partition("; ")[2].strip() in PAGE, "this is what users are told"
    assert serving.text("fonts", theme + DRAW.format(options=""), timeout=120).strip() == ""


def test_a_kernel_does_not_make_the_list_of_fonts(serving: Gateway) -> None:
    show = "import matplotlib as m, matplotlib.font_manager, pathlib; "
    show += "print([path.is_symlink() for path in pathlib.Path(m.get_cachedir()).iterdir()])"
    assert serving.text("cache", show, timeout=120) == "[True]\n"


@pytest.mark.measured
def test_pip_does_not_wait_for_a_network(serving: Gateway) -> None:
    def seconds(code: str, words: str) -> float:
        began = time.monotonic()
        assert words in serving.text("quick", code)
        return time.monotonic() - began

    seconds("!pip --version", "pip")
    without_trying = seconds("%pip install --no-index nothing", "No matching distribution")
    hold("pip without a network", seconds("%pip install nothing", POLICY), without_trying)


def test_pip_installs_from_the_operators_wheels(wheels: Path) -> None:
    use = "import greeting; print(greeting.hello(), greeting.__file__)"
    with gateway("docker", wheels=str(wheels)) as serving:
        assert "ModuleNotFoundError" in serving.text("a", use)
        # pip reads much of what is installed, which takes it long in gVisor beside other tests
        assert "Successfully installed greeting-1.2" in serving.text("a", "!pip install --user greeting", timeout=150)
        assert serving.text("a", use).startswith("from the wheel /home/user/.local/lib/python3.")
        assert serving.call("POST", "/v1/sessions/a/restart").status_code == 200
        assert "from the wheel" in serving.text("a", use), "packages are kept like files"
        assert "No matching distribution found for nothing" in serving.text("a", "!pip install nothing", timeout=150)
        assert "ModuleNotFoundError" in serving.text("b", use), "they belong to one session"
        assert "Read-only file system" in serving.text("b", "open('/opt/wheels/mine.whl', 'w')")
    assert [file.name for file in wheels.iterdir()] == ["greeting-1.2-py3-none-any.whl"]


def test_pip_installs_an_uploaded_wheel(serving: Gateway, wheels: Path) -> None:
    (wheel,) = wheels.iterdir()
    answer = serving.call("PUT", f"/v1/sessions/uploaded/files/{wheel.name}", data=wheel.read_bytes())
    assert answer.status_code == 204
    assert "Successfully installed greeting-1.2" in serving.text("uploaded", f"!pip install {wheel.name}")
    assert serving.text("uploaded", "import greeting; print(greeting.hello())") == "from the wheel\n"


def test_wheels_in_a_directory_that_does_not_exist_are_refused_by_name(tmp_path: Path) -> None:
    with gateway("docker", must_be_ready=False, wheels=str(tmp_path / "absent")) as serving:
        answer = serving.call("POST", "/v1/sessions", json={})
        assert answer.status_code == 503
        assert str(tmp_path / "absent") in answer.text


def test_installed_packages_cannot_keep_a_kernel_from_starting(serving: Gateway) -> None:
    broken = """
import os, site
os.makedirs(site.getusersitepackages(), exist_ok=True)
open(site.getusersitepackages() + "/broken.pth", "w").write("import os; os._exit(3)")
"""
    serving.execute("broken", broken)
    assert serving.text("broken", "!python -c 'print(1)'; echo $?").strip() == "3", "it would end an interpreter"
    assert serving.call("POST", "/v1/sessions/broken/restart").status_code == 200
    assert serving.text("broken", "print(6 * 7)").strip() == "42"
