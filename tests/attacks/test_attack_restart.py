"""A restart is a fresh start: no file left by code runs during the kernel's start, and the workspace is kept."""

from __future__ import annotations

import json

import pytest

from tests.attacks.cells import Attacker

pytestmark = [pytest.mark.engine, pytest.mark.measured]

POISON = "open('/workspace/poisoned-by', 'a').write(__name__ + '\\n')\nraise ImportError(__name__)\n"
#: prints which poisoned modules ran: the workspace outlives the restart, and the marks in it too
POISONED = "import os; print(os.path.exists('/workspace/poisoned-by') and open('/workspace/poisoned-by').read())"
#: lists every existing module, and some that Python and Jupyter look for on their own
NAMES = (
    "import os, sys\n"
    "names = {'sitecustomize', 'usercustomize', 'ipykernel_launcher', 'python_kernel', 'ipython_config',\n"
    "    'ipython_kernel_config', 'jupyter_config', 'jupyter_application_config', 'kernelapp_config'}\n"
    "names |= set(sys.stdlib_module_names)\n"
    "for folder in filter(os.path.isdir, sys.path):\n"
    "    if folder: names |= {name.split('.')[0] for name in os.listdir(folder)}\n"
    "names = sorted(name for name in names if name.isidentifier())\n"
)


def restart(evil: Attacker) -> None:
    answer = evil.gateway.call("POST", f"/v1/sessions/{evil.session}/restart")
    assert answer.status_code == 200, answer.text


def test_modules_in_the_workspace_do_not_run_in_the_kernels_start(evil: Attacker) -> None:
    plant = f"{NAMES}for name in names: open(f'/workspace/{{name}}.py', 'w').write({POISON!r})\nprint(len(names))"
    assert int(evil.text(plant)) > 250
    restart(evil)
    first = evil.expect("ok", POISONED)
    assert (first.text, first.state) == ("False\n", "restarted")
    assert evil.text("print(1)") == "1\n"
    assert evil.text(POISONED) == "False\n"


def test_packages_in_the_workspace_do_not_run_in_the_kernels_start(evil: Attacker) -> None:
    packages = ["IPython", "ipykernel", "json", "jupyter_client", "jupyter_core", "site", "tornado", "traitlets", "zmq"]
    evil.text(
        f"import os\n"
        f"for name in {packages!r}:\n"
        f"    os.mkdir(f'/workspace/{{name}}')\n"
        f"    open(f'/workspace/{{name}}/__init__.py', 'w').write({POISON!r})"
    )
    restart(evil)
    assert evil.text(POISONED) == "False\n"
    assert evil.text("import json, zmq; print(json.__file__.startswith('/usr'))").strip() in {"True", "False"}
    evil.still_works()


def test_configuration_in_the_home_directory_has_no_part_in_a_start(evil: Attacker) -> None:
    files = [
        ".ipython/profile_default/startup/00-poison.py",
        ".ipython/profile_default/ipython_config.py",
        ".ipython/profile_default/ipython_kernel_config.py",
        ".ipython/extensions/storemagic.py",
        ".jupyter/jupyter_config.py",
        ".local/lib/python3.11/site-packages/sitecustomize.py",
        ".local/lib/python3.12/site-packages/sitecustomize.py",
        ".local/lib/python3.11/site-packages/usercustomize.py",
        ".config/matplotlib/matplotlibrc",
        ".pythonrc.py",
        ".profile",
        ".bashrc",
        ".npmrc",
    ]
    evil.text(
        f"import os\n"
        f"for name in {files!r}:\n"
        f"    path = os.path.join(os.environ['HOME'], name)\n"
        f"    os.makedirs(os.path.dirname(path), exist_ok=True)\n"
        f"    open(path, 'w').write({POISON!r})\n"
        f"open('/tmp/left', 'w').write('left'); open('/dev/shm/left', 'w').write('left')"
    )
    restart(evil)
    assert evil.text(POISONED) == "False\n"
    gone = "import glob, os; print(glob.glob('/tmp/left') + glob.glob('/dev/shm/left'))"
    assert evil.text(gone) == "[]\n"
    private = evil.text("import os, json; print(json.dumps(sorted(os.listdir('/home/kernel'))))")
    assert set(json.loads(private)) <= {".connection.json", ".ipython", ".cache", ".config"}


def test_the_mark_would_be_seen_if_poison_ran(evil: Attacker) -> None:
    evil.text(f"open('/workspace/poison.py', 'w').write({POISON!r})")
    restart(evil)
    evil.expect("error", "import poison")
    assert evil.text(POISONED) == "poison\n\n"


def test_a_process_does_not_outlive_the_restart(evil: Attacker) -> None:
    evil.text(
        "import os, subprocess, time\n"
        "loop = 'while :; do date > /workspace/alive; sleep 0.1; done'\n"
        "subprocess.Popen(['sh', '-c', loop], start_new_session=True)\n"
        "while not os.path.exists('/workspace/alive'): time.sleep(0.05)"
    )
    changes = (
        "import os, time\n"
        "before = os.stat('/workspace/alive').st_mtime_ns; time.sleep(0.7)\n"
        "print(os.stat('/workspace/alive').st_mtime_ns != before)"
    )
    assert evil.text(changes) == "True\n"
    restart(evil)
    assert evil.text(changes) == "False\n"


@pytest.mark.parametrize("name", ["mine", "files", "probe", "launcher", "utils"])
def test_cells_import_modules_from_the_workspace(evil: Attacker, name: str) -> None:
    evil.text(f"open('/workspace/{name}.py', 'w').write('answer = 42')")
    restart(evil)
    assert evil.text(f"import {name}; print({name}.answer, {name}.__file__)") == f"42 /home/user/{name}.py\n"


def test_cells_import_from_their_current_directory(evil: Attacker) -> None:
    evil.text(
        "import os\n"
        "os.makedirs('/workspace/deep/package'); os.chdir('/workspace/deep')\n"
        "open('package/__init__.py', 'w').write('answer = 42')"
    )
    assert evil.text("import package; print(package.answer)") == "42\n"
    assert evil.text("import sys, subprocess; print(subprocess.run([sys.executable, '-c', '1']).returncode)") == "0\n"
