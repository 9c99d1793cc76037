"""Measures ordinary cells in gVisor beside the same cells in a plain container: what the sandbox costs user code.

Two gateways have a session each, whose kernels differ in nothing but their runtime. They take turns, cell by cell. A
cell's time is taken by its own kernel, so that what HTTP and messages cost, which `ways` measures, is not in it. It is
the part `inside` of `make bench`.
"""

from __future__ import annotations

from collections import defaultdict

from tests.benchmarks.figures import hindrance, rounds, say
from tests.benchmarks.results import Figures, Ways
from tests.benchmarks.serving import IMAGE, serving_on
from tests.gateways import Gateway, text_of

#: the runtime that everything is compared with
PLAIN = "runc"
SESSION = "inside"
#: of each kernel: libraries, tables and 300 MB at once are more than the usual limit
MEMORY = "1g"
#: what the cells need, run once in each kernel: modules are imported here, because only one cell is to measure that
BEGUN = """
import hashlib, http.client, http.server, io, os, shutil, sqlite3, subprocess, sys, sysconfig, threading, time
import matplotlib; matplotlib.use("agg")
import matplotlib.pyplot as plt, numpy as np, pandas as pd
table = pd.DataFrame(np.random.default_rng(0).random((100_000, 5)), columns=list("abcde"))
table["group"] = np.arange(len(table)) % 100
table.to_csv("/tmp/table.csv", index=False)
def files(place):
    os.mkdir(place)
    for number in range(2_000):
        with open(f"{place}/{number}", "w") as file:
            file.write("x" * 2_000)
    for number in range(2_000):
        with open(f"{place}/{number}") as file:
            file.read()
    shutil.rmtree(place)
class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
threading.Thread(target=server.serve_forever, daemon=True).start()
"""
#: fifteen ordinary cells, from those that only compute to those that ask the system for much
CELLS = {
    "pure Python: a loop and a dictionary": "found = {n: str(n * n) for n in range(300_000)}",
    "NumPy: a product of two matrices": "a = np.ones((700, 700)); a = a @ a",
    "pandas: groups and a join": 'table.merge(table.groupby("group").mean(), on="group").describe()',
    "Matplotlib: a plot as PNG": "plt.plot(table.a[:1000]); plt.savefig(io.BytesIO()); plt.close()",
    "SHA-256 of 100 MB in pieces": "h = hashlib.sha256(); [h.update(bytes(1_000_000)) for _ in range(100)]",
    "pandas: a CSV of 10 MB": 'pd.read_csv("/tmp/table.csv")',
    "`import pandas` in a new process": 'subprocess.run([sys.executable, "-c", "import pandas"], check=True)',
    "20 runs of `/bin/true`": 'for _ in range(20): subprocess.run(["/bin/true"], check=True)',
    "1,000 lines to `cat` and back": (
        'cat = subprocess.Popen(["cat"], stdin=-1, stdout=-1, bufsize=0)\n'
        'for _ in range(1_000): cat.stdin.write(b"line\\n"); cat.stdout.read(5)\n'
        "cat.stdin.close(); cat.wait()"
    ),
    "200 requests to a server in the same kernel": (
        'web = http.client.HTTPConnection("127.0.0.1", server.server_port)\n'
        'for _ in range(200): web.request("GET", "/"); web.getresponse().read()\n'
        "web.close()"
    ),
    "first use of 300 MB of memory": "held = bytearray(300_000_000); del held",
    "2,000 small files in `/tmp`": 'files("/tmp/small")',
    "2,000 small files in the workspace": 'files("small")',
    "SQLite in the workspace: 100 transactions": (
        'db = sqlite3.connect("rows.db"); db.execute("create table t (n)"); db.commit()\n'
        'for n in range(100): db.execute("insert into t values (?)", (n,)); db.commit()\n'
        'db.close(); os.remove("rows.db")'
    ),
    "a walk through all installed packages": ('for _ in os.walk(sysconfig.get_path("purelib")): pass'),
}
TIMED = "began = time.perf_counter()\n{}\nprint(time.perf_counter() - began)"


def measure(isolation: str, most: int, limit: float) -> Ways:
    """Measure all cells in turn.

    Args:
        isolation: isolation that is compared with a plain container.
        most: number of rounds.
        limit: seconds after which no further round begins.
    """
    if reason := hindrance(PLAIN, IMAGE):
        return dict.fromkeys(CELLS, f"nothing to compare with: {reason}")
    found: dict[str, Figures] = {name: defaultdict(list) for name in CELLS}
    with serving_on(PLAIN, memory=MEMORY) as plain, serving_on(isolation, memory=MEMORY) as boxed:
        kernels = {PLAIN: plain, isolation: boxed}
        for serving in kernels.values():
            assert serving.text(SESSION, BEGUN) == ""
        say(f"inside, {isolation}: a round that is not measured")
        one_round(kernels, {name: defaultdict(list) for name in CELLS})
        for number in rounds(f"inside, {isolation}", most, limit):
            # The one that is second finds the machine as the first one has left it, so they change places.
            one_round(dict(reversed(kernels.items())) if number % 2 else kernels, found)
    return dict(found)


def one_round(kernels: dict[str, Gateway], found: dict[str, Figures]) -> None:
    """Run each cell once in each kernel."""
    for name, code in CELLS.items():
        for isolation, serving in kernels.items():
            reply = serving.execute(SESSION, TIMED.format(code))
            assert reply["status"] == "ok", f"{name}, {isolation}: {reply}"
            found[name][isolation].append(float(text_of(reply)))
