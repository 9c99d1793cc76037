"""Runs a program as a module `main`, calls its `main`, and writes its answer as one line or one file."""

# This source runs as a file, or as a cell of a notebook's kernel. There it leaves only one name behind.


def _run_program(encoded: str) -> None:
    import base64
    import json
    import linecache
    import sys
    import traceback
    import types

    task = json.loads(base64.b64decode(encoded, validate=True))
    code = task["code"]
    module = types.ModuleType("main")
    module.__file__ = "main.py"
    sys.modules["main"] = module
    # With this entry a traceback shows the source lines.
    linecache.cache["main.py"] = (len(code), None, code.splitlines(keepends=True), "main.py")
    answer: dict[str, int | str] = {"exit_code": 0}
    try:
        exec(compile(code, "main.py", "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - runs the program
        value = json.dumps(module.main(**task["arguments"]), ensure_ascii=False, allow_nan=False)
        answer["value"] = base64.b64encode(value.encode()).decode()
    except SystemExit as end:
        answer["exit_code"] = end.code if isinstance(end.code, int) else 1 if end.code else 0
        if end.code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        raise  # an interrupt from outside
    except BaseException as error:  # noqa: BLE001 - any exception ends the program
        answer["exit_code"] = 1
        # Leave out this function's own frame.
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(type(error), error, trace)
    sys.stdout.flush()
    sys.stderr.flush()
    if "file" in task:
        with open(task["file"], "w", encoding="ascii") as file:
            json.dump(answer, file)
        sys.exit(answer["exit_code"])
    print("\n" + task["marker"] + json.dumps(answer), flush=True)
