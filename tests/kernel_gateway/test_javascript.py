"""JavaScript in a session: Deno's own kernel, with the gateway's corrections of its shortcomings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes import until
from tests.gateways import Gateway, text_of
from tests.kernel_gateway.calls import process_only
from tests.kernel_gateway.jupyter import connected

LINES = 10_000


@pytest.fixture
def script(gateway: Gateway, session: str) -> str:
    """A JavaScript session."""
    return made(gateway, session)


@pytest.fixture
def kernel(gateway: Gateway) -> Iterator[str]:
    """A JavaScript kernel that a Jupyter client has started."""
    made = gateway.call("POST", "/api/kernels", json={"name": "deno"})
    assert made.status_code == 201, made.text
    yield made.json()["id"]
    gateway.call("DELETE", f"/api/kernels/{made.json()['id']}")


def made(gateway: Gateway, name: str) -> str:
    answer = gateway.call("POST", "/v1/sessions", json={"name": name, "language": "javascript"})
    assert answer.status_code == 201, answer.text
    return name


def of_type(reply: dict[str, Any], output_type: str) -> dict[str, Any]:
    """Return the only output of this type."""
    (output,) = (output for output in reply["outputs"] if output["output_type"] == output_type)
    return dict(output)


def streams(reply: dict[str, Any]) -> dict[str, str]:
    """Return the text of each stream."""
    found: dict[str, str] = {}
    for output in reply["outputs"]:
        if output["output_type"] == "stream":
            found[output["name"]] = found.get(output["name"], "") + output["text"]
    return found


# -- cells -----------------------------------------------------------------------------------------------------


@pytest.mark.gate
def test_variables_stay_and_cells_can_await(gateway: Gateway, script: str) -> None:
    gateway.execute(
        script, "let kept = await Promise.resolve(41); const typed: number = 1; function add(n) { return n }"
    )
    assert gateway.text(script, "kept += typed; add(kept)") == "42"
    assert gateway.text(script, "await new Promise(done => setTimeout(() => done(kept + 1), 10))") == "43"


def test_sessions_share_nothing(gateway: Gateway, script: str) -> None:
    other = made(gateway, f"{script}-2")
    gateway.execute(script, "globalThis.kept = 1; Deno.writeTextFileSync('kept.txt', '1')")
    assert gateway.text(other, "typeof kept + [...Deno.readDirSync('.')].length") == '"undefined0"'
    gateway.call("DELETE", f"/v1/sessions/{other}")


def test_streams_results_and_displays_are_outputs(gateway: Gateway, script: str) -> None:
    reply = gateway.execute(script, "console.log('out'); console.error('err'); new Map([[1, 2]])")
    assert [(output.get("name"), output.get("text")) for output in reply["outputs"][:2]] == [
        ("stdout", "out\n"),
        ("stderr", "err\n"),
    ]
    assert of_type(reply, "execute_result")["data"] == {"text/plain": "Map(1) { 1 => 2 }"}
    assert of_type(gateway.execute(script, "Deno.jupyter.html`<b>1</b>`"), "execute_result")["data"] == {
        "text/html": "<b>1</b>"
    }
    shown = gateway.execute(script, "await Deno.jupyter.display(Deno.jupyter.svg`<svg/>`)")
    assert of_type(shown, "display_data")["data"] == {"image/svg+xml": "<svg/>"}


def test_an_error_has_name_message_and_traceback(gateway: Gateway, script: str) -> None:
    reply = gateway.execute(script, "function fails() { throw new TypeError('no') }; fails()")
    error = of_type(reply, "error")
    assert (reply["status"], error["ename"], error["evalue"]) == ("error", "TypeError", "no")
    assert "at fails" in "".join(error["traceback"])


def test_code_that_is_no_javascript_is_an_error(gateway: Gateway, script: str) -> None:
    # Deno gives no other detail of a syntax error.
    reply = gateway.execute(script, "let kept = ;")
    assert (reply["status"], text_of(reply)) == ("error", "Error: Execution failed")
    assert gateway.text(script, "1") == "1"


def test_a_prompt_returns_null(gateway: Gateway, script: str) -> None:
    assert gateway.text(script, "String(prompt('name?'))") == '"null"'


@process_only
def test_main_is_called_with_arguments(gateway: Gateway, script: str) -> None:
    code = "async function main({ text, number }) { return text.length + number }"
    assert text_of(gateway.execute(script, code, arguments={"text": "\u2028'\"", "number": 1})) == "4"


@process_only
def test_an_exit_of_the_kernel_is_reported_with_its_exit_code(gateway: Gateway, script: str) -> None:
    reply = gateway.execute(script, "Deno.exit(3)")
    assert (reply["status"], reply["state"], reply["error"]["details"]) == ("died", "lost", {"exit_code": 3})
    assert gateway.execute(script, "1")["state"] == "lost"


# -- output that arrives after the end -------------------------------------------------------------------------


def test_no_output_is_left_behind(gateway: Gateway, script: str) -> None:
    for _ in range(30):
        assert gateway.text(script, "console.log(1); console.log(2); 3") == "1\n2\n3"


@pytest.mark.full
def test_many_lines_are_all_there(gateway: Gateway, script: str) -> None:
    reply = gateway.execute(script, f"for (let i = 0; i < {LINES}; i++) console.log(i)", timeout=90)
    assert text_of(reply) == "".join(f"{number}\n" for number in range(LINES))
    assert (reply["status"], reply["truncated"]) == ("ok", False)


def test_a_megabyte_at_once_is_all_there(gateway: Gateway, script: str) -> None:
    for _ in range(5):
        reply = gateway.execute(script, "console.log('x'.repeat(1e6))", timeout=60)
        assert (len(text_of(reply)), reply["status"], reply["truncated"]) == (1_000_001, "ok", False)


@pytest.mark.parametrize(
    "behind",
    [
        pytest.param("", marks=pytest.mark.full),
        pytest.param("; throw new Error('no')", marks=pytest.mark.gate),
        pytest.param("; Deno.jupyter.html`<b>1</b>`", marks=pytest.mark.full),
    ],
)
def test_ten_megabytes_at_once_are_all_there(gateway: Gateway, script: str, behind: str) -> None:
    text = "".join(f"{number:09}\n" for number in range(1_000_000))
    lines = r"Array.from({ length: 1e6 }, (_, i) => `${i}`.padStart(9, '0')).join('\n')"
    for _ in range(2):
        reply = gateway.execute(script, f"console.log({lines}){behind}", timeout=60)
        told = f"{reply['status']}, truncated: {reply['truncated']}, {len(text_of(reply))} characters"
        assert reply["outputs"], told
        assert reply["outputs"][0]["text"] == text, told
        assert not reply["truncated"], told


@process_only
def test_no_character_is_cut_into_halves(gateway: Gateway, script: str) -> None:
    reply = gateway.execute(script, r"console.log('x' + '\u{1f389}'.repeat(2e5)); console.error('y'.repeat(6e5))")
    assert [output["text"] for output in reply["outputs"]] == [
        "x" + "\U0001f389" * 200_000 + "\n",
        "y" * 600_000 + "\n",
    ]


def test_a_large_result_is_all_there(gateway: Gateway, script: str) -> None:
    for show in ("await Deno.jupyter.display({ 'text/html': html }, { raw: true })", "Deno.jupyter.html`${html}`"):
        reply = gateway.execute(script, f"var html = 'x'.repeat(9e6); {show}", timeout=60)
        assert [len(output["data"]["text/html"]) for output in reply["outputs"]] == [9_000_000]
        assert (reply["status"], reply["truncated"]) == ("ok", False)


@pytest.mark.full
def test_lines_printed_faster_than_they_are_sent_do_not_end_the_kernel(gateway: Gateway, script: str) -> None:
    reply = gateway.execute(script, "let kept = 1; for (;;) console.log('x'.repeat(999))", timeout=3)
    assert (reply["status"], reply["state"]) == ("timeout", "new")
    assert gateway.text(script, "kept") == "1"


@process_only
def test_console_methods_write_to_stdout_and_stderr(gateway: Gateway, script: str) -> None:
    code = """
        console.group("a"); console.info("%cb %s", "color: red", "c\\nd", { e: 1 }); console.groupEnd();
        console.table([1]); console.count(); console.warn("f"); console.assert(false, "g"); console.log();
    """
    stdout, stderr, end = (output["text"] for output in gateway.execute(script, code)["outputs"])
    assert stdout.startswith("a\n  b c\n  d { e: 1 }\n┌")
    assert stdout.endswith("┘\ndefault: 1\n")
    assert (stderr, end) == ("f\nAssertion failed: g\n", "\n")


@process_only
@pytest.mark.full
def test_too_large_output_is_marked_as_truncated(gateway: Gateway, script: str) -> None:
    reply = gateway.execute(script, "console.log('x'.repeat(2e7))", timeout=60)
    assert (reply["status"], reply["truncated"], len(text_of(reply))) == ("ok", True, 10 * 1024**2)
    reply = gateway.execute(script, "Deno.jupyter.html`${'x'.repeat(2e7)}`", timeout=60)  # cannot be cut
    assert (reply["status"], reply["truncated"], reply["outputs"]) == ("ok", True, [])
    assert gateway.text(script, "1") == "1"


async def test_a_front_end_gets_only_ordinary_messages_of_large_output(gateway: Gateway, kernel: str) -> None:
    async with connected(gateway, kernel) as client:
        asked = {"silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        cell = await client.send("shell", "execute_request", asked | {"code": "console.log('x'.repeat(1e6))"})
        heard = [message["header"]["msg_type"] for message in await client.of(cell)]
        assert set(heard) == {"status", "execute_input", "stream", "execute_reply"}


async def test_a_front_end_that_queues_cells_gets_the_output_of_each(gateway: Gateway, kernel: str) -> None:
    async with connected(gateway, kernel) as client:
        asked = {"silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        cells = [
            await client.send(
                "shell", "execute_request", asked | {"code": f"for (let i = 0; i < 99; i++) console.log({n})"}
            )
            for n in range(3)
        ]
        for number, cell in enumerate(cells):
            text = "".join(message["content"].get("text", "") for message in await client.of(cell))
            assert text == f"{number}\n" * 99


# -- output that is not printed by the console ------------------------------------------------------------------


CHILD = "['-c', 'echo a; echo e >&2']"
WRITTEN = {
    "process": r"process.stdout.write('a\n'); process.stderr.write('e\n'); 0",
    "Deno": "Deno.stdout.writeSync(Uint8Array.of(97, 10)); await Deno.stderr.write(Uint8Array.of(101, 10)); 0",
    "writable": """
        const writer = Deno.stdout.writable.getWriter();
        await writer.write(Uint8Array.of(97, 10)); writer.releaseLock(); console.error('e')
    """,
    "Command": f"new Deno.Command('sh', {{ args: {CHILD}, stdout: 'inherit', stderr: 'inherit' }}).outputSync(); 0",
    "spawn": f"await new Deno.Command('sh', {{ args: {CHILD} }}).spawn().status; 0",
    "node": f"(await import('node:child_process')).spawnSync('sh', {CHILD}, {{ stdio: 'inherit' }}); 0",
}


@pytest.mark.parametrize("code", WRITTEN.values(), ids=WRITTEN)
def test_what_a_cell_and_its_children_write_is_its_output(gateway: Gateway, script: str, code: str) -> None:
    for _ in range(3):
        assert streams(gateway.execute(script, code)) == {"stdout": "a\n", "stderr": "e\n"}
        assert streams(gateway.execute(script, "0")) == {}


def test_written_and_printed_text_is_in_order(gateway: Gateway, script: str) -> None:
    code = """
        console.log(1); process.stdout.write("2\\n"); console.log(3);
        new Deno.Command("echo", { args: ["4"], stdout: "inherit" }).outputSync(); console.log(5);
    """
    assert streams(gateway.execute(script, code)) == {"stdout": "1\n2\n3\n4\n5\n"}


def test_what_a_child_writes_before_an_error_is_there(gateway: Gateway, script: str) -> None:
    code = "await new Deno.Command('echo', { args: ['a'], stdout: 'inherit' }).output(); throw new Error('no')"
    reply = gateway.execute(script, code)
    assert (reply["status"], streams(reply)) == ("error", {"stdout": "a\n"})


def test_all_that_children_write_is_there_and_no_character_is_cut(gateway: Gateway, script: str) -> None:
    text = "漢字🎉é" * 100_000
    gateway.execute(script, "Deno.writeTextFileSync('zh.txt', '漢字🎉é'.repeat(1e5)); 0")
    for _ in range(20):  # more than is kept
        code = "new Deno.Command('cat', { args: ['zh.txt'], stdout: 'inherit' }).outputSync(); 0"
        assert streams(gateway.execute(script, code, timeout=60)) == {"stdout": text}
    halves = "for (const byte of [0xe6, 0xbc, 0xa2]) Deno.stdout.writeSync(Uint8Array.of(byte)); 0"
    assert streams(gateway.execute(script, halves)) == {"stdout": "漢"}


# -- deadlines and interrupts ----------------------------------------------------------------------------------


def test_a_loop_is_interrupted_and_variables_stay(gateway: Gateway, script: str) -> None:
    gateway.execute(script, "let kept = 1")
    reply = gateway.execute(script, "while (true) {}", timeout=1)
    assert (reply["status"], reply["state"]) == ("timeout", "preserved")
    assert gateway.text(script, "kept") == "1"


def test_a_cell_that_waits_for_ever_loses_its_kernel(gateway: Gateway, script: str) -> None:
    """Deno interrupts running code, but no pending `await`."""
    gateway.execute(script, "let kept = 1")
    reply = gateway.execute(script, "await new Promise(() => {})", timeout=1)
    assert (reply["status"], reply["state"]) == ("timeout", "lost")
    assert "its kernel was ended" in reply["error"]["message"]
    after = gateway.execute(script, "typeof kept")
    assert (after["state"], text_of(after)) == ("lost", '"undefined"')


@pytest.mark.full
async def test_an_interrupt_kills_no_kernel(gateway: Gateway, script: str) -> None:
    """The interrupt waits for code that cannot be interrupted. An unmodified Deno would end at the signal after 2 s."""
    gateway.execute(script, "let kept = 1")
    code = "new Deno.Command('sleep', { args: ['4'] }).outputSync()"
    cell = asyncio.create_task(asyncio.to_thread(gateway.execute, script, code))  # noqa: TID251 - it is awaited
    await until(lambda: gateway.call("GET", f"/v1/sessions/{script}").json()["state"] == "busy")
    await asyncio.sleep(0.5)  # else the cell has not reached the code that cannot be interrupted
    assert gateway.call("POST", f"/v1/sessions/{script}/interrupt").json() == {"interrupted": True}
    reply = await cell
    assert (reply["status"], reply["state"]) == ("interrupted", "preserved")
    assert gateway.text(script, "kept") == "1"
