"""Starts the kernel: `python python_kernel/__main__.py -f CONNECTION_FILE`. With `-f -` it waits for its connection."""

import sys

if __name__ == "__main__":
    # Cells must not find the modules beside this package, or ours would hide their own modules, such as `files.py`.
    sys.path[0] = sys.path[0].removesuffix("/python_kernel")
    from python_kernel import bundle

    bundle.use(bundle.FILE)
    from python_kernel import imports

    imports.lean()
    from python_kernel.app import KernelApp, main

    kind = KernelApp
    if sys.argv[1:] == ["-f", "-"]:
        from python_kernel.waiting import WaitingApp

        kind = WaitingApp
    del sys.path[0]
    main(kind)
