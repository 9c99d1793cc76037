"""JupyterLab in a real browser, used as its users do: the notebook's kernel is a session of this gateway."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.clients.browsers import URL, chromium
from tests.clients.front import TOKEN, jupyter_server
from tests.gateways import Gateway

pytestmark = [pytest.mark.browser, pytest.mark.timeout(420)]

#: seconds for every step that a user waits for; enough for a kernel to start on a slow machine
PATIENCE = 90
CELLS = {
    "text": "x = 40\nprint('printed', 6 * 7)\nx + 2",
    "plot": "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()",
    "question": "name = input('who? ')\nprint('hello', name.upper())",
    "sleep": "import time\nprint('asleep')\ntime.sleep(600)",
    "kept": "print('x is still', x)",
}
#: outputs that need more than text: a library in the browser, a stylesheet, a font
SHOWN = {
    "plotly": "import plotly.express as px\npx.bar(x=['a', 'b'], y=[1, 3], title='from plotly')",
    "widgets": "import ipywidgets\nslider = ipywidgets.IntSlider(value=7, description='size')\nslider",
    "style": "import pandas as pd\npd.DataFrame({'n': [1, 2]}).style.highlight_max(color='rgb(255, 215, 0)')",
    "title": "import matplotlib.pyplot as plt\nplt.figure(figsize=(4, 2))\nplt.plot([1, 4, 9])\n"
    "plt.title('图表 グラフ 도표')\nplt.show()",
    "moved": "print('the slider is at', slider.value)",
}


@dataclass
class Notebook:
    """A notebook in JupyterLab, which the test reads and operates as a user does."""

    page: Page
    gateway: Gateway
    cells: dict[str, str]

    def cell(self, name: str) -> Locator:
        return self.page.locator(".jp-Notebook .jp-CodeCell").nth(list(self.cells).index(name))

    def output(self, name: str) -> Locator:
        return self.cell(name).locator(".jp-OutputArea")

    def run(self, name: str) -> None:
        self.cell(name).locator(".cm-content").click()
        self.page.keyboard.press("Shift+Enter")

    def press(self, label: str) -> None:
        self.page.get_by_role("button", name=label, exact=True).click()

    def shows(self, status: str, seconds: float = PATIENCE) -> None:
        """Wait until the status bar of the page shows this status."""
        bar = self.page.locator("#jp-main-statusbar")
        expect(bar).to_contain_text(f"| {status}", timeout=seconds * 1000)

    def session(self) -> dict[str, Any]:
        """Return the gateway's only session from its own API: the kernel that JupyterLab is connected to."""
        (kernel,) = self.gateway.call("GET", "/api/kernels").json()
        (session,) = self.gateway.call("GET", "/v1/sessions").json()["sessions"]
        assert (kernel["id"], kernel["connections"]) == (session["name"], 1)
        found: dict[str, Any] = session
        return found


@pytest.fixture
def page(gateway: Gateway, tmp_path: Path) -> Iterator[Page]:
    """JupyterLab, opened in the browser. Neither sends a request to the internet."""
    socket = tmp_path / "socket"
    _write_notebook(tmp_path / "book.ipynb", CELLS)
    _write_notebook(tmp_path / "shown.ipynb", SHOWN)
    _write_settings(tmp_path)
    with (
        jupyter_server(gateway, tmp_path, "--LabApp.extension_manager=readonly", app="jupyterlab", socket=socket),
        chromium(tmp_path, socket) as browser,
    ):
        page = browser.new_page(viewport={"width": 1280, "height": 1800})
        page.set_default_timeout(PATIENCE * 1000)
        expect.set_options(timeout=PATIENCE * 1000)
        asked = set[str]()
        page.on("request", lambda request: asked.add(re.sub(r"^(\w+://[^/]*).*", r"\1", request.url)))
        page.goto(f"{URL}/lab?token={TOKEN}")
        try:
            yield page
        finally:
            page.screenshot(path=tmp_path / "page.png")
            print((tmp_path / ".server.log").read_text())
        assert {place for place in asked if place.startswith("http")} == {URL}


def _write_notebook(path: Path, cells: dict[str, str]) -> None:
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(code) for code in cells.values()],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    nbformat.write(book, path)


def _write_settings(home: Path) -> None:
    """Write a user's answer to the question about news, which no flag can set."""
    folder = home / ".config/lab/user-settings/@jupyterlab/apputils-extension"
    folder.mkdir(parents=True)
    answers = {"fetchNews": "false", "checkForUpdates": False}
    (folder / "notification.jupyterlab-settings").write_text(json.dumps(answers))


@pytest.fixture
def notebook(page: Page, gateway: Gateway) -> Notebook:
    """The notebook, opened from the list of files, with a kernel."""
    return _opened(Notebook(page, gateway, CELLS), "book.ipynb")


def _opened(opened: Notebook, name: str) -> Notebook:
    page = opened.page
    page.locator(".jp-DirListing-item", has_text=name).dblclick()
    try:
        opened.shows("Idle", PATIENCE / 2)
    except AssertionError:
        # Seen once on a machine under load: the notebook had a kernel, but showed "Unknown". Users reload the page.
        print("the page is loaded again")
        page.reload()
        opened.shows("Idle")
    expect(page.locator(".jp-Notebook .jp-CodeCell")).to_have_count(len(opened.cells))
    return opened


