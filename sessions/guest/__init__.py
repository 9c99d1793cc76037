"""Tools, files and processes beside a kernel, in its sandbox.

Words: the *guest* is what runs in the container besides the kernel; a *tool* is one of the image's programs for it.
Knows no kernel, no session and no backend: it is given a way to run a tool.
"""
