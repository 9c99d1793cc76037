"""Tools, files and processes beside a kernel, in its sandbox.

Words: a *guest* is anything that runs in the container beside the kernel; a *tool* is one of the image's programs that
handle files and processes. This room knows no kernel, no session and no backend: its callers pass a way to run a tool.
"""
