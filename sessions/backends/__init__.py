"""Backends, which run kernels; `base.py` is their contract. Backends do not import one another.

Words: a *launch* is what a kernel is started with, a *handle* is a container or process that runs, an *ability* is what
a backend can do, such as sleep. Knows no message of a kernel, and no session.
"""
