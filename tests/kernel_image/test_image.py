"""What people find in the image, used in real sessions: packages, programs, fonts, pip."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from e2b_code_interpreter import Sandbox

from kernel_image.no_network import POLICY
from sessions.backends.base import KERNEL_IMAGE
from tests.figures import hold
from tests.gateways import KEYS, Gateway, gateway
from tests.kernel_image.wheel import write_wheel
from tests.readme import by_purpose
from tests.test_examples import example

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
#: makes a PDF with one word
PDF = "echo 'graph { hello }' | dot -Tpdf -o page.pdf"
#: what each program of the list does in the walk: Bash, in a directory with the file `table`
USES = {
    "bc": "[ $(echo 6*7 | bc) = 42 ]",
    "bunzip2": "bzip2 <table | bunzip2 | cmp - table",
    "bzip2": "bzip2 <table | file - | grep bzip2",
    "cc": "echo 'int main() { return 7; }' >a.c; cc a.c -o a; ./a || [ $? = 7 ]",
    "column": "column -t table | grep 'a  1'",
    "convert": "convert -size 9x9 xc:red red.png; file red.png | grep '9 x 9'",
    "curl": "curl -s file://$PWD/table | cmp - table",
    "dot": "echo 'digraph { 图 -> 😀 }' | dot -Tpng | file - | grep PNG",
    "ffmpeg": "ffmpeg -v error -f lavfi -i testsrc=duration=1:size=64x64 film.mp4; file film.mp4 | grep MP4",
    "ffprobe": "ffmpeg -v error -f lavfi -i sine=duration=2 a.wav; ffprobe a.wav 2>&1 | grep 00:00:02",
    "file": "file table | grep ASCII",
    "free": "free -m | grep Mem:",
    "g++": "printf '#include <iostream>\nint main() { std::cout << 42; }' >b.cc; g++ b.cc -o b; [ $(./b) = 42 ]",
    "gcc": "printf '#include <stdio.h>\nint main() { puts(\"42\"); }' >c.c; gcc c.c -o c; [ $(./c) = 42 ]",
    "git": "git init -q r; cd r; git -c user.name=a -c user.email=a@b commit --allow-empty -m one | grep one",
    "hexdump": "hexdump -C table | grep '61 20 31'",
    "identify": "convert -size 9x9 xc:red i.png; identify i.png | grep 9x9",
    "jq": """echo '{"a": [1, 2]}' | jq -e '.a[1] == 2'""",
    "killall": "sleep 99 & killall sleep; wait $! || [ $? = 143 ]",
    "less": "less table | cmp - table",
    "make": "printf 'all:\n\techo made' | make -f - | grep made",
    "mogrify": "convert -size 9x9 xc:red m.png; mogrify -resize 5x5 m.png; file m.png | grep '5 x 5'",
    "neato": "echo 'graph { a -- b }' | neato -Tsvg | grep '<svg'",
    "node": """node -e 'process.stdout.write(require("fs").readFileSync("table"))' | cmp - table""",
    "pandoc": "echo '# Title' | pandoc -o a.docx; pandoc a.docx -t markdown | grep '# Title'",
    "patch": "printf '1c1\n< a 1\n---\n> c 1\n' | patch -o patched table; grep 'c 1' patched",
    "pdfinfo": f"{PDF}; pdfinfo page.pdf | grep 'Pages:.*1'",
    "pdftoppm": f"{PDF}; pdftoppm -png page.pdf page; file page-1.png | grep PNG",
    "pdftotext": f"{PDF}; pdftotext page.pdf - | grep hello",
    "pgrep": "sleep 99 & [ $(pgrep -n sleep) = $! ]; kill $!",
    "pkill": "sleep 99 & pkill sleep; wait $! || [ $? = 143 ]",
    "ps": "ps aux | grep 'ps aux'",
    "pstree": "pstree | grep pstree",
    "rg": "rg --line-number 'b' table | grep 2:b",
    "sqlite3": "[ $(sqlite3 :memory: 'select 6 * 7') = 42 ]",
    "top": "top -b -n 1 | grep 'load average'",
    "tree": "tree | grep table",
    "unxz": "xz <table | unxz | cmp - table",
    "unzip": "zip -q u.zip table; unzip -p u.zip | cmp - table",
    "uptime": "uptime | grep 'load average'",
    "watch": "watch --version",  # more of it needs a terminal
    "wget": "wget --version",  # it has no way to a file but a network
    "xxd": "xxd table | xxd -r | cmp - table",
    "xz": "xz <table | file - | grep XZ",
    "zip": "zip -q z.zip table; file z.zip | grep Zip",
}
#: draws text in three scripts, emoji and more in all styles, and prints what matplotlib has to say
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
    figure.text(0, 0.5, "😀 🟢 ⚠️ 👍🏽 1️⃣ ∑ हिन्दी ไทย", {options})
    for kind in ("png", "svg", "pdf"):
        figure.savefig(io.BytesIO(), format=kind)
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


def walk(lines: list[str]) -> str:
    """Return Bash code that uses each program of the list's lines, and prints those that fail with what they say."""
    programs = [program for line in lines for program in line.partition(":")[2].split()]
    uses = [
        f"said=$(bash -eo pipefail -c {shlex.quote(USES[program])} 2>&1 </dev/null) || echo {program}: $said"
        for program in programs
    ]
    return "\n".join(["cd $(mktemp -d -p ~)", "printf 'a 1\nb 2\n' >table", *uses, f"echo {len(programs)} tried"])