@pytest.mark.gate
def test_a_user_runs_interrupts_and_restarts_a_notebook(notebook: Notebook) -> None:
    # text, a result, and a picture that the browser has drawn
    notebook.run("text")
    expect(notebook.output("text")).to_contain_text("printed 42")
    expect(notebook.output("text").locator(".jp-OutputArea-executeResult .jp-OutputArea-output")).to_have_text("42")
    notebook.run("plot")
    picture = notebook.output("plot").locator("img")
    expect(picture).to_have_attribute("src", re.compile("^data:image/png;base64,"))
    expect(picture).to_have_js_property("complete", value=True)
    assert picture.evaluate("image => image.naturalWidth") > 100

    # the kernel is a session of the gateway, and the native API sees its variables
    name = notebook.session()["name"]
    assert notebook.gateway.text(name, "x") == "40"

    # a question is asked and answered
    notebook.run("question")
    answer = notebook.cell("question").locator("input.jp-Stdin-input")
    answer.fill("ada")
    answer.press("Enter")
    expect(notebook.output("question")).to_contain_text("hello ADA")

    # an interrupt ends only the cell
    notebook.run("sleep")
    expect(notebook.output("sleep")).to_contain_text("asleep")
    notebook.shows("Busy")
    assert notebook.session()["state"] == "busy"
    notebook.press("Interrupt the kernel")
    expect(notebook.output("sleep")).to_contain_text("KeyboardInterrupt")
    notebook.shows("Idle")
    notebook.run("kept")
    expect(notebook.output("kept")).to_have_text(re.compile("x is still 40"))

    # a restart clears the variables, and is not shown as a crash
    notebook.press("Restart the kernel")
    dialog = notebook.page.locator(".jp-Dialog")
    expect(dialog).to_contain_text("Do you want to restart the kernel")
    with notebook.page.expect_response(re.compile("/api/kernels/[^/]+/restart")) as restarted:
        dialog.get_by_role("button", name="Confirm Kernel Restart").click()
    assert restarted.value.status == 200
    notebook.shows("Idle")
    expect(dialog).to_have_count(0)
    notebook.run("kept")
    expect(notebook.output("kept")).to_contain_text("NameError: name 'x' is not defined")
    notebook.shows("Idle")
    session = notebook.session()
    assert (session["name"], session["state"], session["incarnation"]) == (name, "idle", 2)
    assert notebook.gateway.execute(name, "1")["state"] == "restarted"


@pytest.mark.full
@pytest.mark.parametrize("gateway", ["process"], indirect=True)
def test_a_user_is_told_that_a_kernel_was_ended(notebook: Notebook) -> None:
    notebook.run("text")
    expect(notebook.output("text")).to_contain_text("printed 42")
    gateway, ended = notebook.gateway, notebook.session()["name"]
    admin = {"Authorization": f"Bearer {gateway.admin_key()}"}
    assert gateway.call("DELETE", f"/v1/admin/sessions/alice/{ended}", headers=admin, tenant=None).status_code == 204
    notebook.shows("Disconnected")
    notebook.page.reload()  # JupyterLab starts another kernel
    notebook.shows("Idle")
    notebook.run("kept")
    output = notebook.output("kept")
    expect(output).to_contain_text("kernel-gateway: the variables of earlier cells are gone: an earlier kernel of ")
    expect(output).to_contain_text("has ended: the session was ended by an admin")
    expect(output).to_contain_text("NameError: name 'x' is not defined")
    for kernel in gateway.kernels():
        gateway.call("DELETE", f"/api/kernels/{kernel}")


@pytest.mark.full
@pytest.mark.parametrize("gateway", [pytest.param("docker", marks=pytest.mark.engine)], indirect=True)  # has the font
def test_a_user_sees_plotly_widgets_styled_tables_and_chinese_titles(
    page: Page, gateway: Gateway, request: pytest.FixtureRequest
) -> None:
    notebook = _opened(Notebook(page, gateway, SHOWN), "shown.ipynb")
    notebook.run("plotly")
    plot = notebook.output("plotly")
    expect(plot.locator(".gtitle")).to_have_text("from plotly")
    expect(plot.locator(".bars .point")).to_have_count(2)

    notebook.run("widgets")
    slider = notebook.output("widgets").locator(".widget-readout")
    expect(slider).to_have_text("7")
    slider.fill("42")
    slider.press("Enter")

    notebook.run("style")
    highest = notebook.output("style").locator("td", has_text="2")
    expect(highest).to_have_css("background-color", "rgb(255, 215, 0)")

    notebook.run("title")
    expect(notebook.output("title").locator("img")).to_have_js_property("complete", value=True)

    notebook.run("moved")
    expect(notebook.output("moved")).to_have_text(re.compile("the slider is at 42"))
    # neither errors nor warnings, such as that of a missing character; this type is used for both
    expect(page.locator("[data-mime-type='application/vnd.jupyter.stderr']")).to_have_count(0)
    artifacts: Path | None = request.config.getoption("--artifacts")
    if artifacts is not None:
        page.screenshot(path=artifacts / "jupyterlab.png")