@contextmanager
def cells(serving: Gateway) -> Iterator[Callable[[str], str]]:
    def run(code: str) -> str:
        shown = f"print(subprocess.run(['bash', '-c', {code!r}], capture_output=True, text=True).stdout)"
        return serving.text("tools", f"import subprocess; {shown}", timeout=100).strip()

    yield run


@contextmanager
def bash(serving: Gateway) -> Iterator[Callable[[str], str]]:
    made = serving.call("POST", "/v1/sessions", json={"name": "shell", "language": "bash"})
    assert made.status_code == 201
    yield lambda code: serving.text("shell", code, timeout=100).strip()


@contextmanager
def e2b_commands(serving: Gateway) -> Iterator[Callable[[str], str]]:
    sandbox = Sandbox.create(timeout=600, api_key=KEYS["alice"], api_url=serving.url, sandbox_url=serving.url)
    try:
        yield lambda code: str(sandbox.commands.run(code, timeout=100).stdout).strip()
    finally:
        sandbox.kill()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", [cells, bash, e2b_commands])
def test_each_program_of_the_list_does_its_work(
    serving: Gateway, way: Callable[[Gateway], AbstractContextManager[Callable[[str], str]]]
) -> None:
    with way(serving) as run:
        for purpose, _, lines in by_purpose("tools.txt"):
            assert re.fullmatch(r"\d+ tried", run(walk(lines))), purpose


def test_a_program_that_is_not_there_is_noticed(serving: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(USES, "absent", "absent | cat")
    with cells(serving) as run:
        assert re.fullmatch(r"absent: .*command not found\n2 tried", run(walk(["package: absent file"])))


def test_plots_find_a_font_for_chinese_japanese_korean_emoji_and_more(serving: Gateway) -> None:
    assert "missing from" in serving.text("fonts", DRAW.format(options="family='DejaVu Sans'"), timeout=120)
    assert serving.text("fonts", DRAW.format(options="")).strip() == ""
    theme = 'import matplotlib, seaborn; seaborn.set_theme(font=matplotlib.rcParams["font.family"])\n'
    assert theme.partition("; ")[2].strip() in PAGE, "this is what users are told"
    assert serving.text("fonts", theme + DRAW.format(options=""), timeout=120).strip() == ""


def test_pdfs_of_reportlab_have_chinese_and_emoji(serving: Gateway) -> None:
    (write,) = example("docs/packages.md", "from reportlab")
    has = 'print(all(ord(character) in pdfmetrics.getFont("Emoji").face.charToGlyph for character in "{}"))\n'
    said = serving.text("pdf", write + has.format("😀🚀") + has.format("é图") + "!pdftotext page.pdf -", timeout=120)
    assert said.startswith("True\nFalse\n销售额 グラフ 도표\n")


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
